"""Run the API in this process: ``python -m api.server``, or :func:`run` from the command line.

SIGTERM and SIGINT end it in order: no new connections, held polls are let go, requests and commits
are finished, exit code 0. A second signal, or time running out, ends it at once. What runs beside
it hears of the signal when it comes, so that all share one shutdown time.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING

from api.lean_imports import absent  # before what it loads

# isort: split
import structlog
import uvicorn

from api.app import create_app, prepare
from api.http_protocol import LimitedHttpProtocol
from api.logs import configure_logs
from api.process_memory import give_memory_back, keep_pandas_out, upgrade_apart, use_few_heaps
from api.settings import load_settings
from calib.errors import CalibrationError, ConfigurationError
from monitoring.store.database import Database

if TYPE_CHECKING:
    from fastapi import FastAPI

    from api.settings import Settings

__all__ = ["leave_within", "listening_socket", "main", "run"]

_BACKLOG = 4096  # a fleet that was woken at once may connect at once
# Engines poll every few seconds; a connection that stays open saves each of them a handshake.
_KEEP_ALIVE_SECONDS = 75
_BAD_START = 2
_HUNG = 1
_TAIL_SECONDS = 5.0  # for the interpreter to end, once everything else has


class _Server(uvicorn.Server):
    """uvicorn's server, ended by signals without dying of them."""

    def __init__(
        self,
        config: uvicorn.Config,
        app: FastAPI,
        shutdown_seconds: float,
        on_start: Callable[[], None],
        on_signal: Callable[[], None],
    ) -> None:
        super().__init__(config)
        self._app = app
        self._shutdown_seconds = shutdown_seconds
        self._on_start = on_start
        self._on_signal = on_signal
        self._deadline: threading.Timer | None = None
        self._log = structlog.get_logger("api.server")

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to answer, and say so."""
        await super().startup(sockets)
        if self.started:
            self._on_start()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals on the event loop for as long as the server runs."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        handled = (signal.SIGINT, signal.SIGTERM)
        for number in handled:
            loop.add_signal_handler(number, self._end, number)
        try:
            yield
        finally:
            for number in handled:
                loop.remove_signal_handler(number)

    def _end(self, number: signal.Signals) -> None:
        if self.should_exit:
            self.force_exit = True
            return
        self._log.info("shutting down", signal=number.name)
        self.should_exit = True
        self._deadline = leave_within(self._shutdown_seconds)
        self._on_signal()
        # Before the polls are let go, so that their answers say that the connection closes.
        for connection in list(self.server_state.connections):
            connection.shutdown()
        feed = getattr(self._app.state, "feed", None)
        if feed is not None:
            feed.release()

    def finished(self) -> None:
        """Everything has ended in time."""
        if self._deadline is not None:
            self._deadline.cancel()


def run(
    settings: Settings,
    *,
    on_start: Callable[[], None] = lambda: None,
    on_signal: Callable[[], None] = lambda: None,
) -> None:
    """Serve until a signal comes; returns when everything is finished.

    Args:
        settings: how it runs.
        on_start: called once when requests are answered; it must return at once.
        on_signal: called once when the signal comes; it must return at once.

    Raises:
        ConfigurationError: the address is taken or is none, or the service may not start without
            tokens.
        StoreError: the database cannot be used.
    """
    configure_logs(settings.log_level, settings.log_format)
    use_few_heaps()
    keep_pandas_out()
    # The socket first: a second instance must not migrate the first one's tables.
    listener = listening_socket(settings.host, settings.port)
    # FastAPI asks of every model whether it is one of pydantic.v1, which loads it: 1.4 MiB.
    with listener, absent("pydantic.v1"):
        database = _prepared(settings)
        app = create_app(settings, database)
        # What was loaded stays loaded: without this a full collection goes through all of it while
        # polls wait, and once more at the end of the process.
        gc.collect()
        gc.freeze()
        give_memory_back()
        configuration = _configuration(app, settings)
        server = _Server(configuration, app, settings.shutdown_seconds, on_start, on_signal)
        try:
            structlog.get_logger("api.server").info("listening", url=_url(listener))
            server.run(sockets=[listener])
        finally:
            database.close()
            server.finished()


def _prepared(settings: Settings) -> Database:
    with closing(Database.open(settings.database_url)) as database:
        upgrade_apart(database)
    return prepare(settings)


def listening_socket(host: str, port: int) -> socket.socket:
    """A socket that listens on this address; port 0 takes a free one.

    Raises:
        ConfigurationError: another process listens there, or this machine has no such address.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise ConfigurationError("host", host, f"is no address: {error.strerror}") from error
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        # Here, not in the server: of two that have bound, the second fails only when it listens.
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        reason = error.strerror or str(error)
        remedy = f"cannot listen on {host}:{port} ({reason}); stop what does, or set another port"
        raise ConfigurationError("port", port, remedy) from error
    listener.setblocking(False)
    return listener


def main() -> int:
    """Serve with the settings of environment and file; the process's exit code."""
    try:
        run(load_settings())
    except CalibrationError as error:
        sys.stderr.write(f"error: {error}\n")
        return _BAD_START
    leave_within(_TAIL_SECONDS)
    return 0


def leave_within(seconds: float = _TAIL_SECONDS) -> threading.Timer:
    """End the process after ``seconds``, whatever hangs; commits that run are then rolled back.

    Returns:
        The timer, to be cancelled where the process ends in order.
    """

    def end() -> None:
        with suppress(Exception):
            structlog.get_logger("api.server").error("not ended in time", seconds=seconds)
        os._exit(_HUNG)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    return timer


def _configuration(app: FastAPI, settings: Settings) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=LimitedHttpProtocol,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # nobody asks for the client's address
        backlog=_BACKLOG,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        # The rest is for commits and for what the application ends afterwards.
        timeout_graceful_shutdown=max(1, int(settings.shutdown_seconds * 0.6)),
    )


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{port}"


if __name__ == "__main__":
    sys.exit(main())
