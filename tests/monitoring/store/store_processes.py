"""Real processes at work on one database: ``python -m tests.monitoring.store.store_processes``.

One launcher imports everything once and forks, before anything is opened, as many children as
asked; each opens the database itself. Children print lines of JSON, one for each thing done; what
was printed was done before.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

# Imported here so that forked children find them loaded.
import alembic.command
import alembic.runtime.environment  # noqa: F401
import psycopg  # noqa: F401

from monitoring.store import jobs, publications, telemetry
from monitoring.store.clock import system_clock
from monitoring.store.database import Database
from monitoring.store.drafter_rows import state_of
from monitoring.store.errors import ConflictError, PreconditionFailedError, StoreFullError
from monitoring.store.migrate import is_current, upgrade
from monitoring.store.publications import publication_numbers
from monitoring.store.revisions import add_revision, get_revision
from tests.monitoring.store.store_fixtures import (
    batch,
    document,
    registered,
    temperatures,
)

ROOT = Path(__file__).resolve().parents[3]
LIMIT_SECONDS = 400.0


def say(**values: Any) -> None:
    """One line, written at once: shorter than a pipe's buffer, so never mixed with others."""
    os.write(1, (json.dumps(values) + "\n").encode())


def upgrades(index: int, url: str) -> None:
    """Bring an empty database to the newest form and use it."""
    database = Database.open(url)
    upgrade(database)
    registered(database, f"drafter-{index}")
    say(index=index, current=is_current(database))


def writes(index: int, url: str, *, each: int, rows: int = 1) -> None:
    """Store ``each`` batches, one commit each, telling each one after its commit."""
    database = Database.open(url)
    for number in range(each):
        name = f"{index}-{number}"
        given = batch(engine=name, rows=rows, key=name, received_at=system_clock())
        found = database.run(partial(telemetry.store_batches, batches=[given]))
        say(index=index, engine=name, id=found[0])
    database.close()


def repeats(index: int, url: str, *, keys: int) -> None:
    """Store batches under keys that every process uses, in an order of its own."""
    database = Database.open(url)
    for number in range(keys):
        name = f"key-{(number + index) % keys}"
        given = [batch(engine=f"{index}", key=name, received_at=system_clock())]
        try:
            database.run(partial(telemetry.store_batches, batches=given))
        except ConflictError:
            continue
        say(index=index, key=name)


def promotes(index: int, url: str, *, rounds: int) -> None:
    """Publish with the version last seen, as often as ``rounds``, telling which attempts won."""
    database = Database.open(url)
    for _ in range(rounds):
        with database.read() as connection:
            version = state_of(connection, "code").drafter.version
        try:
            published = database.run(partial(_publish, version=version))
        except PreconditionFailedError:
            say(index=index, lost=version)
        else:
            say(index=index, won=version, publication=published.number)


def _publish(connection: Any, version: int | None) -> publications.Publication:
    made = add_revision(connection, "code", temperatures(1.5, 2, 3), provenance={}, actor="tests")
    return publications.publish(
        connection,
        "code",
        made.number,
        expected_version=version,
        actor="tests",
        reason="test",
        document=document,
    )


def leases(index: int, url: str) -> None:
    """Lease and finish jobs until none is left, telling when each began and ended."""
    database = Database.open(url)
    owner = f"worker-{index}"
    idle = 0
    while idle < 20:
        job = database.run(lambda connection: jobs.lease_next(connection, database, owner))
        if job is None:
            idle += 1
            time.sleep(0.02)
            continue
        say(index=index, job=job.id, drafter=job.drafter, began=time.monotonic())
        time.sleep(0.01)
        ended = time.monotonic()
        database.run(partial(jobs.finish, job=job, status="succeeded"))
        say(index=index, job=job.id, drafter=job.drafter, ended=ended)


def locks(_index: int, url: str, *, seconds: float) -> None:
    """Hold the write lock of a SQLite database for a while."""
    database = Database.open(url)
    with database.write():
        say(locked=True)
        time.sleep(seconds)


def works(index: int, url: str) -> None:
    """Ingest and publish until killed, telling each thing after its commit."""
    database = Database.open(url)
    with database.read() as connection:
        say(index=index, resumed=publication_numbers(connection)["code"])
    number = 0
    while True:
        names = [f"{index}-{number}-{part}" for part in range(3)]
        given = [batch(engine=name, key=name) for name in names]
        database.run(partial(telemetry.store_batches, batches=given))
        say(index=index, stored=names)
        published = database.run(partial(_publish, version=None))
        say(index=index, publication=published.number, document=published.document.decode())
        number += 1


def dies(_index: int, url: str, *, rounds: int, seed: int) -> None:
    """Let one process after another work on the database and kill each at a random moment.

    The moment lies shortly after a random one of its first lines, so that slow machines kill at
    the same places as fast ones.
    """
    moments = random.Random(seed)
    for index in range(rounds):
        source, sink = os.pipe()
        child = os.fork()
        if child == 0:
            os.dup2(sink, 1)
            os._exit(_child("works", index, url, {}))
        os.close(sink)
        with os.fdopen(source) as heard:
            lines = [heard.readline() for _ in range(moments.randint(0, 8))]
            time.sleep(moments.uniform(0.0, 0.05))
            os.kill(child, signal.SIGKILL)
            lines += heard.readlines()
        os.write(1, "".join(lines).encode())
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != -signal.SIGKILL:
            raise RuntimeError("the process ended before it was killed")


def waits(_index: int, url: str) -> None:
    """Store 300 rows and publish once, then stay connected until killed."""
    database = Database.open(url)
    for number in range(3):
        given = [batch(rows=100, key=f"{number}")]
        database.run(partial(telemetry.store_batches, batches=given))
    published = database.run(partial(_publish, version=None))
    with database.read() as connection:
        state = state_of(connection, "code")
        digest = get_revision(connection, "code", published.revision).calibration.digest
        say(version=state.drafter.version, digest=digest, document=published.document.decode())
        time.sleep(LIMIT_SECONDS)


def fills(_index: int, url: str) -> None:
    """Write until a small disk is full, make room, and go on with the same database."""
    database = Database.open(url)
    upgrade(database)
    registered(database)
    folder = Path(str(database.engine.url.database)).parent
    ballast = folder / "ballast"
    stored: list[int] = []
    payload = os.urandom(20_000)
    with ballast.open("wb") as file:
        file.write(b"\0" * 600_000)
    try:
        for _ in range(1000):
            given = [batch(payload=payload)]
            stored += database.run(partial(telemetry.store_batches, batches=given))
    except StoreFullError as error:
        say(full=str(error), stored=stored)
    with database.read() as connection:
        kept = [found.id for found in telemetry.batches_after(connection, "code", 0)]
        say(readable=kept, whole=connection.exec_driver_sql("PRAGMA integrity_check").scalar())
    ballast.unlink()
    more = database.run(partial(telemetry.store_batches, batches=[batch(payload=payload)]))
    say(recovered=more)


TASKS: dict[str, Callable[..., None]] = {
    task.__name__: task
    for task in (upgrades, writes, repeats, promotes, leases, locks, works, dies, waits, fills)
}


def run(
    task: str, url: str, *, count: int = 1, before: tuple[str, ...] = (), **options: Any
) -> list[dict[str, Any]]:
    """Everything that ``count`` children said until all of them ended well.

    ``before`` stands before the command, as a program that starts it.
    """
    done = subprocess.run(
        [*before, *_command(task, url, count, options)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    if done.returncode:
        raise AssertionError(f"a {task} process failed:\n{done.stderr}")
    return [json.loads(line) for line in done.stdout.splitlines()]


@contextmanager
def running(task: str, url: str, *, count: int = 1, **options: Any) -> Iterator[Any]:
    """Children at work; ``stdout`` carries what they say. All are killed at the end."""
    command = _command(task, url, count, options)
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(LIMIT_SECONDS)
        if process.stdout is not None:
            process.stdout.close()


def _command(task: str, url: str, count: int, options: dict[str, Any]) -> list[str]:
    module = "tests.monitoring.store.store_processes"
    return [sys.executable, "-m", module, task, url, str(count), json.dumps(options)]


def _child(task: str, index: int, url: str, options: dict[str, Any]) -> int:
    try:
        TASKS[task](index, url, **options)
    except BaseException:  # noqa: BLE001 - a process reports and ends
        traceback.print_exc()
        sys.stderr.flush()
        return 1
    return 0


def main(task: str, url: str, count: str, options: str) -> int:
    """Fork the children and wait for them: 0 when all ended well."""
    children = []
    for index in range(int(count)):
        child = os.fork()
        if child == 0:
            os._exit(_child(task, index, url, json.loads(options)))
        children.append(child)
    return max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
