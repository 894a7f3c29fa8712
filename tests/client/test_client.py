"""The client as an engine uses it, against a service on a real socket."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dspark_calib_client import CalibrationClient, Source, State, TelemetryOptions, Temperatures
from tests.client.stand_in_service import DRAFTER, GAMMA, KEY, Canned, StandInService
from tests.client.waiting import eventually

QUICK: dict[str, Any] = {
    "interval": 0.1,
    "wait": 0,
    "timeout": 60.0,
    "start_delay": 0.0,
    "max_backoff": 0.2,
    "telemetry": TelemetryOptions(batch_seconds=0.05, body="json"),
}
LOGITS = [0.5, 0.25, 0.125]

Make = Callable[..., CalibrationClient]


@pytest.fixture
def make(service: StandInService) -> Iterator[Make]:
    """Clients of the stand-in service, stopped at the end."""
    made: list[CalibrationClient] = []

    def build(url: str = service.url, key: Any = KEY, **changes: Any) -> CalibrationClient:
        client = CalibrationClient(
            url, DRAFTER, GAMMA, key, **{"engine_id": "engine-0", **QUICK, **changes}
        )
        made.append(client)
        return client

    yield build
    for client in made:
        client.stop(2.0)


class Heard:
    """A listener that can be waited for."""

    def __init__(self, client: CalibrationClient) -> None:
        self.all: list[Temperatures] = []
        self._more = threading.Condition()
        client.on_change(self._hear)

    def _hear(self, temperatures: Temperatures) -> None:
        with self._more:
            self.all.append(temperatures)
            self._more.notify_all()

    def wait(self, met: Callable[[Temperatures], bool], seconds: float = 60.0) -> Temperatures:
        with self._more:
            assert self._more.wait_for(lambda: any(map(met, self.all)), seconds), self.all
            return next(filter(met, self.all))


def test_an_engine_gets_the_news(make: Make, service: StandInService) -> None:
    client = make()
    heard = Heard(client)
    assert client.current().state is State.FALLBACK
    assert client.start()
    heard.wait(lambda t: t.state is State.FRESH)
    service.publish([1.5, 1.25, 1.0], status="fitted")
    news = heard.wait(lambda t: t.publication == 2)
    assert news.values == (1.5, 1.25, 1.0)
    assert news == client.current() or client.current().age != news.age
    assert (news.revision, news.status, news.source) == (1, "fitted", Source.SERVICE)
    assert client.stop(60.0)


@pytest.mark.slow
def test_a_held_poll_brings_the_news_at_once(make: Make, service: StandInService) -> None:
    client = make(wait=30, interval=30.0)
    heard = Heard(client)
    client.start()
    held = service.wait_for(lambda: any(seen.query.get("wait") for seen in service.seen))
    assert held
    began = time.monotonic()
    service.publish([1.5, 1.25, 1.0])
    heard.wait(lambda t: t.publication == 2)
    assert time.monotonic() - began < 25.0  # the poll may be held for 30


def test_starting_twice_starts_once(make: Make) -> None:
    client = make()
    before = set(threading.enumerate())
    assert client.start()
    assert client.start()
    # By name: threads of exchanges come and go.
    started = sorted(t.name for t in set(threading.enumerate()) - before)
    named = [name for name in started if name in ("dspark-calib-poller", "dspark-calib-uploader")]
    assert named == ["dspark-calib-poller", "dspark-calib-uploader"]


def test_it_can_be_started_again(make: Make, service: StandInService) -> None:
    client = make()
    for round_ in (1, 2):
        assert client.start()
        client.observe(LOGITS, 3, 1, step=round_)
        assert service.wait_for(lambda count=round_: len(service.rows) >= count)
        assert client.stop(60.0)
        assert client.metrics()["running"] == 0
    assert client.stop(60.0)  # stopping what is stopped


def test_a_with_block_starts_and_stops(make: Make, service: StandInService) -> None:
    with make() as client:
        client.observe(LOGITS, 3, 1)
        assert eventually(lambda: client.current().state is State.FRESH)
    assert len(service.rows) == 1


def test_a_restart_begins_where_it_was(make: Make, service: StandInService, tmp_path: Path) -> None:
    """The service is gone: the file is in use when start returns."""
    file = tmp_path / "good.json"
    service.publish([1.5, 1.25, 1.0])
    client = make(state_file=file)
    client.start()
    assert eventually(lambda: client.current().publication == 2)
    client.stop()
    again = make(url="http://127.0.0.1:9", state_file=file, baked_in=[2.0, 2.0, 2.0])
    again.start()
    found = again.current()
    assert found.values == (1.5, 1.25, 1.0)
    assert (found.state, found.source, found.publication) == (State.STALE, Source.FILE, 2)
    assert found.age is not None
    assert 0.0 <= found.age < 60.0


def test_a_restarted_service_confirms_the_file(
    make: Make, service: StandInService, tmp_path: Path
) -> None:
    file = tmp_path / "good.json"
    for _ in range(2):
        client = make(state_file=file)
        client.start()
        assert eventually(lambda c=client: c.current().state is State.FRESH)
        client.stop()
    conditional = [seen for seen in service.requests("GET") if "if-none-match" in seen.headers]
    assert conditional
    assert len(service.requests("GET")) - len(conditional) == 1  # one whole answer in two lives


def test_numbers_grow_stale_and_fresh_again(make: Make, service: StandInService) -> None:
    """By contact, on an injected clock."""
    now = [1000.0]
    client = make(monotonic=lambda: now[0], stale_after=60.0)
    heard = Heard(client)
    client.start()
    heard.wait(lambda t: t.state is State.FRESH)
    with service.changed:
        service.answers.extend([Canned(503)] * 1000)
    assert eventually(lambda: client.metrics()["polls_failed"] > 0)
    now[0] += 59.0
    assert client.current().state is State.FRESH
    now[0] += 2.0
    assert client.current().state is State.STALE
    stale = heard.wait(lambda t: t.state is State.STALE)
    assert stale.values == (1.0, 1.0, 1.0)
    heard.all.clear()
    service.answers.clear()
    heard.wait(lambda t: t.state is State.FRESH)


def test_a_publication_runs_out_by_the_wall_clock(make: Make, service: StandInService) -> None:
    now = [999.0]
    service.publish([1.5, 1.25, 1.0], valid_until="1970-01-01T00:16:40Z")  # 1,000 s
    client = make(wall_clock=lambda: now[0])
    client.start()
    assert eventually(lambda: client.current().state is State.FRESH)
    now[0] = 1000.5
    assert eventually(lambda: client.current().state is State.STALE)
    assert client.current().values == (1.5, 1.25, 1.0)


def test_staleness_is_told_without_a_poll(make: Make, service: StandInService) -> None:
    """The next poll is a minute away; the listener hears of it when it happens."""
    client = make(interval=60.0, stale_after=0.5)
    heard = Heard(client)
    client.start()
    heard.wait(lambda t: t.state is State.FRESH)
    heard.wait(lambda t: t.state is State.STALE)
    assert client.metrics()["polls"] == 1


def test_another_key_means_identity_at_once(
    make: Make, service: StandInService, tmp_path: Path
) -> None:
    file = tmp_path / "good.json"
    service.publish([1.5, 1.25, 1.0])
    client = make(state_file=file, baked_in=[2.0, 2.0, 2.0])
    heard = Heard(client)
    client.start()
    heard.wait(lambda t: t.publication == 2)
    service.key = "ee" * 32
    lost = heard.wait(lambda t: t.publication == 0)
    assert (lost.values, lost.state) == ((1.0, 1.0, 1.0), State.FALLBACK)
    assert lost.source is Source.IDENTITY
    assert client.metrics()["key_mismatch"] == 1
    assert not file.exists()
    # Rows of this model must not reach the other one's statistics.
    assert not client.observe(LOGITS, 3, 1)
    assert client.metrics()["rows_other_key"] == 1
    assert service.rows == []


@pytest.mark.slow
def test_the_key_can_change_at_run_time(make: Make, service: StandInService) -> None:
    service.publish([1.5, 1.25, 1.0])
    client = make(wait=30, interval=30.0)
    heard = Heard(client)
    client.start()
    heard.wait(lambda t: t.publication == 2)
    assert service.wait_for(lambda: any(seen.query.get("wait") for seen in service.seen))
    service.key = "ee" * 32
    service.body = service.body.replace(KEY.encode(), b"ee" * 32)
    began = time.monotonic()
    assert client.change_key("ee" * 32, baked_in=[3.0, 3.0, 3.0])
    first = client.current()
    assert first.publication == 0 or first.source is Source.SERVICE
    assert first.values in ((3.0, 3.0, 3.0), (1.5, 1.25, 1.0))
    # The poll that was held under the old key is given up: no half minute of waiting.
    assert eventually(lambda: client.current().source is Source.SERVICE)
    assert time.monotonic() - began < 25.0
    assert heard.wait(lambda t: t.source is Source.BAKED_IN or t.publication == 2)
    assert service.requests("GET")[-1].query["key"] == "ee" * 32


def test_a_key_that_cannot_be_used_is_identity_and_silence(
    make: Make, service: StandInService
) -> None:
    service.publish([1.5, 1.25, 1.0])
    client = make()
    client.start()
    assert eventually(lambda: client.current().publication == 2)
    assert not client.change_key("no digest")
    assert client.current().source is Source.IDENTITY
    client.observe(LOGITS, 3, 1)
    assert eventually(lambda: client.metrics()["key_mismatch"] == 1)
    assert client.current().source is Source.IDENTITY
    assert service.rows == []
    assert client.change_key(KEY)
    assert eventually(lambda: client.current().publication == 2)
    client.observe(LOGITS, 3, 1)
    assert service.wait_for(lambda: len(service.rows) == 1)


def test_rows_of_the_old_key_are_not_sent_under_the_new(
    make: Make, service: StandInService
) -> None:
    client = make(telemetry=TelemetryOptions(batch_seconds=3600.0, body="json"))
    client.start()
    assert eventually(lambda: client.current().state is State.FRESH)
    for step in range(5):
        client.observe(LOGITS, 3, 1, step=step)
    service.key = "ee" * 32
    service.publish([1.0, 1.0, 1.0])
    client.change_key("ee" * 32)
    assert eventually(lambda: client.current().state is State.FRESH)
    client.observe(LOGITS, 3, 1, step=99)
    assert client.stop(60.0)
    assert [row["step"] for row in service.rows] == [99]
    assert client.metrics()["rows_discarded"] == 5


def test_rows_wait_for_the_service_to_agree_to_the_key(make: Make, service: StandInService) -> None:
    with service.changed:
        service.answers.extend([Canned(503)] * 1000)
    client = make()
    client.start()
    client.observe(LOGITS, 3, 1)
    assert eventually(lambda: client.metrics()["polls_failed"] >= 2)
    assert service.requests("POST") == []
    service.answers.clear()
    assert service.wait_for(lambda: len(service.rows) == 1)
    assert service.requests("POST")[-1].query["key"] == KEY


def test_a_restored_service_is_accepted_when_told(make: Make, service: StandInService) -> None:
    service.publish([1.5, 1.25, 1.0], publication=9)
    client = make()
    client.start()
    assert eventually(lambda: client.current().publication == 9)
    service.publish([1.1, 1.1, 1.1], publication=4)
    assert eventually(lambda: client.metrics().get("poll_failed_publication_went_back", 0) >= 2)
    assert client.current().publication == 9
    client.accept_older_publications()
    assert eventually(lambda: client.current().publication == 4)
    assert client.current().values == (1.1, 1.1, 1.1)


def test_what_is_applied_is_reported_and_stamped(make: Make, service: StandInService) -> None:
    service.publish([1.5, 1.25, 1.0])
    client = make()
    client.start()
    assert eventually(lambda: client.current().publication == 2)
    client.observe(LOGITS, 3, 1, step=1)
    client.report_applied(client.current())
    client.observe(LOGITS, 3, 1, step=2)
    client.record_rows(
        {"confidence_logits": np.zeros((1, 3)), "verified": [3], "accepted": [0], "step": [3]}
    )
    client.report_applied(client.current(), "affine")
    client.observe(LOGITS, 3, 1, step=4)
    assert service.wait_for(lambda: len(service.rows) == 4)
    stamps = {row["step"]: (row["revision"], row["applied_form"]) for row in service.rows}
    assert stamps == {
        1: (-1, None),
        2: (1, "temperatures"),
        3: (1, "temperatures"),
        4: (1, "affine"),
    }
    reported = service.wait_for(
        lambda: (
            service.seen[-1].query.get("applied_publication") == "2"
            and service.seen[-1].query["applied_revision"] == "1"
            and service.seen[-1].query["state"] == "fresh"
        )
    )
    assert reported


def test_the_offset_spreads_the_first_polls(make: Make, service: StandInService) -> None:
    from dspark_calib_client.backoff import seeded_offset

    offset = seeded_offset("engine-0", 1.0)
    client = make(start_delay=None, interval=1.0)
    began = time.monotonic()
    client.start()
    assert service.wait_for(lambda: service.seen)
    assert service.seen[0].at - began >= offset - 0.05


def test_poll_now_does_not_wait_for_the_interval(make: Make, service: StandInService) -> None:
    client = make(interval=600.0)
    heard = Heard(client)
    client.start()
    heard.wait(lambda t: t.state is State.FRESH)
    service.publish([1.5, 1.25, 1.0])
    client.poll_now()
    heard.wait(lambda t: t.publication == 2)


def test_a_listener_may_stop_the_client(make: Make) -> None:
    client = make()
    stopped = threading.Event()

    def stop(temperatures: Temperatures) -> None:
        client.stop(0.5)
        stopped.set()

    client.on_change(stop)
    client.start()
    assert stopped.wait(60.0)
    assert eventually(lambda: client.metrics()["running"] == 0)


def test_a_listener_that_raises_does_not_stop_the_news(make: Make, service: StandInService) -> None:
    client = make()

    def fail(temperatures: Temperatures) -> None:
        raise SystemError("broken")

    client.on_change(fail)
    client.start()
    assert eventually(lambda: client.metrics().get("listener_errors", 0) >= 1)
    service.publish([1.5, 1.25, 1.0])
    assert eventually(lambda: client.current().publication == 2)


@pytest.mark.parametrize(
    "call",
    [
        lambda c: c.observe(None, None, None),
        lambda c: c.observe([1.0] * 3, object(), "x", request=[], step={}),
        lambda c: c.observe(LOGITS, 3, 1, colour="red"),
        lambda c: c.record_rows(None),
        lambda c: c.record_rows({"verified": 3}),
        lambda c: c.record_rows({1: 2}),
        lambda c: c.report_applied(None),
        lambda c: c.report_applied(c.current(), "both"),
        lambda c: c.change_key(object()),
        lambda c: c.change_key({"gamma": float("nan")}, baked_in=[0.0]),
        lambda c: c.stop(-5.0),
        lambda c: c.stop(float("nan")),
        lambda c: c.stop("soon"),
        lambda c: c.stop(10**400),
        lambda c: c.poll_now(),
        lambda c: c.accept_older_publications(),
    ],
)
@pytest.mark.parametrize("running", [True, False])
def test_no_call_raises(
    make: Make, call: Callable[[CalibrationClient], Any], running: bool
) -> None:
    client = make()
    if running:
        client.start()
    call(client)
    assert len(client.current().values) == GAMMA
    client.metrics()


def test_unhashable_requests_cannot_break_the_sample(make: Make) -> None:
    client = make(telemetry=TelemetryOptions(share=0.5))
    assert not client.observe(LOGITS, 3, 1, request=["not", "text"])  # type: ignore[arg-type]
    assert client.metrics()["calls_failed"] == 1


def test_a_system_without_threads_runs_on_what_is_baked_in(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = make(baked_in=[2.0, 2.0, 2.0])

    def fail(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        assert not client.start()
    assert client.metrics()["start_errors"] == 1
    assert client.current().values == (2.0, 2.0, 2.0)
    assert client.start()
    assert eventually(lambda: client.current().state is State.FRESH)


def test_a_child_starts_without_waiting(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a fork the first call starts the client, and that call may be in the decode loop."""
    waits: list[float] = []
    client = make()
    client.start()
    client.stop()
    monkeypatch.setattr(
        "dspark_calib_client.session.Session.start", lambda self, seconds: waits.append(seconds)
    )
    for call in (client.current, lambda: client.observe(LOGITS, 3, 1), client.metrics):
        client.reset_after_fork()
        client._resume = True  # as in the child of a process in which it ran
        call()
    assert waits == [0.0, 0.0, 0.0]


def test_readers_never_see_a_mixed_vector_or_a_step_back(
    make: Make, service: StandInService
) -> None:
    """Publications flip while four threads read: every vector is whole and none goes back."""
    client = make(interval=0.002)
    client.start()
    over = threading.Event()
    faults: list[Any] = []

    def read() -> None:
        last = 0
        while not over.is_set():
            now = client.current()
            if len(set(now.values)) != 1 or now.publication < last:
                faults.append(now)
            if now.publication > 1 and now.values[0] != 1.0 + now.publication / 1000.0:
                faults.append(now)
            last = now.publication
            time.sleep(0)

    readers = [threading.Thread(target=read) for _ in range(4)]
    for reader in readers:
        reader.start()
    for number in range(2, 202):
        service.publish([1.0 + number / 1000.0] * 3)
    assert eventually(lambda: client.current().publication == 201)
    over.set()
    for reader in readers:
        reader.join(30.0)
    assert faults == []
    assert client.metrics()["polls_failed"] == 0


def test_r71_two_clients_hold_the_same_bytes(make: Make, service: StandInService) -> None:
    service.publish([1.23457, 0.987654, 1.0])
    clients = [make(engine_id=f"engine-{index}") for index in range(2)]
    for client in clients:
        client.start()
    for client in clients:
        assert eventually(lambda c=client: c.current().publication == 2)
    one, other = (client.current() for client in clients)
    assert (one.values, one.etag, one.digest) == (other.values, other.etag, other.digest)


def test_r64_new_weights_never_get_the_old_numbers(make: Make, service: StandInService) -> None:
    """Target w1 to w2: the service still calibrates w1, so the engine runs on identity."""
    service.publish([1.5, 1.25, 1.0])
    client = make()
    client.start()
    assert eventually(lambda: client.current().publication == 2)
    client.change_key("22" * 32)
    assert client.current().values == (1.0, 1.0, 1.0)
    assert eventually(lambda: client.metrics()["polls_mismatch"] >= 2)
    assert client.current().values == (1.0, 1.0, 1.0)
