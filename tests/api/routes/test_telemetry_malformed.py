"""Whatever is wrong with a request: a problem, nothing stored, and rejected rows counted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.api.ingest_service import IngestService, ingest_service
from tests.api.malformed_corpus import GAMMA, GOOD_BODY, MalformedRequest, malformed_requests

DRAFTER = "seven"
PATH = f"/v1/drafters/{DRAFTER}/telemetry"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[IngestService]:
    """One service for the whole corpus, so that each request meets what others left behind."""
    folder: Path = tmp_path_factory.mktemp("malformed")
    with ingest_service(f"sqlite:///{folder / 'store.db'}") as running:
        running.register(DRAFTER, GAMMA)
        assert running.post(GOOD_BODY, path=PATH).status_code == 202
        yield running


def test_the_corpus_is_large_and_named() -> None:
    corpus = malformed_requests()
    assert len(corpus) >= 300
    assert len({request.name for request in corpus}) == len(corpus)


@pytest.mark.parametrize("request_", malformed_requests(), ids=lambda request: request.name)
def test_a_malformed_request_changes_nothing_but_the_reject_counter(
    service: IngestService, request_: MalformedRequest
) -> None:
    before = service.counters(DRAFTER)
    answer = service.post(request_.body, request_.raw_headers, path=request_.path(DRAFTER))
    problem = answer.json()
    assert answer.headers["content-type"] == "application/problem+json"
    assert (answer.status_code, problem["type"]) == (
        request_.status,
        f"/problems/{request_.slug}",
    )
    assert problem["status"] == request_.status
    assert problem["detail"]
    assert service.counters(DRAFTER) == replace(
        before, rejected=before.rejected + request_.rejected
    )
    if request_.slug == "no-valid-rows":
        assert problem["accepted"] == 0
        assert problem["rejected_total"] == request_.rejected
        assert all(fault["field"] and fault["reason"] for fault in problem["rejected"])
    assert service.app.state.ingest.pending.used == 0


def test_good_rows_still_get_in(service: IngestService) -> None:
    before = service.counters(DRAFTER)
    assert service.post(GOOD_BODY, path=PATH).status_code == 202
    assert service.counters(DRAFTER).rows == before.rows + 1
