"""A full disk: a clear answer, reading goes on, and no restart is needed afterwards."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from monitoring.store.database import Database
from monitoring.store.errors import StoreFullError
from monitoring.store.retention import apply_retention
from monitoring.store.telemetry import batches_after, counters, store_batches
from tests.monitoring.store.store_fixtures import batch, registered
from tests.monitoring.store.store_processes import run

OWN_MOUNTS = ("unshare", "--map-root-user", "--mount")


@pytest.fixture
def limited(sqlite_url: str) -> Iterator[Database]:
    """A database of at most 200 pages."""
    database = Database.open(sqlite_url)

    def limit(connection: Any, _record: object) -> None:
        connection.execute("PRAGMA max_page_count=200")

    event.listen(database.engine, "connect", limit)
    registered(database)
    yield database
    database.close()


def fill(database: Database) -> list[int]:
    stored: list[int] = []
    payload = os.urandom(20_000)

    def fill_up() -> None:
        while True:
            stored.extend(database.run(lambda c: store_batches(c, [batch(payload=payload)])))

    with pytest.raises(StoreFullError, match=r"no room in the database .*lower the retention"):
        fill_up()
    return stored


def test_page_limit_and_recovery_by_retention(limited: Database) -> None:
    stored = fill(limited)
    assert len(stored) > 3
    with limited.read() as connection:
        assert [found.id for found in batches_after(connection, "code", 0)] == stored
        assert counters(connection, "code").batches == len(stored)
    limited.check()
    removed = apply_retention(limited, max_age_seconds=None, max_bytes=40_000)
    assert (removed.batches, removed.stored_bytes) == (len(stored) - 2, 40_000)
    more = fill(limited)
    assert len(more) >= removed.batches - 1
    with limited.read() as connection:
        assert [found.id for found in batches_after(connection, "code", 0)] == stored[-2:] + more


def may_mount(folder: Path) -> bool:
    probe = [*OWN_MOUNTS, "mount", "-t", "tmpfs", "none", str(folder)]
    try:
        return subprocess.run(probe, capture_output=True, check=False, timeout=30).returncode == 0
    except OSError:
        return False


@pytest.mark.slow
def test_full_disk_and_recovery_without_a_restart(tmp_path: Path) -> None:
    """A real file system of four megabytes, seen by the child process alone."""
    if not may_mount(tmp_path):
        pytest.skip("this user may not mount a file system of its own")
    mount = f'mount -t tmpfs -o size=4m none "{tmp_path}" && exec "$@"'
    before = (*OWN_MOUNTS, "sh", "-c", mount, "sh")
    full, readable, recovered = run("fills", f"sqlite:///{tmp_path / 'store.db'}", before=before)
    assert "no room in the database" in full["full"]
    assert len(full["stored"]) > 10
    assert readable == {"readable": full["stored"], "whole": "ok"}
    assert recovered["recovered"][0] > full["stored"][-1]
