"""A throw-away PostgreSQL: a real server on a free port, its files in a temporary folder.

PostgreSQL refuses to run as root. A test run as root starts it as ``postgres`` or ``nobody``.
"""

from __future__ import annotations

import atexit
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any, Self

import psycopg

OPT_OUT = "DSPARK_CALIB_NO_POSTGRES"
SEARCHED = ("/usr/lib/postgresql", "/usr/local/pgsql", "/opt/homebrew/opt", "/usr/local/opt")
START_SECONDS = 60.0
ROOM_BYTES = 1 << 30


class PostgresMissingError(RuntimeError):
    """No PostgreSQL is installed on this machine."""


def binaries() -> Path:
    """The folder of ``initdb`` and ``postgres``, the newest version where there are several."""
    on_path = shutil.which("initdb")
    found = [] if on_path is None else [Path(on_path).resolve().parent]
    for root in SEARCHED:
        found += sorted(
            (path.parent for path in Path(root).glob("*/bin/initdb")),
            key=lambda path: [int(part) for part in path.parent.name.split(".") if part.isdigit()],
            reverse=True,
        )
    for folder in found:
        if (folder / "postgres").exists():
            return folder
    raise PostgresMissingError(
        "these tests need PostgreSQL: install it (Debian: apt-get install postgresql), "
        f"or set {OPT_OUT}=1 to leave them out"
    )


def _identity() -> dict[str, Any]:
    """Arguments of ``subprocess`` that make a child of root somebody else."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        try:
            user = pwd.getpwnam(name)
        except KeyError:
            continue
        return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    raise PostgresMissingError("PostgreSQL refuses to run as root, and nobody else is here")


class PostgresServer:
    """One cluster. ``with PostgresServer.created() as server`` starts and removes it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = 0
        self._bin = binaries()
        self._as = _identity()
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: subprocess.Popen[bytes] | None = None

    @classmethod
    def created(cls) -> Self:
        """A running server with an empty cluster."""
        folder = Path(tempfile.mkdtemp(prefix="dspark-calib-postgres-", dir=_memory()))
        server = cls(folder)
        try:
            server._create()
            server.start()
        except BaseException:
            server.remove()
            raise
        return server

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def url(self, database: str = "postgres") -> str:
        """SQLAlchemy's address of a database."""
        return f"postgresql+psycopg://postgres@127.0.0.1:{self.port}/{database}"

    def connect(self, database: str = "postgres") -> psycopg.Connection[Any]:
        """A connection of its own that commits each statement."""
        return psycopg.connect(
            host="127.0.0.1",
            port=self.port,
            user="postgres",
            dbname=database,
            autocommit=True,
            connect_timeout=5,
        )

    def create_database(self, name: str, template: str = "template1") -> str:
        """The address of a new database, a copy of ``template``."""
        with self.connect() as connection:
            connection.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
        return self.url(name)

    def drop_database(self, name: str) -> None:
        """Remove a database and cut its connections."""
        with self.connect() as connection:
            connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def start(self) -> None:
        """Start on the port it had, or at first on a free one; return when it answers."""
        self.port = self.port or _free_port()
        settings = {
            "port": self.port,
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "max_connections": 100,
            # A test kills processes, not the machine: what the kernel has is safe enough.
            "fsync": "off",
            "full_page_writes": "off",
        }
        arguments = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._bin / "postgres", "-D", self.folder / "data", *arguments],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches the tests first, which then stop it
                **self._as,
            )
        self._watch(self._process.pid)
        self._wait()

    def stop(self, *, immediately: bool = False) -> None:
        """Stop it: with a shutdown that rolls back and closes, or like a crash."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal.SIGQUIT if immediately else signal.SIGINT)
        try:
            process.wait(START_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(START_SECONDS)
        if self._watcher is not None:
            self._watcher.kill()
            self._watcher.communicate()

    def restart(self, *, immediately: bool = False) -> None:
        """Stop and start again on the same port; connections break."""
        self.stop(immediately=immediately)
        self.start()

    def remove(self) -> None:
        """Stop it and delete its files."""
        self.stop(immediately=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _create(self) -> None:
        if self._as:
            os.chown(self.folder, self._as["user"], self._as["group"])
        command: list[str | Path] = [
            self._bin / "initdb",
            "-D",
            self.folder / "data",
            "-U",
            "postgres",
            "-A",
            "trust",
        ]
        command += ["-E", "UTF8", "--locale=C", "--no-sync"]
        done = subprocess.run(
            command, cwd=self.folder, capture_output=True, text=True, check=False, **self._as
        )
        if done.returncode:
            raise RuntimeError(f"initdb failed:\n{done.stdout}{done.stderr}")

    def _watch(self, server: int) -> None:
        """Have the server stopped and its files removed if this process is killed."""
        script = 'read -r line; kill -QUIT "$1" && sleep 2; rm -rf "$2"'  # the pipe ends with us
        command: list[str | Path] = ["sh", "-c", script, "sh", str(server), self.folder]
        self._watcher = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)

    def _wait(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                self.connect().close()
            except psycopg.OperationalError as error:
                ended = self._process is None or self._process.poll() is not None
                if ended or time.monotonic() > deadline:
                    log = (self.folder / "log").read_text(errors="replace")[-4000:]
                    raise RuntimeError(f"PostgreSQL does not answer:\n{log}") from error
                time.sleep(0.05)
            else:
                return


@cache
def shared_server() -> PostgresServer:
    """The one server of this test process, started at the first call and removed at its end.

    Raises:
        PostgresMissingError: naming what to install.
    """
    server = PostgresServer.created()
    atexit.register(server.remove)
    return server


def dialects() -> tuple[str, ...]:
    """What a test of the store runs on: both, unless the environment opts out of PostgreSQL."""
    return ("sqlite",) if os.environ.get(OPT_OUT) == "1" else ("sqlite", "postgresql")


def _memory() -> Path | None:
    """A folder in memory where there is room: making and dropping databases is a hundred files."""
    folder = Path("/dev/shm")
    if not os.access(folder, os.W_OK) or shutil.disk_usage(folder).free < ROOM_BYTES:
        return None
    return folder


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
