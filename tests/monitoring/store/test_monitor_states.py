"""What the loop knows is saved with how far it has read, and never goes back."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from monitoring.store.database import Database
from monitoring.store.errors import ConflictError, NotFoundError
from monitoring.store.monitor_states import load, load_document, save
from tests.monitoring.store.store_fixtures import registered


def test_state_is_read_as_it_was_saved(database: Database) -> None:
    registered(database)
    registered(database, "chat")
    with database.write() as connection:
        assert load(connection, "code") is None
        assert load_document(connection, "code") is None
        save(connection, "code", consumed_through=3, state=b"\x00old", document=b"{}")
        saved = save(connection, "code", consumed_through=7, state=b"\x00s", document=b'{"a":1}')
    with database.read() as connection:
        assert load(connection, "code") == saved
        shown = load_document(connection, "code")
        assert load(connection, "chat") is None
        assert load(connection, "no slug\0") is None
        assert load_document(connection, "no slug\0") is None
    assert (saved.consumed_through, saved.state, saved.document) == (7, b"\x00s", b'{"a":1}')
    assert saved.updated_at > 0
    assert shown is not None
    assert asdict(shown) == {k: v for k, v in asdict(saved).items() if k != "state"}


def test_r73_reading_never_goes_back(database: Database) -> None:
    registered(database)
    with database.write() as connection:
        save(connection, "code", consumed_through=7, state=b"seven", document=b"{}")
        save(connection, "code", consumed_through=7, state=b"again", document=b"{}")
        with pytest.raises(ConflictError, match="beyond 6 were consumed already"):
            save(connection, "code", consumed_through=6, state=b"late", document=b"{}")
        found = load(connection, "code")
    assert found is not None
    assert (found.consumed_through, found.state) == (7, b"again")


def test_unknown_drafter_is_refused(database: Database) -> None:
    with database.write() as connection, pytest.raises(NotFoundError, match="no drafter 'none'"):
        save(connection, "none", consumed_through=1, state=b"", document=b"{}")
