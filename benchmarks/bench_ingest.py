"""Ingest side by side: JSON and Arrow, validation and commit, groups and single commits.

    python benchmarks/bench_ingest.py [--rows 100000] [--batch-rows 5000] [--repeats 5]
                                      [--only stages group service] [--out result.json]

* stages: microseconds of CPU a row, best of ``--repeats`` (other work on the machine only adds), of
  each step from received bytes to a durable row in SQLite (WAL, ``synchronous=FULL``), and the rows
  a second of one core that follow. The same rows in every form. Beside it the obvious service: the
  standard library's JSON, one pydantic model a row, one ``executemany`` and commit a batch, stored
  as rows. It checks types and ranges of single cells only.
* group: small batches from many senders at once through the queue, beside one commit each.
* service: a real server process on loopback; rows a second by the clock and by its own CPU time.

Rows have γ = 7 and the twelve columns an engine usually sends; telemetry itself is simulated.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import os
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated, Any

os.environ["OMP_NUM_THREADS"] = "1"  # read when NumPy loads
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import httpx
import numpy as np
import pyarrow as pa
import zstandard
from pydantic import BaseModel, ConfigDict, Field

from api.ingest_queue import IngestQueue
from benchmarks.measurement import machine_facts
from calib.formats.arrow import ipc_from_records, table_from_records
from calib.records import AcceptanceRecords
from monitoring.ingest import parse_arrow_batch, parse_json_batch, payload_of
from monitoring.store.database import Database
from monitoring.store.migrate import upgrade
from monitoring.store.telemetry import BatchToStore, counters, store_batches
from tests.monitoring.store.store_fixtures import KEY, registered
from tests.service_process import ServiceProcess

GAMMA = 7
DRAFTER = "code"
ARROW = {"Content-Type": "application/vnd.apache.arrow.stream"}
JSON = {"Content-Type": "application/json"}


def telemetry(rows: int) -> AcceptanceRecords:
    """Rows as one engine would send them: 20 blocks a request, two domains."""
    draw = np.random.default_rng(0)
    verified = draw.integers(0, GAMMA + 1, rows)
    number = np.arange(rows)
    columns = {
        "confidence_logits": draw.normal(1.0, 1.5, (rows, GAMMA)).astype(np.float32),
        "verified": verified,
        "accepted": np.minimum(verified, draw.integers(0, GAMMA + 1, rows)),
        "revision": np.full(rows, 3),
        "sampling_temperature": np.full(rows, 0.7),
        "domain": draw.choice(["code", "chat"], rows).astype(object),
        "acceptance_rule": np.full(rows, "rejection", dtype=object),
        "scheduled": verified,
        "engine": np.full(rows, "engine-1", dtype=object),
        "step": 1000 + number % 20,
        "request": np.array([f"{k // 20:016x}" for k in range(rows)], dtype=object),
        "timestamp": 1.7e9 + number / 100,
    }
    return AcceptanceRecords.from_columns(GAMMA, columns)


def sent_columns(records: AcceptanceRecords) -> dict[str, list[Any]]:
    """Columns as an engine writes them: what is default stays out, six digits for the rest."""
    left_out = ("explored", "propensity", "anticipating", "flags")
    columns = {n: c.tolist() for n, c in records.columns().items() if n not in left_out}
    logits = columns["confidence_logits"]
    columns["confidence_logits"] = [[float(f"{z:.6g}") for z in row] for row in logits]
    return columns


def bodies(records: AcceptanceRecords) -> dict[str, bytes]:
    """The same rows in every form."""
    columns = sent_columns(records)
    names = list(columns)
    rows = [dict(zip(names, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]
    table = table_from_records(records)
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return {
        "json_rows": json.dumps({"gamma": GAMMA, "rows": rows}, separators=(",", ":")).encode(),
        "json_columns": json.dumps(
            {"gamma": GAMMA, "columns": columns}, separators=(",", ":")
        ).encode(),
        "arrow": ipc_from_records(records),
        "arrow_zstd": bytes(sink.getvalue()),
    }


def parse(form: str, body: bytes) -> AcceptanceRecords:
    read = parse_arrow_batch if form.startswith("arrow") else parse_json_batch
    parsed = read(body, GAMMA)
    if parsed.rejected_total or parsed.duplicates:
        raise RuntimeError("the rows of the benchmark are all good")
    return parsed.records


@contextmanager
def fresh_database() -> Iterator[tuple[Database, Path]]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store.db"
        database = Database.open(f"sqlite:///{path}")
        upgrade(database)
        registered(database, DRAFTER, _key())
        yield database, path
        database.close()


def _key() -> Any:
    from dataclasses import replace

    return replace(KEY, gamma=GAMMA)


def batch_of(payload: bytes, rows: int) -> BatchToStore:
    return BatchToStore(DRAFTER, "engine-1", payload, rows, 0, time.time(), None, b"{}")


# Stages ----------------------------------------------------------------------------------------


class Timer:
    """CPU and wall seconds of named steps: the least of all rounds."""

    def __init__(self) -> None:
        self.cpu: dict[str, float] = {}
        self.wall: dict[str, float] = {}

    def __call__(self, name: str, work: Callable[[], Any]) -> Any:
        wall, cpu = time.perf_counter(), time.process_time()
        result = work()
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        self.cpu[name] = min(cpu, self.cpu.get(name, cpu))
        self.wall[name] = min(wall, self.wall.get(name, wall))
        return result


class ObviousRow(BaseModel):
    """What a service checks that was written in an afternoon."""

    model_config = ConfigDict(strict=True, extra="forbid")

    confidence_logits: Annotated[
        list[Annotated[float, Field(allow_inf_nan=False)]],
        Field(min_length=GAMMA, max_length=GAMMA),
    ]
    verified: Annotated[int, Field(ge=0, le=GAMMA)]
    accepted: Annotated[int, Field(ge=0, le=GAMMA)]
    revision: int = 0
    sampling_temperature: float | None = None
    domain: str | None = None
    acceptance_rule: str | None = None
    scheduled: int | None = None
    engine: str | None = None
    step: int | None = None
    request: str | None = None
    timestamp: float | None = None


def obvious(timer: Timer, body: bytes, path: Path) -> None:
    """The baseline, step by step."""
    rows = timer(
        "obvious_validate", lambda: [ObviousRow(**row) for row in json.loads(body)["rows"]]
    )
    names = list(ObviousRow.model_fields)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute(f"CREATE TABLE IF NOT EXISTS obvious ({', '.join(names)})")
        places = ", ".join("?" * len(names))

        def insert() -> None:
            cells = (
                [json.dumps(row.confidence_logits), *(getattr(row, n) for n in names[1:])]
                for row in rows
            )
            connection.executemany(f"INSERT INTO obvious VALUES ({places})", cells)
            connection.commit()

        timer("obvious_commit", insert)


def stages(rows: int, batch_rows: int, repeats: int) -> dict[str, Any]:
    records = telemetry(rows)
    starts = range(0, rows, batch_rows)
    parts = [bodies(records.select(slice(start, start + batch_rows))) for start in starts]
    timer = Timer()
    with fresh_database() as (database, path):
        for _ in range(repeats):
            for form in parts[0]:
                _one_form(timer, form, [part[form] for part in parts], batch_rows, database)
            obvious(timer, parts[0]["json_rows"], path)
    return _stage_report(timer, parts, rows, min(batch_rows, rows))


def _one_form(
    timer: Timer, form: str, sent: list[bytes], batch_rows: int, database: Database
) -> None:
    parsed = timer(f"{form}_validate", lambda: [parse(form, body) for body in sent])
    payloads = timer(f"{form}_encode", lambda: [payload_of(records) for records in parsed])

    def commit() -> None:
        for records, payload in zip(parsed, payloads, strict=True):
            batch = [batch_of(payload, len(records))]
            database.run(lambda connection, batch=batch: store_batches(connection, batch))

    timer(f"{form}_commit", commit)


def _stage_report(
    timer: Timer, parts: list[dict[str, bytes]], rows: int, batch_rows: int
) -> dict[str, Any]:
    report: dict[str, Any] = {}
    for form in (*parts[0], "obvious"):
        counted = batch_rows if form == "obvious" else rows
        steps = {
            name.removeprefix(f"{form}_"): seconds
            for name, seconds in timer.cpu.items()
            if name.startswith(f"{form}_") and name.count("_") == form.count("_") + 1
        }
        total = sum(steps.values())
        report[form] = {
            "rows_per_cpu_second": round(counted / total),
            "microseconds_per_row": {n: round(1e6 * s / counted, 3) for n, s in steps.items()},
            "commit_share": round(steps["commit"] / total, 3),
            "commit_wall_microseconds_per_row": round(
                1e6 * timer.wall[f"{form}_commit"] / counted, 3
            ),
        }
        if form != "obvious":
            size = sum(len(part[form]) for part in parts)
            report[form]["body_bytes_per_row"] = round(size / rows, 1)
    speeds = {form: entry["rows_per_cpu_second"] for form, entry in report.items()}
    report["ratios"] = {
        "arrow / json_rows": round(speeds["arrow"] / speeds["json_rows"], 1),
        "arrow / json_columns": round(speeds["arrow"] / speeds["json_columns"], 1),
        "json_rows / obvious": round(speeds["json_rows"] / speeds["obvious"], 1),
        "arrow / obvious": round(speeds["arrow"] / speeds["obvious"], 1),
    }
    return report


# Group commit ----------------------------------------------------------------------------------


def group(batches: int, senders: int) -> dict[str, Any]:
    """Batches of 50 rows from ``senders`` at once, each sending its next when it has heard."""
    records = telemetry(50)
    payload = payload_of(records)
    report: dict[str, Any] = {"batches": batches, "senders": senders, "rows_per_batch": 50}
    with fresh_database() as (database, _):
        started = time.perf_counter()
        for _ in range(batches):
            batch = [batch_of(payload, 50)]
            database.run(lambda connection, batch=batch: store_batches(connection, batch))
        single = time.perf_counter() - started
    with fresh_database() as (database, _):
        grouped, latencies = asyncio.run(_through_queue(database, payload, batches, senders))
        with database.read() as connection:
            if counters(connection, DRAFTER).batches != batches:
                raise RuntimeError("a batch was lost")
    report["one_commit_each"] = {"batches_per_second": round(batches / single)}
    report["queue"] = {
        "batches_per_second": round(batches / grouped),
        "median_milliseconds": round(1e3 * float(np.median(latencies)), 2),
        "p99_milliseconds": round(1e3 * float(np.quantile(latencies, 0.99)), 2),
    }
    report["ratio"] = round(single / grouped, 1)
    return report


async def _through_queue(
    database: Database, payload: bytes, batches: int, senders: int
) -> tuple[float, list[float]]:
    queue = IngestQueue(database, max_pending_bytes=2**28, max_wait_ms=5)
    latencies: list[float] = []

    async def sender(count: int) -> None:
        for _ in range(count):
            sent = time.perf_counter()
            await queue.submit(batch_of(payload, 50))
            latencies.append(time.perf_counter() - sent)

    started = time.perf_counter()
    shares = [batches // senders + (k < batches % senders) for k in range(senders)]
    await asyncio.gather(*[sender(share) for share in shares])
    seconds = time.perf_counter() - started
    await queue.close(30.0)
    return seconds, latencies


# Service ---------------------------------------------------------------------------------------


def service(rows: int, batch_rows: int, senders: int) -> dict[str, Any]:
    """Rows through HTTP into a server process, in every form, one form after the other."""
    part = bodies(telemetry(batch_rows))
    kinds = {
        "arrow": (ARROW, part["arrow"]),
        "arrow, zstd body": (
            ARROW | {"Content-Encoding": "zstd"},
            zstandard.ZstdCompressor(level=1).compress(part["arrow"]),
        ),
        "json rows": (JSON, part["json_rows"]),
        "json rows, gzip body": (
            JSON | {"Content-Encoding": "gzip"},
            gzip.compress(part["json_rows"], 1),
        ),
        "json columns": (JSON, part["json_columns"]),
    }
    report: dict[str, Any] = {"rows_per_batch": batch_rows, "senders": senders}
    with tempfile.TemporaryDirectory() as folder:
        process = ServiceProcess(f"sqlite:///{folder}/store.db")
        try:
            body = {"key": _key().to_dict()}
            path = f"{process.url}/v1/drafters/{DRAFTER}"
            httpx.put(path, json=body, timeout=60).raise_for_status()
            for name, (headers, content) in kinds.items():
                send = _sending(f"{path}/telemetry", headers, content, senders)
                asyncio.run(send(senders))  # threads started, memory touched
                report[name] = _measured(process, send, max(senders, rows // batch_rows))
                report[name]["rows_per_second"] = round(
                    report[name].pop("batches_per_second") * batch_rows
                )
                report[name]["rows_per_cpu_second"] = round(
                    report[name].pop("batches_per_cpu_second") * batch_rows
                )
            report["resident_megabytes"] = round(process.memory_bytes() / 1e6)
            process.stop()
        finally:
            process.kill()
    return report


def _sending(
    url: str, headers: dict[str, str], content: bytes, senders: int
) -> Callable[[int], Any]:
    async def send(batches: int) -> None:
        async with httpx.AsyncClient(timeout=120) as client:

            async def sender(count: int) -> None:
                for _ in range(count):
                    answer = await client.post(url, content=content, headers=headers)
                    answer.raise_for_status()

            shares = [batches // senders + (k < batches % senders) for k in range(senders)]
            await asyncio.gather(*[sender(share) for share in shares])

    return send


def _measured(process: ServiceProcess, send: Callable[[int], Any], batches: int) -> dict[str, Any]:
    wall, cpu = time.perf_counter(), process.cpu_seconds()
    asyncio.run(send(batches))
    cpu, wall = process.cpu_seconds() - cpu, time.perf_counter() - wall
    return {"batches_per_second": batches / wall, "batches_per_cpu_second": batches / cpu}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parts = ("stages", "group", "service")
    parser.add_argument("--only", nargs="+", choices=parts, default=parts)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--batch-rows", type=int, default=5000)
    parser.add_argument("--batches", type=int, default=500)
    parser.add_argument("--senders", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    work: dict[str, Callable[[], Any]] = {
        "stages": lambda: stages(options.rows, options.batch_rows, options.repeats),
        "group": lambda: group(options.batches, options.senders),
        "service": lambda: service(options.rows, options.batch_rows, 4),
    }
    result: dict[str, Any] = {
        "machine": machine_facts() | {"pyarrow": pa.__version__, "sqlite": sqlite3.sqlite_version}
    }
    for name in options.only:
        result[name] = work[name]()
        print(json.dumps({name: result[name]}, indent=2), flush=True)
    if options.out:
        options.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
