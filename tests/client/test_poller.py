"""The poller: what it asks, when it asks again, and what it makes of answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dspark_calib_client.backoff import seeded_offset
from dspark_calib_client.bounded_http import Answer, BoundedHttp
from dspark_calib_client.configuration import Configuration
from dspark_calib_client.counters import Counters
from dspark_calib_client.knowledge import Knowledge
from dspark_calib_client.last_known_good import LastKnownGoodFile
from dspark_calib_client.poller import Poller, Reports, problem_slug, status_word
from dspark_calib_client.temperatures import Source
from tests.client.stand_in_service import (
    DRAFTER,
    GAMMA,
    KEY,
    Canned,
    StandInService,
    etag_of,
    problem,
    publication_body,
)


class Bench:
    """A poller without its thread."""

    def __init__(
        self, url: str, *, file: Path | None = None, key: str | None = KEY, **changes: Any
    ) -> None:
        arguments: dict[str, Any] = {
            "base_url": url,
            "drafter": DRAFTER,
            "gamma": GAMMA,
            "key": key,
            "anchor_included": None,
            "engine_id": "engine-0",
            "token": None,
            "state_file": None,
            "interval": 30.0,
            "wait": 0,
            "timeout": 60.0,
            "stale_after": None,
            "start_delay": None,
            "max_backoff": 120.0,
            "segment": None,
            "verify": True,
            "proxy": None,
        }
        self.configuration = Configuration.checked(**{**arguments, **changes})
        self.counters = Counters()
        self.knowledge = Knowledge(self.configuration.expected(key), None)
        self.http = BoundedHttp(token=lambda: None, user_agent="tests")
        self.mismatches = 0
        self.poller = Poller(
            self.configuration,
            self.http,
            self.knowledge,
            None if file is None else LastKnownGoodFile(file, {}),
            self.counters,
            Reports(lambda: {"state": "fallback"}, lambda: 1e9, self._mismatched),
        )

    def _mismatched(self) -> None:
        self.mismatches += 1

    def poll(self) -> str:
        return self.poller.poll_once()[0]

    def values(self) -> tuple[float, ...] | None:
        held = self.knowledge.held.publication
        return None if held is None else held.values


@pytest.fixture
def bench(service: StandInService, tmp_path: Path) -> Iterator[Bench]:
    made = Bench(service.url, file=tmp_path / "good.json")
    yield made
    made.http.close()


def test_it_asks_as_the_contract_says(bench: Bench, service: StandInService) -> None:
    bench.poll()
    bench.poll()
    first, second = service.requests("GET")
    assert first.path == f"/v1/drafters/{DRAFTER}/temperatures"
    assert first.query == {"gamma": "3", "engine": "engine-0", "key": KEY, "state": "fallback"}
    assert "if-none-match" not in first.headers
    assert second.headers["if-none-match"] == etag_of(service.body)


def test_a_segment_is_asked_for(service: StandInService) -> None:
    bench = Bench(service.url, segment={"domain": "code", "adapter": "a&b"})
    bench.poll()
    bench.http.close()
    query = service.requests("GET")[0].query
    assert (query["segment.domain"], query["segment.adapter"]) == ("code", "a&b")


def test_news_and_no_news(bench: Bench, service: StandInService) -> None:
    assert bench.poll() == "changed"
    assert bench.poll() == "unchanged"
    service.publish([1.5, 1.25, 1.0])
    assert bench.poll() == "changed"
    assert bench.values() == (1.5, 1.25, 1.0)
    assert bench.counters.snapshot() == {"polls": 3, "polls_changed": 2, "polls_unchanged": 1}


def test_a_whole_answer_with_nothing_new_is_no_news(bench: Bench, service: StandInService) -> None:
    bench.poll()
    body = service.body
    service.answers.append(Canned(200, body, {"ETag": etag_of(body)}))
    assert bench.poll() == "unchanged"


def test_an_etag_is_remembered_only_with_a_valid_body(
    bench: Bench, service: StandInService
) -> None:
    """A body that is broken must not be confirmed by 304 ever after."""
    broken = publication_body(temperatures=[1.0, -1.0, 1.0])
    service.answers.append(Canned(200, broken, {"ETag": etag_of(broken)}))
    assert bench.poll() == "failed"
    bench.poll()
    assert "if-none-match" not in service.requests("GET")[1].headers


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (Canned(200, b"<html>", {"ETag": etag_of(b"<html>")}), "not_json"),
        (Canned(200, publication_body(), {"ETag": '"0"'}), "wrong_etag"),
        (Canned(200, publication_body()), "wrong_etag"),
        (Canned(304, b"", {"ETag": '"' + "0" * 64 + '"'}), "wrong_etag"),
        (Canned(204), "unexpected_status"),
        (Canned(400), "client_error"),
        (Canned(401), "unauthorized"),
        (Canned(403), "unauthorized"),
        (problem("drafter-not-found", 404), "not_found"),
        (problem("gamma-too-long", 409), "conflict"),
        (Canned(409, b"calibration-key-mismatch"), "conflict"),
        (Canned(409, b"[]", {"Content-Type": "application/problem+json"}), "conflict"),
        (Canned(429), "too_many_requests"),
        (Canned(500), "server_error"),
        (Canned(503), "server_error"),
        (Canned(302, b"", {"Location": "/"}), "redirect"),
    ],
)
def test_other_answers_change_nothing(
    bench: Bench, service: StandInService, answer: Canned, kind: str
) -> None:
    service.publish([1.5, 1.25, 1.0])
    bench.poll()
    before = bench.knowledge.held
    service.answers.append(answer)
    assert bench.poll() == "failed"
    assert bench.counters.value(f"poll_failed_{kind}") == 1
    assert bench.knowledge.held is before  # contact is not renewed either


def test_a_304_that_was_not_asked_for_is_no_contact(bench: Bench, service: StandInService) -> None:
    service.answers.append(Canned(304))
    assert bench.poll() == "failed"
    assert bench.knowledge.held.source is Source.IDENTITY


def test_a_publication_that_goes_back_is_refused(bench: Bench, service: StandInService) -> None:
    service.publish([1.5, 1.25, 1.0], publication=9)
    bench.poll()
    service.publish([1.1, 1.1, 1.1], publication=8)
    assert bench.poll() == "failed"
    assert bench.values() == (1.5, 1.25, 1.0)
    assert bench.counters.value("poll_failed_publication_went_back") == 1


def test_a_mismatch_is_identity_and_no_file(
    bench: Bench, service: StandInService, tmp_path: Path
) -> None:
    service.publish([1.5, 1.25, 1.0])
    bench.poll()
    assert (tmp_path / "good.json").exists()
    service.key = "ee" * 32
    assert bench.poll() == "mismatch"
    assert bench.values() is None
    assert bench.knowledge.held.mismatch
    assert bench.mismatches == 1
    assert not (tmp_path / "good.json").exists()
    service.key = KEY
    assert bench.poll() == "changed"


def test_retry_after_is_handed_on(bench: Bench, service: StandInService) -> None:
    service.answers.append(Canned(429, b"", {"Retry-After": "7"}))
    assert bench.poller.poll_once() == ("failed", 7.0)


def test_the_file_is_written_and_read(
    bench: Bench, service: StandInService, tmp_path: Path
) -> None:
    service.publish([1.5, 1.25, 1.0])
    bench.poll()
    later = Bench("http://127.0.0.1:9", file=tmp_path / "good.json")
    later.poller.load_file()
    assert later.values() == (1.5, 1.25, 1.0)
    assert later.knowledge.held.source is Source.FILE
    assert later.counters.value("file_loaded") == 1


@pytest.mark.parametrize(
    ("key", "gamma", "counter"),
    [("ee" * 32, GAMMA, "file_foreign"), (KEY, 2, "file_foreign"), (None, None, "file_corrupt")],
)
def test_a_file_that_is_wrong_is_ignored_and_counted(
    service: StandInService, tmp_path: Path, key: str | None, gamma: int | None, counter: str
) -> None:
    path = tmp_path / "good.json"
    first = Bench(service.url, file=path)
    first.poll()
    first.http.close()
    if gamma is None:
        path.write_bytes(b"garbage")
    later = Bench(service.url, file=path, key=key or KEY, gamma=gamma or GAMMA)
    later.poller.load_file()
    assert later.values() is None
    assert later.counters.value(counter) == 1


def test_a_disk_that_is_full_does_not_stop_the_news(
    service: StandInService, tmp_path: Path
) -> None:
    bench = Bench(service.url, file=tmp_path / "missing" / "good.json")
    assert bench.poll() == "changed"
    assert bench.counters.value("file_write_errors") == 1
    bench.http.close()


def test_delays_without_a_wait_follow_the_engines_own_instants() -> None:
    bench = Bench("http://127.0.0.1:9", interval=30.0)
    now = time.monotonic()
    offset = seeded_offset("engine-0", 30.0)
    delay = bench.poller._next_delay(("unchanged", None), now, now - 1000.0 + offset)
    instant = now + delay
    assert (instant - (now - 1000.0 + offset)) % 30.0 == pytest.approx(0.0, abs=1.0) or (
        instant - (now - 1000.0 + offset)
    ) % 30.0 == pytest.approx(30.0, abs=1.0)
    assert 1.0 <= delay <= 31.0


def test_delays_with_a_wait() -> None:
    """Ask again at once where the service held the poll or had news, else once an interval."""
    poller = Bench("http://127.0.0.1:9", interval=30.0, wait=20).poller
    now = time.monotonic()
    # The first poll is not held: its answer says nothing about whether the service would.
    assert poller._next_delay(("unchanged", None), now - 2.0, now) == 0.0
    # Held and over: again at once.
    assert poller._next_delay(("unchanged", None), now - 20.0, now) == 0.0
    # Held for less than asked, by a service with a limit of its own.
    assert poller._next_delay(("unchanged", None), now - 6.0, now) == 0.0
    # Not held although asked to: the service cannot, so do not spin.
    assert poller._next_delay(("unchanged", None), now - 0.01, now - 1.0) > 10.0
    # News: soon, but not with the whole fleet at one instant.
    delays = {poller._next_delay(("changed", None), now - 5.0, now) for _ in range(5)}
    assert len(delays) == 5
    assert all(0.0 <= delay <= 1.0 for delay in delays)
    # News all the time: at most one poll a second.
    assert poller._next_delay(("changed", None), time.monotonic(), now) >= 0.3
    # Failures back off, and honour what the service asks.
    assert poller._next_delay(("failed", 77.0), now, now) == 77.0
    assert poller._next_delay(("interrupted", None), now, now) == 0.0


@pytest.mark.slow
def test_a_held_poll_is_asked_for_after_the_first(service: StandInService) -> None:
    bench = Bench(service.url, wait=1, interval=0.2, start_delay=0.0, timeout=60.0)
    stop = threading.Event()
    thread = threading.Thread(target=bench.poller.run, args=[stop], daemon=True)
    thread.start()
    assert service.wait_for(lambda: len(service.seen) >= 3)
    service.publish([2.0, 2.0, 2.0])
    assert service.wait_for(lambda: len(service.seen) >= 4)
    stop.set()
    bench.http.abort()
    bench.poller.wake.set()
    thread.join(60.0)
    assert not thread.is_alive()
    waits = [seen.query.get("wait") for seen in service.requests("GET")]
    assert waits[0] is None
    assert waits[1:3] == ["1", "1"]


def test_faults_of_reports_do_not_end_the_thread(service: StandInService) -> None:
    bench = Bench(service.url, interval=0.05, start_delay=0.0, max_backoff=0.05)

    def fail() -> Any:
        raise RuntimeError("broken")

    bench.poller._reports = Reports(fail, fail, fail)
    stop = threading.Event()
    thread = threading.Thread(target=bench.poller.run, args=[stop], daemon=True)
    thread.start()
    ends = time.monotonic() + 60.0
    while bench.counters.value("poller_errors") < 5 and time.monotonic() < ends:
        time.sleep(0.01)
    stop.set()
    bench.poller.wake.set()
    thread.join(60.0)
    assert bench.counters.value("poller_errors") >= 5
    assert not thread.is_alive()


@pytest.mark.parametrize(
    ("kind", "body", "slug"),
    [
        ("application/problem+json", b'{"type": "/problems/x-y"}', "x-y"),
        ("application/problem+json; charset=utf-8", b'{"type": "https://h/p/x"}', "x"),
        ("application/json", b'{"type": "/problems/x"}', None),
        ("application/problem+json", b"{}", None),
        ("application/problem+json", b"nothing", None),
        ("application/problem+json", b"[" * 100_000, None),
        ("application/problem+json", b"\xff", None),
    ],
)
def test_problem_slugs(kind: str, body: bytes, slug: str | None) -> None:
    assert problem_slug(Answer(409, {"content-type": kind}, body)) == slug


def test_statuses_have_few_words() -> None:
    assert len({status_word(status) for status in range(100, 1000)}) == 7
