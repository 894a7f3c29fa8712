"""Keep the process that answers polls small.

It stays up for months, ingests through pyarrow now and then, and answers from a few kilobytes. What
it held beyond that was of no use to it; each step here was measured (docs/decisions/0009).
"""

from __future__ import annotations

import asyncio
import ctypes
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from api.lean_imports import absent
from api.worker_supervisor import child_command, child_environment
from monitoring.store.migrate import is_current

if TYPE_CHECKING:
    from monitoring.store.database import Database

__all__ = [
    "MemoryReturn",
    "give_memory_back",
    "keep_pandas_out",
    "upgrade_apart",
    "use_few_heaps",
]

_ARENAS: Final = 2
_LARGE_BYTES: Final = 2**20
_TRIM_BYTES: Final = 4 * 2**20
_M_ARENA_MAX, _M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD = -8, -3, -1  # of mallopt(3)
_EVERY_SECONDS: Final = 10.0
_WORTH_BYTES: Final = 2**20  # less leaves nothing behind that is worth a look through the heap


def keep_pandas_out() -> bool:
    """Let pyarrow take pandas for not installed; whether it does.

    The first array that pyarrow makes imports pandas where it finds it, about 45 MB, only to ask
    whether the values are a pandas object. It asks once: told that there is none, it never tries
    again in this process, and everything but conversions to pandas works as before. A process that
    has imported pandas by itself is left alone. Call :func:`use_few_heaps` before: with its first
    array Arrow reserves 4 MiB of the heap that it has by then.
    """
    if "pandas" in sys.modules:
        return False
    with absent("pandas"):
        pa.array([0.0])
    return True


def use_few_heaps() -> None:
    """Let Arrow and all threads allocate where freed memory can be given back.

    By default Arrow keeps a heap of its own and the C library one for every few threads, and each
    keeps what its largest batch took: once bodies were freed it would also take the next ones from
    its heaps. These thresholds stay. Call it before threads start.
    """
    pa.set_memory_pool(pa.system_memory_pool())
    if (library := _c_library()) is not None:
        library.mallopt(_M_ARENA_MAX, _ARENAS)
        library.mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
        library.mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES)


def upgrade_apart(database: Database) -> None:
    """Create or change the tables, where they need it, in a process that ends with that.

    Here Alembic and what it imports, 8 MiB, would stay for what is done once a release. A child
    that fails says nothing: the caller's own attempt, which must follow, tells what is wrong.

    Raises:
        StoreError: the database cannot be read.
    """
    if is_current(database):
        return
    subprocess.run(
        child_command("monitoring.store.migrate"),
        input=database.url.encode() + b"\n",
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=child_environment(),
        process_group=0,
        check=False,
    )


def give_memory_back() -> None:
    """Return freed memory to the system, as far as the C library can; takes some milliseconds."""
    pa.default_memory_pool().release_unused()
    if (library := _c_library()) is not None:
        library.malloc_trim(0)


class MemoryReturn:
    """Gives memory back some time after it was used; lives on the event loop.

    Args:
        used: bytes that were taken since the start. Nothing is done while few are added.
        seconds: pause between two looks.
    """

    def __init__(self, used: Callable[[], int], *, seconds: float = _EVERY_SECONDS) -> None:
        self._used = used
        self._seconds = seconds
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Look from now on."""
        self._task = asyncio.create_task(self._run(), name="memory return")

    async def stop(self) -> None:
        """Look no longer."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        seen = self._used()
        while True:
            await asyncio.sleep(self._seconds)
            used = self._used()
            if used - seen >= _WORTH_BYTES:
                seen = used
                await asyncio.to_thread(give_memory_back)


@cache
def _c_library() -> Any:
    """The C library where it is glibc, else None."""
    library = ctypes.CDLL(None)
    return library if hasattr(library, "malloc_trim") else None
