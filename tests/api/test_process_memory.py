"""What the API process does not keep: pandas, heaps of its own, and what a large batch took."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from api import process_memory
from api.process_memory import MemoryReturn, give_memory_back, keep_pandas_out, upgrade_apart
from monitoring.store.database import Database
from monitoring.store.errors import StoreUnavailableError
from monitoring.store.migrate import is_current, upgrade

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import importlib.util
import sys
import numpy as np
from api.process_memory import give_memory_back, keep_pandas_out, use_few_heaps
use_few_heaps()
kept_out = keep_pandas_out()
import pyarrow as pa
filled = pa.array(np.array([1.5, 2.5]), mask=np.array([False, True])).to_pylist()
text = pa.array(["a", None]).dictionary_encode().to_pylist()
pool, before = pa.default_memory_pool().backend_name, "pandas" in sys.modules
give_memory_back()
there = importlib.util.find_spec("pandas") is not None  # for whoever asks for it by name
print((kept_out, filled, text, pool, before, there))
"""
INGEST = """
import sys
from api.process_memory import keep_pandas_out
keep_pandas_out()
from monitoring.ingest import parse_arrow_batch, parse_json_batch, payload_of
from tests.monitoring.batch_bodies import arrow_stream, json_rows, row
rows = [row(engine="e", step=1, domain=None), row(explored=True, step=None, domain="code")]
for parse, body in ((parse_arrow_batch, arrow_stream(rows)), (parse_json_batch, json_rows(rows))):
    payload_of(parse(body, 3, engine="f").records)
print(sorted({"pandas", "pyarrow.compute", "pyarrow.parquet"} & set(sys.modules)))
"""


def test_ingest_loads_nothing_more_of_arrow() -> None:
    command = [sys.executable, "-c", INGEST]
    answer = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=120
    )
    assert answer.stdout.strip() == "[]"


def test_arrow_works_without_pandas_and_on_the_common_heap() -> None:
    command = [sys.executable, "-c", SCRIPT]
    answer = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=120
    )
    expected = (True, [1.5, None], ["a", None], "system", False, True)
    assert answer.stdout.strip() == repr(expected)


def test_a_process_with_pandas_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", ModuleType("pandas"))
    finders = list(sys.meta_path)
    assert not keep_pandas_out()
    assert sys.meta_path == finders


def test_without_glibc_there_is_nothing_to_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_memory, "_c_library", lambda: None)
    give_memory_back()


def test_memory_is_given_back_after_use_and_only_then(monkeypatch: pytest.MonkeyPatch) -> None:
    given = threading.Semaphore(0)
    monkeypatch.setattr(process_memory, "give_memory_back", given.release)
    taken = 5_000_000  # before the start: not its business

    async def story() -> tuple[bool, bool, bool]:
        nonlocal taken
        returns = MemoryReturn(lambda: taken, seconds=0.01)
        await returns.stop()  # not started yet
        returns.start()
        await asyncio.sleep(0.05)
        taken += 2**20 - 1
        await asyncio.sleep(0.05)
        early = given.acquire(blocking=False)
        taken += 1
        used = await asyncio.to_thread(given.acquire, True, 30.0)
        await asyncio.sleep(0.05)
        again = given.acquire(blocking=False)
        await returns.stop()
        return early, used, again

    assert asyncio.run(story()) == (False, True, False)


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[Database]:
    store = Database.open(f"sqlite:///{tmp_path / 'empty.db'}")
    yield store
    store.close()


def test_another_process_makes_the_tables(empty: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    upgrade_apart(empty)
    assert is_current(empty)
    monkeypatch.setattr(process_memory, "subprocess", None)  # nothing to do: no process
    upgrade_apart(empty)


def test_what_the_other_process_cannot_do_is_left_to_the_caller(
    empty: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = [sys.executable, "-c", "raise SystemExit(1)"]
    monkeypatch.setattr(process_memory, "child_command", lambda _: failing)
    upgrade_apart(empty)
    assert not is_current(empty)
    upgrade(empty)


def test_a_database_that_is_none_is_told_before(tmp_path: Path) -> None:
    path = tmp_path / "text.db"
    path.write_text("no database at all, but long enough to be read as one" * 100)
    with pytest.raises(StoreUnavailableError):
        upgrade_apart(Database.open(f"sqlite:///{path}"))
