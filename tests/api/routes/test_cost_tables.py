from __future__ import annotations

from typing import Any

import pytest

from monitoring.store.audit import list_audit
from tests.support.service import Service

PATH = "/v1/drafters/drafter/cost-table"
STAIRCASE = {
    "draft_curve": [[1, 1.0]],
    "verify_curve": [[8, 10.0], [64, 12.0]],
    "cudagraph_limit": 64,
}
FLAT = {
    "sample_batch_tokens": [1, 64],
    "sample_steps_per_sec": [90.0, 70.5],
    "max_batch_tokens": 128,
}
ADDITIVE = {
    "bias_seconds": 0.01,
    "bs_probes": [1, 8],
    "alpha_seconds": [0.0, 0.001],
    "m_probes": [1, 64],
    "theta_seconds": [0.0, 0.002],
}
MEASURED = {"batch_tokens": [1, 64], "step_seconds": [0.011, 0.014]}


@pytest.fixture(autouse=True)
def registered(service: Service) -> None:
    service.register()


@pytest.mark.parametrize(
    ("kind", "table"),
    [("flat", FLAT), ("additive", ADDITIVE), ("staircase", STAIRCASE), ("measured", MEASURED)],
)
def test_every_kind_of_table_is_kept(service: Service, kind: str, table: dict[str, Any]) -> None:
    before = service.etag()
    answer = service.client.put(PATH, json=table)
    assert answer.status_code == 200
    assert (answer.json()["kind"], answer.json()["table"]) == (kind, table)
    assert service.client.get(PATH).json() == answer.json()
    assert service.etag() != before
    with service.database.read() as connection:
        assert list_audit(connection)[0].action == "put_cost_table"


def test_if_match_is_optional_and_holds_when_sent(service: Service) -> None:
    old = service.etag()
    assert service.client.put(PATH, json=FLAT, headers={"If-Match": old}).status_code == 200
    answer = service.client.put(PATH, json=MEASURED, headers={"If-Match": old})
    assert answer.status_code == 412
    assert service.client.get(PATH).json()["kind"] == "flat"


@pytest.mark.parametrize(
    "raw",
    [
        b"{}",
        b'{"batch_tokens": [1, 64], "step_seconds": [0.011]}',
        b'{"batch_tokens": [64, 1], "step_seconds": [0.011, 0.014]}',
        b'{"batch_tokens": [1, 64], "step_seconds": [0.011, NaN]}',
        b'{"batch_tokens": [1, 64], "step_seconds": [0.011, 1e400]}',
        b'{"batch_tokens": [1, 64], "step_seconds": [0.011, -1]}',
        b'{"batch_tokens": [1, 64], "step_seconds": [0.011, "0.014"]}',
        b'{"batch_tokens": [true, 64], "step_seconds": [0.011, 0.014]}',
        b'{"bias_seconds": 0.1}',
        b"[]",
        b"3",
    ],
)
def test_a_table_that_is_none_is_422(service: Service, raw: bytes) -> None:
    answer = service.client.put(PATH, content=raw, headers={"Content-Type": "application/json"})
    assert answer.status_code == 422
    assert service.client.get(PATH).status_code == 404


def test_without_a_table_the_answer_says_how_to_send_one(service: Service) -> None:
    answer = service.client.get(PATH)
    assert answer.json()["type"] == "/problems/cost-table-not-found"
    assert f"PUT {PATH}" in answer.json()["detail"]


def test_an_unknown_drafter_is_404(service: Service) -> None:
    path = "/v1/drafters/nobody/cost-table"
    assert service.client.get(path).json()["type"] == "/problems/drafter-not-found"
    assert service.client.put(path, json=FLAT).json()["type"] == "/problems/drafter-not-found"
