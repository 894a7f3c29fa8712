"""The uploader: every row is sent once, or is in a counter that says why not."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from dspark_calib_client import TelemetryOptions
from dspark_calib_client.bounded_http import BoundedHttp
from dspark_calib_client.configuration import Configuration
from dspark_calib_client.counters import Counters
from dspark_calib_client.row_queue import RowQueue
from dspark_calib_client.single_rows import Applied
from dspark_calib_client.uploader import Uploader
from tests.client import misbehaving as bad
from tests.client.stand_in_service import DRAFTER, GAMMA, Canned, StandInService, problem
from tests.client.waiting import eventually


def single(step: int, logits: Any = (0.5, 0.25, 0.125)) -> tuple[Any, ...]:
    """A row as it waits in the queue."""
    return (logits, 3, step % 4, "r", step, 1.0, Applied(), {})


class SteadyQueue(RowQueue):
    """Gives nothing away while a test puts rows in, so that these are one batch on any machine."""

    def __init__(self, options: TelemetryOptions) -> None:
        super().__init__(options)
        self.filling = threading.Lock()

    def take(self, *, at_once: bool) -> list[Any]:
        with self.filling:
            return super().take(at_once=at_once)


class Sender:
    """An uploader in its thread."""

    def __init__(self, url: str, *, timeout: float = 60.0, **options: Any) -> None:
        chosen = TelemetryOptions(**{"batch_seconds": 0.05, "body": "json", **options})
        configuration = Configuration.checked(
            base_url=url,
            drafter=DRAFTER,
            gamma=GAMMA,
            key=None,
            anchor_included=None,
            engine_id="engine-0",
            token=None,
            state_file=None,
            interval=30.0,
            wait=0,
            timeout=timeout,
            stale_after=None,
            start_delay=None,
            max_backoff=0.1,
            segment=None,
            verify=True,
            proxy=None,
        )
        self.queue = SteadyQueue(chosen)
        self.counters = Counters()
        self.http = BoundedHttp(token=lambda: None, user_agent="tests")
        self.may_send = True
        self.uploader = Uploader(
            configuration,
            chosen,
            self.http,
            self.queue,
            self.counters,
            parameters=lambda: {"engine": "engine-0"},
            may_send=lambda: self.may_send,
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self.uploader.run, args=[self._stop], daemon=True)
        self._thread.start()

    def offer(self, rows: int = 1) -> None:
        with self.queue.filling:
            for index in range(rows):
                self.queue.offer(1, 100, single(index))

    def counted(self, name: str) -> int:
        return self.counters.value(name)

    def stop(self, seconds: float = 60.0) -> bool:
        """As a session does; whether the thread ended in time."""
        self.uploader.finish(seconds)
        self._stop.set()
        self.uploader.hurry()
        self._thread.join(seconds)
        if self._thread.is_alive():
            self.http.abort()
        self._thread.join(10.0)
        return not self._thread.is_alive()

    def check_balance(self) -> None:
        """Each row that was offered is in exactly one count."""
        ends = ("delivered", "refused", "expired", "abandoned", "discarded", "unwritable")
        total = sum(self.counted(f"rows_{word}") for word in ends)
        queue = self.queue
        assert queue.offered == total + queue.dropped + queue.rows + self.uploader.in_flight


@pytest.fixture
def sender(service: StandInService) -> Iterator[Sender]:
    made = Sender(service.url)
    yield made
    made.stop()


def test_rows_arrive_once_and_in_order(sender: Sender, service: StandInService) -> None:
    sender.offer(100)
    assert service.wait_for(lambda: len(service.rows) >= 100)
    assert sender.stop()
    assert [row["step"] for row in service.rows] == list(range(100))
    assert service.rows[3]["confidence_logits"] == [0.5, 0.25, 0.125]
    assert service.rows[3]["engine"] == "engine-0"
    assert sender.counted("rows_delivered") == sender.counted("rows_accepted") == 100
    sender.check_balance()


def test_the_request_is_as_the_contract_says(sender: Sender, service: StandInService) -> None:
    sender.offer()
    assert service.wait_for(lambda: service.rows)
    (seen,) = service.requests("POST")
    assert seen.path == f"/v1/drafters/{DRAFTER}/telemetry"
    assert seen.query == {"engine": "engine-0"}
    assert len(seen.headers["idempotency-key"]) == 36
    assert seen.headers["content-type"] == "application/json"
    assert seen.headers["content-encoding"] == "gzip"


def test_arrow_is_sent_where_it_imports(service: StandInService) -> None:
    sender = Sender(service.url, body="auto")
    sender.offer(7)
    assert service.wait_for(lambda: len(service.rows) >= 7, 60.0)
    assert sender.stop()
    assert [row["accepted"] for row in service.rows] == [0, 1, 2, 3, 0, 1, 2]
    assert sender.counted("bodies_arrow") == 1


def test_batches_have_keys_of_their_own(service: StandInService) -> None:
    sender = Sender(service.url, batch_rows=10)
    sender.offer(100)
    assert service.wait_for(lambda: len(service.rows) >= 100)
    assert sender.stop()
    assert len({seen.headers["idempotency-key"] for seen in service.requests("POST")}) == 10
    assert sender.counted("batches") == 10


@pytest.mark.parametrize(
    "answer",
    [
        Canned(429, b"", {"Retry-After": "0"}),
        Canned(500),
        Canned(503),
        problem("store-full", 507),
        Canned(408),
        problem("request-in-progress", 409),
        Canned(200, b"<html>welcome to the hotel</html>", {"Content-Type": "text/html"}),
        Canned(202, b"stored, surely"),
        Canned(202, b'{"accepted": -5}'),
        Canned(202, b'{"accepted": true}'),
        Canned(202, b"[]"),
        Canned(302, b"", {"Location": "/elsewhere"}),
    ],
)
def test_it_tries_again_with_the_same_key_and_body(
    sender: Sender, service: StandInService, answer: Canned
) -> None:
    service.telemetry_answers.extend([answer, answer])
    sender.offer(5)
    assert service.wait_for(lambda: len(service.rows) >= 5)
    assert sender.stop()
    sent = service.requests("POST")
    assert len(sent) == 3
    assert len({(seen.headers["idempotency-key"], seen.body) for seen in sent}) == 1
    assert sender.counted("batch_retries") == 2
    assert sender.counted("rows_delivered") == 5


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 413, 415, 422])
def test_a_refusal_is_final_for_its_batch(
    sender: Sender, service: StandInService, status: int
) -> None:
    service.telemetry_answers.append(problem("no", status))
    sender.offer(5)
    assert eventually(lambda: sender.counted("rows_refused") == 5)
    sender.offer(3)
    assert service.wait_for(lambda: len(service.rows) >= 3)
    assert sender.stop()
    assert len(service.requests("POST")) == 2
    sender.check_balance()


def test_a_lost_answer_stores_nothing_twice(service: StandInService) -> None:
    """The first answer is cut after the service stored the rows."""
    cut = threading.Event()

    def forward_once(connection: socket.socket, over: threading.Event) -> None:
        host, port = service.url.removeprefix("http://").split(":")
        request = bad.read_message(connection)
        with socket.create_connection((host, int(port)), timeout=60.0) as inner:
            inner.sendall(request)
            answer = bad.read_message(inner)
        if not cut.is_set():
            cut.set()
            connection.sendall(answer[: len(answer) // 2])
        else:
            connection.sendall(answer)
            bad.linger(connection)

    with bad.misbehaving(forward_once) as url:
        sender = Sender(url)
        sender.offer(20)
        assert eventually(lambda: sender.counted("rows_delivered") == 20)
        assert sender.stop()
    assert len(service.requests("POST")) == 2
    assert len(service.rows) == 20


def test_retrying_has_an_end(service: StandInService) -> None:
    sender = Sender(service.url, retry_seconds=0.3)
    service.telemetry_answers.extend([Canned(503)] * 1000)
    sender.offer(5)
    assert eventually(lambda: sender.counted("rows_expired") == 5)
    service.telemetry_answers.clear()
    sender.offer(2)
    assert service.wait_for(lambda: len(service.rows) >= 2)
    assert sender.stop()
    sender.check_balance()


def test_rows_wait_until_the_key_is_agreed(service: StandInService) -> None:
    sender = Sender(service.url)
    sender.may_send = False
    sender.offer(5)
    assert not service.wait_for(lambda: service.requests("POST"), 0.3)
    assert sender.queue.rows == 5
    sender.may_send = True
    assert service.wait_for(lambda: len(service.rows) >= 5)
    assert sender.stop()


def test_rows_of_another_key_are_given_up_even_on_their_way(service: StandInService) -> None:
    sender = Sender(service.url, batch_rows=5)
    service.telemetry_answers.extend([Canned(503)] * 1000)
    sender.offer(8)
    assert eventually(lambda: sender.counted("batch_retries") >= 1)
    sender.uploader.discard("rows_discarded")
    assert eventually(lambda: sender.counted("rows_discarded") == 8)
    # An attempt that was broken off may still be on its way through the service; it is refused.
    given_up = service.requests("POST")[0].headers["idempotency-key"]
    service.stored[given_up] = (b"", b"")
    service.telemetry_answers.clear()
    sender.offer(2)
    assert service.wait_for(lambda: len(service.rows) >= 2)
    assert sender.stop()
    assert len(service.rows) == 2
    sender.check_balance()


def test_a_change_of_key_does_not_wait_for_a_pause_to_end(service: StandInService) -> None:
    """Rows of the new key are not held up by a minute that a batch of the old one was to wait."""
    sender = Sender(service.url)
    service.telemetry_answers.append(Canned(503, b"", {"Retry-After": "60"}))
    sender.offer(3)
    assert eventually(lambda: sender.counted("batch_retries") == 1)
    sender.uploader.discard("rows_discarded")
    assert eventually(lambda: sender.counted("rows_discarded") == 3)
    sender.offer(2)
    assert service.wait_for(lambda: len(service.rows) >= 2)
    assert sender.stop()
    sender.check_balance()


def test_stopping_sends_what_is_there(service: StandInService) -> None:
    sender = Sender(service.url, batch_seconds=3600.0, batch_rows=10)
    sender.offer(35)
    assert sender.stop()
    assert len(service.rows) == 35
    sender.check_balance()


def test_stopping_retries_within_its_time(service: StandInService) -> None:
    """While it backs off for a minute, being told to stop makes it try at once."""
    sender = Sender(service.url)
    service.telemetry_answers.append(Canned(503, b"", {"Retry-After": "60"}))
    sender.offer(5)
    assert eventually(lambda: sender.counted("batch_retries") == 1)
    assert sender.stop()
    assert len(service.rows) == 5


@pytest.mark.parametrize("behaviour", [bad.black_hole, bad.drip, bad.hang_up, bad.garbage])
def test_stopping_ends_in_time_beside_a_bad_server(behaviour: bad.Behaviour) -> None:
    with bad.misbehaving(behaviour) as url:
        sender = Sender(url, timeout=30.0)
        sender.offer(5)
        assert eventually(lambda: sender.uploader.in_flight == 5)
        began = time.monotonic()
        assert sender.stop(0.5)
        assert time.monotonic() - began < 12.0  # not the server's 30 s
    assert sender.counted("rows_abandoned") == 5
    sender.check_balance()


def test_rows_that_cannot_be_written_do_not_stop_the_others(
    sender: Sender, service: StandInService
) -> None:
    sender.queue.offer(1, 100, single(0, (0.5, "x", 0.125)))
    sender.offer(4)
    assert service.wait_for(lambda: len(service.rows) >= 4)
    assert eventually(lambda: sender.counted("rows_delivered") == 4)
    assert sender.counted("rows_unwritable") == 1
    sender.check_balance()


def test_an_unforeseen_fault_costs_one_batch(
    sender: Sender, service: StandInService, monkeypatch: Any
) -> None:
    def fail(batch: Any) -> Any:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(sender.uploader._writer, "write", fail)
        sender.offer(3)
        assert eventually(lambda: sender.counted("uploader_errors") == 1)
    sender.offer(2)
    assert service.wait_for(lambda: len(service.rows) >= 2)
    assert sender.stop()
    assert sender.counted("rows_abandoned") == 3
    sender.check_balance()


def test_what_the_service_says_about_rows_is_counted(
    sender: Sender, service: StandInService
) -> None:
    said = (
        b'{"accepted": 3, "duplicates": 1, "excluded": 0, "rejected": '
        b'[{"row": 4, "field": "accepted", "reason": "too many"}]}'
    )
    service.telemetry_answers.append(Canned(202, said))
    sender.offer(5)
    assert eventually(lambda: sender.counted("rows_delivered") == 5)
    counted = [sender.counted(f"rows_{word}") for word in ("accepted", "duplicate", "rejected")]
    assert counted == [3, 1, 1]
