"""The poller: one thread that asks, checks, remembers and waits.

Without a wait it asks at fixed instants: the engine's own offset plus whole intervals. With a wait
it asks again as soon as the service has answered, because the service itself holds the request
until there is news; a service that does not hold it is asked once an interval. After a failure it
backs off. The first question after a start or a failure never waits, so that a running service
confirms the numbers at once.
"""

from __future__ import annotations

import json
import logging
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dspark_calib_client.backoff import Backoff, retry_after_seconds, seeded_offset
from dspark_calib_client.bounded_http import Answer, BoundedHttp
from dspark_calib_client.configuration import Configuration
from dspark_calib_client.counters import Counters
from dspark_calib_client.errors import InvalidAnswerError, InvalidFileError, TransferError
from dspark_calib_client.knowledge import Knowledge, Question
from dspark_calib_client.last_known_good import LastKnownGoodFile
from dspark_calib_client.temperatures import Source
from dspark_calib_client.validation import Publication, etag_digest, read_publication

__all__ = ["Poller", "Reports", "problem_slug", "status_word"]

LARGEST_BODY = 2**20  # a publication with its evidence is some kilobytes
_SMALLEST_GAP = 1.0  # seconds between two polls, however fast the news
_LONGEST_SLUG = 64
_SURELY_HELD = 5.0  # seconds that no answer takes unless the poll was held
_LOG = logging.getLogger("dspark_calib_client")


@dataclass(frozen=True)
class Reports:
    """What the poller is told about the engine, and whom it tells.

    Attributes:
        parameters: what is applied, in which state, by which version; sent with each poll.
        noticed: called after each poll; notices changes, and gives the seconds until the state
            changes by itself.
        mismatched: called when the service calibrates another key.
    """

    parameters: Callable[[], Mapping[str, str]]
    noticed: Callable[[], float]
    mismatched: Callable[[], None]


class Poller:
    """Asks the service for the drafter's temperatures. One thread runs :meth:`run`."""

    def __init__(
        self,
        configuration: Configuration,
        http: BoundedHttp,
        knowledge: Knowledge,
        file: LastKnownGoodFile | None,
        counters: Counters,
        reports: Reports,
        *,
        wall_clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._configuration = configuration
        self._url = f"{configuration.drafter_url}/temperatures"
        self._http = http
        self._knowledge = knowledge
        self._file = file
        self._counters = counters
        self._reports = reports
        self._wall_clock = wall_clock
        self._monotonic = monotonic
        first = min(1.0, configuration.interval)
        engine = configuration.engine
        self._backoff = Backoff(first, configuration.max_backoff, f"poll {engine}")
        self._draw = random.Random(f"spread {engine}")
        self._hold_next = False  # whether the next poll may be held by the service
        self.wake = threading.Event()

    def load_file(self) -> None:
        """Start from the last-known-good file, if it holds anything for this engine."""
        if self._file is None or self._knowledge.held.publication is not None:
            return
        question = self._knowledge.question()
        try:
            found = self._file.load(question.expected)
            if found is not None:
                age = max(0.0, self._wall_clock() - found.received_at)
                confirmed_at = self._monotonic() - age
                self._knowledge.accept(question, found.publication, Source.FILE, confirmed_at)
                self._counters.add("file_loaded")
        except (InvalidFileError, InvalidAnswerError) as error:
            self._counters.add(error.kind)
            _LOG.warning("last-known-good file ignored: %s", error)

    def run(self, stop: threading.Event) -> None:
        """Poll until ``stop`` is set. Never raises: no fault of a poll may end the thread."""
        started = time.monotonic()
        offset = seeded_offset(self._configuration.engine, self._configuration.interval)
        delay = self._configuration.start_delay
        self._sleep(offset if delay is None else delay, stop)
        while not stop.is_set():
            began = time.monotonic()
            try:
                delay = self._next_delay(self.poll_once(), began, started + offset)
            except Exception:  # noqa: BLE001  (whatever it is, the next poll must come)
                self._counters.add("poller_errors")
                _LOG.exception("a poll failed in an unforeseen way")
                delay = self._backoff.failed()
            self._sleep(delay, stop)
        self._http.close()

    def poll_once(self) -> tuple[str, float | None]:
        """Ask once and take in the answer.

        Returns:
            ``changed``, ``unchanged``, ``mismatch``, ``interrupted`` or ``failed``, and the seconds
            that the service asked to be left alone, if it did.
        """
        self._counters.add("polls")
        question = self._knowledge.question()
        hold = self._configuration.wait if self._hold_next and question.etag else 0
        try:
            answer = self._ask(question, hold)
            outcome = self._take_in(question, answer)
            retry_after = None
            if outcome == "failed":
                header = answer.headers.get("retry-after")
                retry_after = retry_after_seconds(header, self._wall_clock())
        except (TransferError, InvalidAnswerError) as error:
            outcome, retry_after = self._failed(error.kind, error), None
        self._counters.add(f"polls_{outcome}")
        return outcome, retry_after

    def interrupt(self) -> None:
        """Give up the question under way and ask anew at once; from any thread."""
        self._http.interrupt()
        self.wake.set()

    def _ask(self, question: Question, hold: int) -> Answer:
        parameters = {
            "gamma": str(question.expected.gamma),
            "engine": self._configuration.engine,
            **self._reports.parameters(),
            **{f"segment.{tag}": value for tag, value in self._configuration.segment.items()},
        }
        headers = {"Accept": "application/json"}
        if question.expected.key is not None:
            parameters["key"] = question.expected.key
        if hold:
            parameters["wait"] = str(hold)
        if question.etag:
            headers["If-None-Match"] = question.etag
        return self._http.exchange(
            "GET",
            self._url,
            params=parameters,
            headers=headers,
            seconds=hold + self._configuration.timeout,
            largest_body=LARGEST_BODY,
        )

    def _take_in(self, question: Question, answer: Answer) -> str:
        """Judge an answer; ETag and contact are remembered only if it is right."""
        etag = answer.headers.get("etag")
        if answer.status == 200:
            publication = read_publication(answer.body, etag, question.expected)
            return self._accept(question, publication, answer.body)
        if answer.status == 304 and question.etag:
            if etag is not None and etag_digest(etag) != etag_digest(question.etag):
                raise InvalidAnswerError("wrong_etag", "304 for another ETag than was sent")
            self._knowledge.confirm(question, self._monotonic())
            return "unchanged"
        if answer.status == 409 and problem_slug(answer) == "calibration-key-mismatch":
            return self._mismatch(question)
        detail = f"status {answer.status}, {problem_slug(answer) or 'no reason'}"
        return self._failed(status_word(answer.status), detail)

    def _failed(self, kind: str, detail: object) -> str:
        if kind in ("interrupted", "aborted"):  # by this client itself
            return "interrupted"
        self._counters.add(f"poll_failed_{kind}")
        level = logging.DEBUG if self._backoff.failures else logging.WARNING
        _LOG.log(level, "poll failed, the numbers in use stay: %s", detail)
        return "failed"

    def _accept(self, question: Question, publication: Publication, body: bytes) -> str:
        new = self._knowledge.accept(question, publication, Source.SERVICE, self._monotonic())
        if not new:
            return "unchanged"
        if self._file is not None:
            try:
                self._file.save(body, publication, question.expected, self._wall_clock())
            except OSError as error:
                self._counters.add("file_write_errors")
                _LOG.warning("last-known-good file not written: %s", error)
        return "changed"

    def _mismatch(self, question: Question) -> str:
        if self._knowledge.mismatch(question):
            self._reports.mismatched()
            if self._file is not None:
                try:
                    self._file.remove()
                except OSError as error:
                    self._counters.add("file_write_errors")
                    _LOG.warning("last-known-good file not removed: %s", error)
        return "mismatch"

    def _next_delay(self, result: tuple[str, float | None], began: float, first: float) -> float:
        """Seconds until the next poll."""
        outcome, retry_after = result
        held_before, self._hold_next = self._hold_next, outcome in ("changed", "unchanged")
        if outcome == "failed":
            return self._backoff.failed(retry_after)
        if outcome == "interrupted":
            return 0.0
        self._backoff.succeeded()
        now = time.monotonic()
        smallest = min(_SMALLEST_GAP, self._configuration.interval)
        gap = max(0.0, began + smallest - now)
        if self._configuration.wait and outcome == "changed":
            return gap + self._draw.uniform(0.0, smallest)  # the whole fleet got the news at once
        if self._configuration.wait and outcome == "unchanged":
            was_held = now - began >= min(self._configuration.wait / 2, _SURELY_HELD)
            if was_held or not held_before:
                return gap
        return max(gap, self._until_next_instant(first, now))

    def _until_next_instant(self, first: float, now: float) -> float:
        """Seconds to the next of the instants ``first`` + n intervals."""
        interval = self._configuration.interval
        return interval - (now - first) % interval

    def _sleep(self, seconds: float, stop: threading.Event) -> None:
        """Wait, but notice on time when the state changes by itself; :attr:`wake` ends it."""
        ends = time.monotonic() + seconds
        while not stop.is_set():
            try:
                until_change = self._reports.noticed()
            except Exception:  # noqa: BLE001  (as in run)
                self._counters.add("poller_errors")
                until_change = self._configuration.interval
            rest = ends - time.monotonic()
            if rest <= 0:
                return
            # A millisecond more, so that the change has happened when it is looked at.
            if self.wake.wait(min(rest, until_change + 0.001)):
                self.wake.clear()
                return


def problem_slug(answer: Answer) -> str | None:
    """The last part of an RFC 9457 ``type``, cut short; None where the body is no problem."""
    if "application/problem+json" not in answer.headers.get("content-type", ""):
        return None
    try:
        problem: Any = json.loads(answer.body)
        return str(problem["type"]).rpartition("/")[2][:_LONGEST_SLUG]
    except (ValueError, RecursionError, KeyError, TypeError):
        return None


def status_word(status: int) -> str:
    """A status as one of few words, for counters."""
    named = {401: "unauthorized", 403: "unauthorized", 404: "not_found", 409: "conflict"}
    if status in named:
        return named[status]
    if status == 429:
        return "too_many_requests"
    families = {4: "client_error", 5: "server_error"}
    return families.get(status // 100, "unexpected_status")
