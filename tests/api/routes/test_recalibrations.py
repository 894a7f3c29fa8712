from __future__ import annotations

import pytest

from monitoring.store import jobs
from monitoring.store.audit import list_audit
from tests.support.service import Service

PATH = "/v1/drafters/drafter/recalibrations"


@pytest.fixture(autouse=True)
def registered(service: Service) -> None:
    service.register()


def test_an_order_is_a_queued_job(service: Service) -> None:
    answer = service.client.post(PATH, json={"method": "temperature", "rows": 5000})
    assert answer.status_code == 202
    body = answer.json()
    assert (body["status"], body["kind"], body["drafter"]) == ("queued", "recalibration", "drafter")
    assert body["options"] == {"method": "temperature", "rows": 5000}
    assert answer.headers["Location"] == f"/v1/jobs/{body['id']}"
    assert int(answer.headers["Retry-After"]) >= 1
    assert service.client.get(answer.headers["Location"]).json() == body
    with service.database.read() as connection:
        assert jobs.get_job(connection, body["id"]).kind == "recalibration"
        assert list_audit(connection)[0].action == "enqueue"


def test_without_a_body_the_defaults_hold(service: Service) -> None:
    answer = service.client.post(PATH)
    assert answer.status_code == 202
    assert answer.json()["options"] == {}


def test_an_order_that_waits_is_not_doubled(service: Service) -> None:
    one, same = service.client.post(PATH), service.client.post(PATH, json={"method": "auto"})
    other = service.client.post(PATH, json={"method": "temperature"})
    assert one.json()["id"] == same.json()["id"] != other.json()["id"]


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"method": "magic"}, "#/method"),
        ({"rows": 0}, "#/rows"),
        ({"rows": "5000"}, "#/rows"),
        ({"rows": 1.5}, "#/rows"),
        ({"rows": 10**12}, "#/rows"),
        ({"minimum_rows": -1}, "#/minimum_rows"),
        ({"evaluation_share": 0}, "#/evaluation_share"),
        ({"evaluation_share": 1.0}, "#/evaluation_share"),
        ({"evaluation_share": True}, "#/evaluation_share"),
        ({"mode": "parity"}, "#/mode"),
        ({"largest_tenant_share": 0}, "#/largest_tenant_share"),
        ({"promote": "always"}, "#/promote"),
        ({"reason": ""}, "#/reason"),
        ({"window": {"from_batch": -1}}, "#/window/from_batch"),
        ({"window": {"newest": 3}}, "#/window/newest"),
        ({"source": "memory"}, "#/source"),
        ({"source": "sketches", "hours": 0}, "#/hours"),
        ({"source": "sketches", "half_life_hours": 0}, "#/half_life_hours"),
    ],
)
def test_a_wrong_option_is_422(service: Service, body: dict[str, object], pointer: str) -> None:
    answer = service.client.post(PATH, json=body)
    assert answer.status_code == 422
    assert [fault["pointer"] for fault in answer.json()["errors"]] == [pointer]


def test_every_option_reaches_the_job(service: Service) -> None:
    asked = {
        "method": "segments",
        "window": {"from_batch": 3, "through_batch": 9},
        "reason": "drift at position 2",
        "promote": "guard",
        "largest_tenant_share": 0.25,
    }
    answer = service.client.post(PATH, json=asked)
    assert answer.status_code == 202
    assert answer.json()["options"] == asked
    half = service.client.post(PATH, json={"window": {"through_batch": 9}})
    assert half.json()["options"] == {"window": {"through_batch": 9}}
    assert service.client.post(PATH, json={"window": {}}).json()["options"] == {}


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ({"hours": 3}, "hours"),
        ({"source": "sketches", "method": "sts"}, "method"),
        ({"source": "sketches", "promote": "guard"}, "promote"),
        ({"source": "sketches", "rows": 500}, "rows"),
    ],
)
def test_what_sketches_cannot_do_is_422(
    service: Service, body: dict[str, object], name: str
) -> None:
    good = {"source": "sketches", "hours": 6, "half_life_hours": 2.5}
    assert service.client.post(PATH, json=good).json()["options"] == good
    answer = service.client.post(PATH, json=body)
    assert answer.status_code == 422
    assert name in answer.json()["detail"]


def test_a_window_that_ends_before_it_begins_is_422(service: Service) -> None:
    answer = service.client.post(PATH, json={"window": {"from_batch": 9, "through_batch": 3}})
    assert answer.status_code == 422
    assert "window.through_batch" in answer.json()["detail"]


def test_an_unknown_drafter_is_404(service: Service) -> None:
    assert service.client.post("/v1/drafters/nobody/recalibrations").status_code == 404


def test_a_finished_job_shows_its_result(service: Service) -> None:
    path = service.client.post(PATH).headers["Location"]
    database = service.database
    with database.write() as connection:
        leased = jobs.lease_next(connection, database, "worker")
    assert leased is not None
    assert service.client.get(path).json()["status"] == "running"
    with database.write() as connection:
        jobs.finish(connection, leased, "refused", result={"reason": "not_better"})
    body = service.client.get(path).json()
    assert (body["status"], body["result"]) == ("refused", {"reason": "not_better"})
    assert body["finished_at"]
    assert "lease_owner" not in body


@pytest.mark.parametrize(("job", "status"), [("0" * 32, 404), ("x", 422), ("A" * 32, 422)])
def test_an_unknown_job_is_no_job(service: Service, job: str, status: int) -> None:
    assert service.client.get(f"/v1/jobs/{job}").status_code == status
