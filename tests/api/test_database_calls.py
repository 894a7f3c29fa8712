from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from sqlalchemy import Connection, text
from starlette.requests import Request

from api.database_calls import change, read
from monitoring.store.database import Database
from monitoring.store.drafter_rows import all_states
from monitoring.store.errors import StoreBusyError
from tests.support.publications import register
from tests.support.service import empty_database


def request_of(database: Database) -> Request:
    state = SimpleNamespace(database=database)
    return cast(Request, SimpleNamespace(app=SimpleNamespace(state=state)))


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database.open(empty_database(tmp_path), busy_seconds=0.05)


def test_work_is_done_off_the_event_loop(database: Database) -> None:
    async def story() -> None:
        here = threading.get_ident()
        for call in (read, change):
            there = await call(request_of(database), lambda _: threading.get_ident())
            assert there != here

    asyncio.run(story())


def test_a_change_is_committed_and_a_failed_one_is_not(database: Database) -> None:
    def broken(connection: Connection) -> None:
        connection.execute(text("INSERT INTO audit (at, actor, action, details) VALUES (0,0,0,0)"))
        raise ZeroDivisionError

    def count(connection: Connection) -> Any:
        return connection.execute(text("SELECT count(*) FROM audit")).scalar()

    register(database)
    request = request_of(database)
    before = asyncio.run(read(request, count))
    with pytest.raises(ZeroDivisionError):
        asyncio.run(change(request, broken))
    assert asyncio.run(read(request, count)) == before
    assert len(asyncio.run(read(request, all_states))) == 1


def test_a_locked_database_is_reported_within_seconds(database: Database) -> None:
    other = Database.open(database.url)
    with other.write(), pytest.raises(StoreBusyError):
        asyncio.run(change(request_of(database), lambda _: None))
    other.close()
