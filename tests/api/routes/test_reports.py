from __future__ import annotations

import hashlib

import pytest

from monitoring.reports.page_policy import PAGE_POLICY
from monitoring.store import jobs, reports
from tests.support.service import Service

PATH = "/v1/drafters/drafter/report"


@pytest.fixture(autouse=True)
def registered(service: Service) -> None:
    service.register()


def store(service: Service, document: bytes, kind: str = "evaluation") -> None:
    with service.database.write() as connection:
        reports.put_report(
            connection,
            "drafter",
            kind,
            document,
            revision=0,
            through_batch=None,
            created_at=1.0,
        )


def test_without_a_report_the_answer_says_how_to_get_one(service: Service) -> None:
    answer = service.client.get(PATH)
    assert answer.status_code == 404
    assert answer.json()["type"] == "/problems/report-not-found"
    assert f"GET {PATH}?refresh=true" in answer.json()["detail"]


def test_the_newest_report_comes_as_it_was_stored(service: Service) -> None:
    store(service, b'{"rows": 1}')
    store(service, b'{"rows":  2}')
    answer = service.client.get(PATH)
    assert (answer.status_code, answer.content) == (200, b'{"rows":  2}')
    assert answer.headers["Content-Type"] == "application/json"
    assert answer.headers["ETag"] == f'"{hashlib.sha256(answer.content).hexdigest()}"'
    again = service.client.get(PATH, headers={"If-None-Match": answer.headers["ETag"]})
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize(
    ("form", "kind", "media_type"),
    [
        ("html", reports.PAGE_KIND, "text/html; charset=utf-8"),
        ("png", reports.PICTURE_KIND, "image/png"),
        ("json", "evaluation", "application/json"),
    ],
)
def test_pages_and_pictures_are_bytes_with_a_tag(
    service: Service, form: str, kind: str, media_type: str
) -> None:
    store(service, b"other", "other")
    missing = service.client.get(PATH, params={"format": form})
    assert missing.json()["type"] == "/problems/report-not-found"
    store(service, b"\x89made by the worker\xff", kind)
    answer = service.client.get(PATH, params={"format": form})
    assert (answer.status_code, answer.content) == (200, b"\x89made by the worker\xff")
    assert answer.headers["Content-Type"] == media_type
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    policies = answer.headers.get_list("Content-Security-Policy")
    assert (policies == [PAGE_POLICY]) == (form == "html")
    tag = answer.headers["ETag"]
    assert tag == f'"{hashlib.sha256(answer.content).hexdigest()}"'
    again = service.client.get(PATH, params={"format": form}, headers={"If-None-Match": tag})
    assert (again.status_code, again.content) == (304, b"")


def test_other_formats_are_named(service: Service) -> None:
    answer = service.client.get(PATH, params={"format": "pdf"})
    assert answer.status_code == 422
    assert "format" in answer.text


def test_refresh_orders_a_report(service: Service) -> None:
    store(service, b"{}")
    answer = service.client.get(PATH, params={"refresh": "true"})
    assert answer.status_code == 202
    assert answer.json()["kind"] == "report"
    assert service.client.get(answer.headers["Location"]).json()["status"] == "queued"
    again = service.client.get(PATH, params={"refresh": "true"})
    assert again.headers["Location"] == answer.headers["Location"]


def test_head_orders_nothing(service: Service) -> None:
    store(service, b"{}")
    answer = service.client.head(PATH, params={"refresh": "true"})
    assert answer.status_code == 200
    with service.database.read() as connection:
        assert jobs.list_jobs(connection) == []


@pytest.mark.parametrize("query", ["", "?refresh=true"])
def test_an_unknown_drafter_is_404(service: Service, query: str) -> None:
    answer = service.client.get(f"/v1/drafters/nobody/report{query}")
    assert answer.json()["type"] == "/problems/drafter-not-found"


def test_refresh_is_a_truth_value(service: Service) -> None:
    assert service.client.get(PATH, params={"refresh": "perhaps"}).status_code == 422
