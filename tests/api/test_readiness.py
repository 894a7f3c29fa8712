from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from api import readiness as module
from api.readiness import Readiness, readiness
from monitoring.store.database import Database
from monitoring.store.errors import StoreUnavailableError
from tests.support.service import empty_database

FOLLOWING = SimpleNamespace(releasing=False, alive=True, reachable=True)


def checks(database: Database, feed: object = FOLLOWING) -> dict[str, bool]:
    state = SimpleNamespace(readiness=Readiness(database), feed=feed)
    return {name: check.ok for name, check in asyncio.run(readiness(state)).items()}


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database.open(empty_database(tmp_path))


def test_all_is_well(database: Database) -> None:
    assert checks(database) == {"database": True, "migrations": True, "publications": True}


def test_old_tables_are_not_ready(tmp_path: Path) -> None:
    database = Database.open(f"sqlite:///{tmp_path / 'empty.db'}")
    assert checks(database)["migrations"] is False


def test_a_database_that_is_away_is_not_ready(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away() -> None:
        raise StoreUnavailableError("cannot reach 10.0.0.7")

    monkeypatch.setattr(database, "check", away)
    state = SimpleNamespace(readiness=Readiness(database), feed=FOLLOWING)
    found = asyncio.run(readiness(state))
    assert not found["database"].ok
    assert "10.0.0.7" not in found["database"].detail


def test_a_database_that_hangs_is_not_ready(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LONGEST_SECONDS", 0.05)
    answered = threading.Event()
    monkeypatch.setattr(database, "check", lambda: answered.wait(20.0))

    async def story() -> None:
        asked = Readiness(database)
        assert not (await asked.database_checks())["database"].ok
        answered.set()

    asyncio.run(story())


@pytest.mark.parametrize(
    "feed",
    [
        SimpleNamespace(releasing=True, alive=True, reachable=True),
        SimpleNamespace(releasing=False, alive=False, reachable=True),
        SimpleNamespace(releasing=False, alive=True, reachable=False),
    ],
)
def test_publications_must_be_followed(database: Database, feed: object) -> None:
    assert checks(database, feed)["publications"] is False


def test_probes_share_one_question(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    really = database.check
    monkeypatch.setattr(database, "check", lambda: asked.append(really()))

    async def story() -> None:
        ready = Readiness(database)
        await asyncio.gather(*(ready.database_checks() for _ in range(20)))
        await ready.database_checks()

    asyncio.run(story())
    assert len(asked) == 1
