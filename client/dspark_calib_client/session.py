"""Two daemon threads from start to stop: one polls, one sends telemetry."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dspark_calib_client.bounded_http import BoundedHttp
from dspark_calib_client.configuration import Configuration
from dspark_calib_client.counters import Counters
from dspark_calib_client.knowledge import Knowledge
from dspark_calib_client.last_known_good import LastKnownGoodFile
from dspark_calib_client.poller import Poller, Reports
from dspark_calib_client.row_queue import RowQueue
from dspark_calib_client.telemetry_options import TelemetryOptions
from dspark_calib_client.uploader import Uploader
from dspark_calib_client.version import VERSION

__all__ = ["Session", "Shared"]

_LOG = logging.getLogger("dspark_calib_client")
_LAST_WORD = 0.2  # seconds of a stop kept for ending what does not end by itself


@dataclass(frozen=True)
class Shared:
    """What outlives a session, and is used by its threads and by callers.

    Attributes:
        knowledge: what the service said.
        file: the last-known-good file, or None.
        queue: rows that wait.
        counters: of everything.
        wall_clock: seconds since the epoch.
        monotonic: seconds that never go back.
    """

    knowledge: Knowledge
    file: LastKnownGoodFile | None
    queue: RowQueue
    counters: Counters
    wall_clock: Callable[[], float]
    monotonic: Callable[[], float]


class Session:
    """Runs a poller and an uploader.

    A session is used once: whatever a thread that could not be ended still holds is its own, and
    the next session has new connections.
    """

    def __init__(
        self,
        configuration: Configuration,
        options: TelemetryOptions,
        shared: Shared,
        reports: Reports,
        *,
        upload_parameters: Callable[[], Mapping[str, str]],
        may_send: Callable[[], bool],
    ) -> None:
        self._poll_http = _new_http(configuration)
        self._send_http = _new_http(configuration)
        self.poller = Poller(
            configuration,
            self._poll_http,
            shared.knowledge,
            shared.file,
            shared.counters,
            reports,
            wall_clock=shared.wall_clock,
            monotonic=shared.monotonic,
        )
        self.uploader = Uploader(
            configuration,
            options,
            self._send_http,
            shared.queue,
            shared.counters,
            parameters=upload_parameters,
            may_send=may_send,
        )
        self._stop = threading.Event()
        self._loaded = threading.Event()
        self._threads = [
            threading.Thread(target=self._poll, name="dspark-calib-poller", daemon=True),
            threading.Thread(target=self._send, name="dspark-calib-uploader", daemon=True),
        ]

    def start(self, file_seconds: float) -> None:
        """Start both threads; wait for the last-known-good file, but no longer than that.

        Raises:
            RuntimeError: the system has no more threads.
        """
        for thread in self._threads:
            thread.start()
        self._loaded.wait(file_seconds)

    def stop(self, timeout: float) -> bool:
        """End both threads within ``timeout``; whether they ended."""
        ends = time.monotonic() + timeout
        self.uploader.finish(max(0.0, timeout - _LAST_WORD))
        self._stop.set()
        self._poll_http.abort()
        self.poller.wake.set()
        self.uploader.hurry()
        poller, uploader = self._threads
        self._join(uploader, ends - _LAST_WORD)
        if uploader.is_alive():
            self._send_http.abort()
        self._join(uploader, ends)
        self._join(poller, ends)
        return not any(thread.is_alive() for thread in self._threads)

    def is_alive(self) -> bool:
        """Whether both threads run."""
        return all(thread.is_alive() for thread in self._threads)

    def leave_to_parent(self) -> None:
        """In a child process: the threads are gone, and the connections are the parent's."""
        self._poll_http.reset_after_fork()
        self._send_http.reset_after_fork()

    def _join(self, thread: threading.Thread, ends: float) -> None:
        # A listener that stops the client runs in the poller itself.
        if thread is not threading.current_thread() and thread.ident is not None:
            thread.join(max(0.0, ends - time.monotonic()))

    def _poll(self) -> None:
        try:
            self.poller.load_file()
        except Exception:  # noqa: BLE001  (the engine starts without the file)
            _LOG.exception("the last-known-good file failed in an unforeseen way")
        finally:
            self._loaded.set()
        self.poller.run(self._stop)

    def _send(self) -> None:
        self.uploader.run(self._stop)


def _new_http(configuration: Configuration) -> BoundedHttp:
    return BoundedHttp(
        token=configuration.token,
        user_agent=f"dspark-calib-client/{VERSION}",
        verify=configuration.verify,
        proxy=configuration.proxy,
    )
