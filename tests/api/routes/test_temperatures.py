from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from api.routes.temperatures import PATH
from calib.calibration import Calibration
from calib.calibration_key import CalibrationKey
from calib.formats.sglang_sts import parse_sts
from calib.segment_serving import SegmentTable
from calib.segment_tags import POOL, SegmentBuckets, SegmentKey, SegmentLevels
from calib.served_segment import ServedSegment
from monitoring.store.errors import StoreUnavailableError
from monitoring.store.revisions import add_revision
from tests.support.service import KEY, Service, empty_database, running_service

STS = "application/vnd.sglang.dspark-sts+json"
KEY_DIGEST = CalibrationKey.from_dict(KEY).digest
TEMPERATURES = [1.7, 1.6, 1.5, 1.4, 1.3, 1.2, 1.1]


@pytest.fixture
def fitted(service: Service) -> Service:
    """γ = 7 published by hand as publication 2."""
    service.register()
    service.publish(TEMPERATURES)
    return service


def test_the_poll_comes_first(service: Service) -> None:
    """It is what engines send most, so its path is tried before all others."""
    assert service.app.router.routes[0].path == PATH  # type: ignore[attr-defined]


def test_past_the_framework_a_poll_keeps_what_every_call_has(service: Service) -> None:
    service.register()
    url = "/v1/drafters/drafter/temperatures"
    head = service.client.head(f"{url}?gamma=7")
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["X-Frame-Options"] == "DENY"
    assert head.headers["ETag"] == service.poll().headers["ETag"]
    other = service.client.post(url)
    assert (other.status_code, other.headers["Allow"]) == (405, "GET, HEAD")
    for address, status in ((f"{url}?x={'a' * 9000}", 414), (f"{url}%0A?gamma=7", 200)):
        assert service.client.get(address).status_code == status
    refused = service.client.get(f"{url}?gamma=x", headers={"X-Request-ID": "mine"})
    assert (refused.status_code, refused.json()["request_id"]) == (422, "mine")


def test_before_any_fit_identity_is_served(service: Service) -> None:
    service.register()
    answer = service.poll()
    assert answer.status_code == 200
    body = answer.json()
    assert (body["status"], body["temperatures"]) == ("identity", [1] * 7)
    assert (body["revision"], body["publication"]) == (0, 1)


def test_the_answer_and_its_headers(fitted: Service) -> None:
    answer = fitted.poll()
    assert answer.status_code == 200
    assert answer.json()["temperatures"] == TEMPERATURES
    headers = answer.headers
    assert headers["ETag"] == f'"{hashlib.sha256(answer.content).hexdigest()}"'
    assert headers["Content-Type"] == "application/json"
    assert headers["Cache-Control"] == "no-cache, stale-if-error=86400"
    assert headers["Vary"] == "Accept"
    assert headers["Publication"] == "2"
    assert "Warning" not in headers


def test_r71_two_clients_get_the_same_bytes_and_304_without_a_body(fitted: Service) -> None:
    one, other = fitted.poll(engine="a", client="1"), fitted.poll(engine="b", state="stale")
    assert one.content == other.content
    assert one.headers["ETag"] == other.headers["ETag"]
    again = fitted.poll(headers={"If-None-Match": one.headers["ETag"]})
    assert again.status_code == 304
    assert again.content == b""
    assert again.headers["ETag"] == one.headers["ETag"]
    assert again.headers["Publication"] == "2"
    assert again.headers["Vary"] == "Accept"
    assert "Content-Type" not in again.headers


@pytest.mark.parametrize("form", ["W/{}", '"x", {}', "*"])
def test_every_form_of_if_none_match_is_understood(fitted: Service, form: str) -> None:
    tag = fitted.poll().headers["ETag"]
    assert fitted.poll(headers={"If-None-Match": form.format(tag)}).status_code == 304


def test_head_says_what_get_would(fitted: Service) -> None:
    path = PATH.format(drafter="drafter")
    get, head = fitted.client.get(f"{path}?gamma=7"), fitted.client.head(f"{path}?gamma=7")
    assert head.status_code == 200
    assert head.content == b""
    for name in ("ETag", "Publication", "Content-Length", "Content-Type", "Vary"):
        assert head.headers[name] == get.headers[name]


def test_r70_a_shorter_gamma_gets_the_prefix_and_a_longer_one_409(fitted: Service) -> None:
    five = fitted.poll(gamma=5)
    assert five.status_code == 200
    assert five.json()["temperatures"] == TEMPERATURES[:5]
    assert five.json()["derived_from_gamma"] == 7
    assert five.headers["ETag"] == f'"{hashlib.sha256(five.content).hexdigest()}"'
    seven = fitted.poll(gamma=7)
    assert seven.json()["temperatures"] == TEMPERATURES
    assert seven.json()["derived_from_gamma"] is None
    eight = fitted.poll(gamma=8)
    assert eight.status_code == 409
    assert eight.json()["type"] == "/problems/gamma-too-long"
    assert eight.json()["published_gamma"] == 7
    none = fitted.client.get(PATH.format(drafter="drafter"))
    assert none.status_code == 422
    assert none.json()["errors"][0]["pointer"] == "query:gamma"


def test_variants_have_tags_of_their_own(fitted: Service) -> None:
    full = fitted.poll().headers["ETag"]
    for other in (
        fitted.poll(gamma=5, headers={"If-None-Match": full}),
        fitted.poll(headers={"If-None-Match": full, "Accept": STS}),
        fitted.poll(headers={"If-None-Match": full}, **{"segment.domain": "code"}),
    ):
        assert other.status_code == 200
        assert other.headers["ETag"] != full


def test_wait_is_no_part_of_the_tag(fitted: Service) -> None:
    """Without If-None-Match it is answered at once, with the same bytes."""
    started = time.monotonic()
    waited = fitted.poll(wait=60)
    assert time.monotonic() - started < 30
    assert waited.headers["ETag"] == fitted.poll().headers["ETag"]


def test_a_wait_for_something_old_is_answered_at_once(fitted: Service) -> None:
    started = time.monotonic()
    answer = fitted.poll(wait=60, headers={"If-None-Match": '"older"'})
    assert answer.status_code == 200
    assert time.monotonic() - started < 30


def test_a_wait_without_news_ends_with_304(fitted: Service) -> None:
    tag = fitted.poll().headers["ETag"]
    started = time.monotonic()
    answer = fitted.poll(wait=1, headers={"If-None-Match": tag})
    assert answer.status_code == 304
    assert time.monotonic() - started >= 1.0


@pytest.mark.parametrize("wait", ["61", "-1", "1.5", "30s", ""])
def test_wait_is_whole_seconds_up_to_sixty(fitted: Service, wait: str) -> None:
    assert fitted.poll(wait=wait).status_code == 422


def test_the_engines_own_file_comes_by_its_media_type(fitted: Service) -> None:
    answer = fitted.poll(headers={"Accept": STS})
    assert answer.headers["Content-Type"] == STS
    assert parse_sts(answer.content, 7).temperatures == tuple(TEMPERATURES)
    assert "ece_before" not in answer.json()  # hand-made numbers have none
    assert answer.json()["publication"] == 2


def test_an_unknown_media_type_is_406(fitted: Service) -> None:
    answer = fitted.poll(headers={"Accept": "text/html"})
    assert answer.status_code == 406
    assert answer.json()["available"] == ["application/json", STS]


def test_r64_another_key_is_never_matched_silently(fitted: Service) -> None:
    assert fitted.poll(key=KEY_DIGEST).status_code == 200
    changed = CalibrationKey.from_dict({**KEY, "target_revision": "w2"})
    answer = fitted.poll(key=changed.digest)
    assert answer.status_code == 409
    body = answer.json()
    assert body["type"] == "/problems/calibration-key-mismatch"
    assert body["serving_status"] == "uncalibrated"
    assert (body["expected_key"], body["given_key"]) == (KEY_DIGEST, changed.digest)
    assert "temperatures" not in body
    # The changed model is a drafter of its own and begins at identity.
    assert fitted.register(target_revision="w2").status_code == 409
    assert fitted.register("drafter-w2", target_revision="w2").status_code == 201
    fresh = fitted.poll("drafter-w2", key=changed.digest)
    assert (fresh.json()["status"], fresh.json()["temperatures"]) == ("identity", [1] * 7)


def test_a_shorter_engine_may_send_the_digest_of_its_own_key(fitted: Service) -> None:
    own = CalibrationKey.from_dict({**KEY, "gamma": 5})
    assert fitted.poll(gamma=5, key=own.digest).status_code == 200
    assert fitted.poll(gamma=6, key=own.digest).status_code == 409


def test_r65_a_segment_is_answered_with_what_it_was_matched(fitted: Service) -> None:
    answer = fitted.poll(**{"segment.sampling_temperature": "1.0", "segment.domain": "code"})
    assert answer.json()["segment"] == {
        "requested": {"domain": "code", "sampling_temperature": "1.0"},
        "matched": None,
        "level": "pooled",
    }
    assert answer.json()["temperatures"] == TEMPERATURES
    assert fitted.poll().json()["segment"] is None


def test_segments_of_a_revision_are_served_by_tag(service: Service) -> None:
    """Code traffic gets numbers of its own, unseen traffic its parent's; SGLang's file follows."""
    service.register()
    code = SegmentKey.of({"domain": "code"})
    table = SegmentTable(
        gamma=7,
        buckets=SegmentBuckets(),
        levels=SegmentLevels((("domain",),)),
        segments={
            POOL: ServedSegment(POOL, 9000, tuple(TEMPERATURES)),
            code: ServedSegment(code, 700, (2.5,) * 7, (0.5,) * 7, (0.25,) * 7),
        },
        seen={"domain": ("code",)},
    )
    pooled = Calibration.from_temperatures(TEMPERATURES, gamma=7)
    with service.database.write() as connection:
        revision = add_revision(
            connection, "drafter", pooled, segments=table.to_dict(), provenance={}, actor="tests"
        )
    assert service.promote(revision.number).status_code == 200
    plain, known = service.poll(), service.poll(**{"segment.domain": "code"})
    assert known.json()["temperatures"] == [2.5] * 7
    assert known.json()["affine"] == {"slopes": [0.5] * 7, "intercepts": [0.25] * 7}
    assert known.json()["segment"] == {
        "requested": {"domain": "code"},
        "matched": {"domain": "code"},
        "level": "segment",
    }
    assert known.headers["ETag"] != plain.headers["ETag"]
    same = {"If-None-Match": known.headers["ETag"]}
    assert service.poll(headers=same, **{"segment.domain": "code"}).status_code == 304
    unseen = service.poll(**{"segment.domain": "poetry"}).json()
    assert (unseen["temperatures"], unseen["segment"]["level"]) == (TEMPERATURES, "pooled")
    files = [
        service.poll(headers={"Accept": STS}, **query).json()["temperatures"]
        for query in ({}, {"segment.domain": "code"})
    ]
    assert files == [TEMPERATURES, [2.5] * 7]


def test_r65_by_setting_an_unmatched_segment_gets_identity(tmp_path: Path) -> None:
    with running_service(empty_database(tmp_path), unmatched_segment="identity") as service:
        service.register()
        service.publish(TEMPERATURES)
        found = service.poll(**{"segment.sampling_temperature": "1.0"}).json()
        assert (found["status"], found["temperatures"]) == ("uncalibrated", [1] * 7)
        assert found["segment"]["level"] == "identity"
        assert service.poll().json()["temperatures"] == TEMPERATURES


@pytest.mark.parametrize("value", ["warm", "-1", "nan", "inf"])
def test_a_segment_value_that_is_no_number_is_422(fitted: Service, value: str) -> None:
    answer = fitted.poll(**{"segment.sampling_temperature": value})
    assert answer.status_code == 422
    assert "segment.sampling_temperature" in answer.json()["detail"]


def test_an_unknown_drafter_is_404_with_what_to_do(service: Service) -> None:
    answer = service.poll("nobody")
    assert answer.status_code == 404
    assert answer.json()["type"] == "/problems/drafter-not-found"


@pytest.mark.parametrize("name", ["UPPER", "-x", "a b", "x" * 129, "é", "a%00b"])
def test_a_name_that_is_none_is_no_drafter(service: Service, name: str) -> None:
    assert service.poll(name).status_code in (404, 422)


def test_every_answer_of_a_revision_is_the_same_after_a_restart(tmp_path: Path) -> None:
    url = empty_database(tmp_path)

    def answers() -> Iterator[bytes]:
        with running_service(url) as service:
            if service.register().status_code == 201:
                service.publish(TEMPERATURES)
            for gamma in range(1, 8):
                yield service.poll(gamma=gamma).content
                yield service.poll(gamma=gamma, headers={"Accept": STS}).content
                yield service.poll(gamma=gamma, **{"segment.domain": "code"}).content

    assert list(answers()) == list(answers())


def test_a_rollback_moves_the_publication_forward(fitted: Service) -> None:
    before = fitted.poll().json()
    answer = fitted.client.post(
        "/v1/drafters/drafter/rollback", headers={"If-Match": fitted.etag()}
    )
    assert answer.status_code == 200
    after = fitted.poll().json()
    assert (before["publication"], before["revision"]) == (2, 1)
    assert (after["publication"], after["revision"]) == (3, 0)
    assert after["temperatures"] == [1] * 7


def test_an_outage_serves_the_last_known_with_a_warning(
    fitted: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = fitted.poll()

    def away(*_: Any, **__: Any) -> None:
        raise StoreUnavailableError("away")

    monkeypatch.setattr(fitted.database, "read", away)
    feed = fitted.app.state.feed
    deadline = time.monotonic() + 30
    while feed.reachable and time.monotonic() < deadline:
        feed.poke()
        time.sleep(0.02)
    time.sleep(1.1)  # what is known about the caller is older than a second by now
    during = fitted.poll()
    assert during.status_code == 200
    assert during.content == before.content
    assert during.headers["Warning"].startswith("110 ")
    unchanged = fitted.poll(headers={"If-None-Match": before.headers["ETag"]})
    assert (unchanged.status_code, "Warning" in unchanged.headers) == (304, True)
    assert fitted.poll("nobody").status_code == 503
    ready = fitted.client.get("/readyz")
    assert ready.status_code == 503
    assert ready.json()["checks"]["publications"]["ok"] is False


def test_it_is_described_with_every_parameter(service: Service) -> None:
    operation = service.client.get("/openapi.json").json()["paths"][PATH]["get"]
    assert operation["operationId"] == "get_temperatures"
    names = {parameter["name"] for parameter in operation["parameters"]}
    assert {"drafter", "gamma", "wait", "key", "If-None-Match", "segment.domain"} <= names
    assert {"200", "304", "401", "403", "404", "406", "409", "422", "503"} <= set(
        operation["responses"]
    )
    assert set(operation["responses"]["200"]["content"]) == {"application/json", STS}
    assert operation["security"]
    json.dumps(operation)
