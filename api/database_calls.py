"""Database work of a request, off the event loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from starlette.concurrency import run_in_threadpool

if TYPE_CHECKING:
    from sqlalchemy import Connection
    from starlette.requests import Request

    from monitoring.store.database import Database

__all__ = ["change", "read"]

T = TypeVar("T")

# Each attempt waits for locks by itself: a caller hears within seconds that it should try again.
_ATTEMPTS = 2


async def read(request: Request, work: Callable[[Connection], T]) -> T:
    """What ``work`` returns, done on one consistent snapshot.

    Raises:
        StoreError: typed by what went wrong.
    """
    database: Database = request.app.state.database

    def done() -> T:
        with database.read() as connection:
            return work(connection)

    return await run_in_threadpool(done)


async def change(request: Request, work: Callable[[Connection], T]) -> T:
    """What ``work`` returns, done in one durable write transaction.

    Raises:
        StoreError: typed by what went wrong.
    """
    database: Database = request.app.state.database
    return await run_in_threadpool(lambda: database.run(work, attempts=_ATTEMPTS))
