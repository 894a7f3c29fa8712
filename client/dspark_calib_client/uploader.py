"""The uploader: takes rows from an engine's step without delay, and sends them when it can.

A batch is sent until the service says that it is stored (202), with one ``Idempotency-Key``, so
that a retry after a lost answer stores nothing twice. It is given up when the service refuses it,
when the retry time is over, when the client stops, and when it turns out that the rows belong to
another key.
"""

from __future__ import annotations

import json
import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from dspark_calib_client.backoff import Backoff, retry_after_seconds
from dspark_calib_client.batch_bodies import Body, BodyWriter
from dspark_calib_client.bounded_http import Answer, BoundedHttp
from dspark_calib_client.configuration import Configuration
from dspark_calib_client.counters import Counters
from dspark_calib_client.errors import TransferError
from dspark_calib_client.poller import problem_slug, status_word
from dspark_calib_client.row_queue import RowQueue
from dspark_calib_client.rows import assemble
from dspark_calib_client.single_rows import grouped
from dspark_calib_client.telemetry_options import TelemetryOptions

__all__ = ["Uploader"]

LARGEST_ANSWER = 16 * 2**20  # every row of a batch may be rejected with its reason
_RETRIED_STATUSES = {408, 425, 429}
_BARRING_STATUSES = {401, 403, 404, 405, 409}
_LOG = logging.getLogger("dspark_calib_client")


class Uploader:
    """Sends what is in a queue. One thread runs :meth:`run`.

    Args:
        configuration: of the client.
        options: batches, retries and bodies.
        http: for this thread alone.
        queue: where rows wait.
        counters: shared with the client.
        parameters: query of each request.
        may_send: whether the service has agreed to the key that the rows were made with.
    """

    def __init__(
        self,
        configuration: Configuration,
        options: TelemetryOptions,
        http: BoundedHttp,
        queue: RowQueue,
        counters: Counters,
        *,
        parameters: Callable[[], Mapping[str, str]],
        may_send: Callable[[], bool],
    ) -> None:
        self._url = f"{configuration.drafter_url}/telemetry"
        self._engine = configuration.engine
        self._slots = configuration.slots
        self._timeout = configuration.timeout
        self._options = options
        self._http = http
        self._queue = queue
        self._counters = counters
        self._parameters = parameters
        self._may_send = may_send
        self._writer = BodyWriter(configuration.gamma, configuration.slots, options.body)
        self._backoff = Backoff(1.0, configuration.max_backoff, f"send {self._engine}")
        self._hurry = threading.Event()  # ends a pause
        self._stop_ends = 0.0  # monotonic seconds; holds once the thread is told to stop
        self._epoch = 0  # grows when waiting rows turn out to be of another key
        self.in_flight = 0  # rows of the batch that is being sent

    def run(self, stop: threading.Event) -> None:
        """Send batches until ``stop`` is set and the queue is empty or time is over."""
        self._counters.add(f"bodies_{self._writer.prepare()}")
        while True:
            try:
                due = self._next_entries(stop)
                if due is None:
                    break
                self._send_entries(*due, stop)
            except Exception:  # noqa: BLE001  (whatever it is, the next batch must go)
                self._counters.add("uploader_errors")
                self._counters.add("rows_abandoned", self.in_flight)
                _LOG.exception("a batch failed in an unforeseen way")
                self._pause(self._backoff.failed(), stop)
            self.in_flight = 0
        self._counters.add("rows_abandoned", self._queue.discard())
        self._http.close()

    def finish(self, seconds: float) -> None:
        """Before ``stop`` is set: how long the thread may go on sending."""
        self._stop_ends = time.monotonic() + seconds

    def hurry(self) -> None:
        """End a pause between attempts; from any thread."""
        self._hurry.set()
        self._queue.wake.set()

    def discard(self, counter: str) -> None:
        """Give up all rows that wait or are being sent; from any thread."""
        self._epoch += 1
        self._counters.add(counter, self._queue.discard())
        self._http.interrupt()
        self.hurry()

    def _next_entries(self, stop: threading.Event) -> tuple[list[Any], int] | None:
        """Entries of the next batch, and their epoch; None when it is time to go."""
        while True:
            stopping = stop.is_set()
            if stopping and time.monotonic() >= self._stop_ends:
                return None
            epoch = self._epoch
            if self._may_send():
                entries = self._queue.take(at_once=stopping)
                if entries:
                    return entries, epoch
            if stopping:
                return None
            self._queue.wake.wait(self._queue.due_in() or self._options.batch_seconds)
            self._queue.wake.clear()

    def _send_entries(self, entries: list[Any], epoch: int, stop: threading.Event) -> None:
        blocks = grouped(entries)
        self.in_flight = sum(entry.count for entry in blocks)
        batch = assemble(blocks, self._slots, self._engine)
        self.in_flight = batch.count
        if batch.malformed:
            self._counters.add("rows_unwritable", batch.malformed)
            _LOG.debug("%d rows cannot be written", batch.malformed)
        if batch.count:
            self._counters.add("batches")
            outcome = self._deliver(self._writer.write(batch), epoch, stop)
            self._counters.add(f"batches_{outcome}")
            self._counters.add(f"rows_{outcome}", batch.count)

    def _deliver(self, body: Body, epoch: int, stop: threading.Event) -> str:
        """``delivered``, ``refused``, ``expired``, ``discarded`` or ``abandoned``."""
        headers = {**body.headers, "Idempotency-Key": str(uuid.uuid4())}
        ends = time.monotonic() + self._options.retry_seconds
        was_stopping = stop.is_set()
        while True:
            if stop.is_set():
                ends = min(ends, self._stop_ends)
                if not was_stopping:
                    was_stopping = True
                    self._backoff = Backoff(0.1, 1.0, self._engine)
            rest = ends - time.monotonic()
            if epoch != self._epoch:
                return "discarded"
            if rest <= 0.0:
                return "abandoned" if stop.is_set() else "expired"
            outcome, retry_after = self._try(body, headers, min(self._timeout, rest))
            if outcome != "delivered" and epoch != self._epoch:
                return "discarded"
            if outcome == "delivered":
                self._backoff.succeeded()
            if outcome in ("delivered", "refused"):
                return outcome
            delay = self._backoff.failed(retry_after)
            if outcome == "barred":
                self._pause(delay, stop)
                return "refused"
            self._counters.add("batch_retries")
            self._pause(min(delay, max(0.0, ends - time.monotonic())), stop)

    def _try(
        self, body: Body, headers: Mapping[str, str], seconds: float
    ) -> tuple[str, float | None]:
        """One attempt, and what Retry-After asks.

        ``delivered``; ``refused``, which is about this batch; ``barred``, which the next would be
        too; or ``again``.
        """
        try:
            answer = self._http.exchange(
                "POST",
                self._url,
                params=self._parameters(),
                headers=headers,
                content=body.content,
                seconds=seconds,
                largest_body=LARGEST_ANSWER,
            )
        except TransferError as error:
            self._counters.add(f"upload_failed_{error.kind}")
            return "again", None
        if answer.status == 202 and self._count_answer(answer):
            return "delivered", None
        word, slug = status_word(answer.status), problem_slug(answer)
        self._counters.add(f"upload_failed_{word}")
        level = logging.DEBUG if self._backoff.failures else logging.WARNING
        _LOG.log(level, "telemetry not taken: status %d, %s", answer.status, slug or "no reason")
        retry_after = retry_after_seconds(answer.headers.get("retry-after"), time.time())
        running = answer.status == 409 and slug == "request-in-progress"
        if answer.status in _RETRIED_STATUSES or answer.status // 100 != 4 or running:
            return "again", retry_after
        return ("barred" if answer.status in _BARRING_STATUSES else "refused"), retry_after

    def _count_answer(self, answer: Answer) -> bool:
        """Count what a 202 says about the rows; False when it does not say it."""
        try:
            said = json.loads(answer.body)
            accepted = said["accepted"]
            duplicates = said.get("duplicates", 0)
            rejected = said.get("rejected_total", len(said.get("rejected", ())))
        except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
            return False
        if not all(type(count) is int and count >= 0 for count in (accepted, duplicates, rejected)):
            return False
        self._counters.add("rows_accepted", accepted)
        self._counters.add("rows_duplicate", duplicates)
        self._counters.add("rows_rejected", rejected)
        return True

    def _pause(self, seconds: float, stop: threading.Event) -> None:
        """Wait between attempts; :meth:`hurry` cuts it short once, for one more attempt."""
        if stop.is_set():
            seconds = min(seconds, self._stop_ends - time.monotonic())
        if self._hurry.wait(max(0.0, seconds)):
            self._hurry.clear()
