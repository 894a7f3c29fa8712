from __future__ import annotations

import pytest
from starlette.requests import Request

from api.dashboard import fleet_queries
from api.dashboard.page_route import wants_page
from monitoring.store.errors import StoreUnavailableError
from tests.support.service import Service


def test_faults_are_pages_for_people_and_problems_for_programs(shown: Service) -> None:
    page = shown.client.get("/drafters/nobody")
    assert (page.status_code, page.headers["Content-Type"]) == (404, "text/html; charset=utf-8")
    assert "No such drafter" in page.text
    assert page.headers["X-Request-ID"] in page.text
    for headers in ({"Accept": "*/*"}, {"X-Dashboard-Live": "1"}):
        answer = shown.client.get("/drafters/nobody", headers=headers)
        assert (answer.status_code, answer.json()["type"]) == (404, "/problems/drafter-not-found")
    # The API keeps to its problems, whoever asks.
    api = shown.client.get("/v1/drafters/nobody")
    assert api.headers["Content-Type"] == "application/problem+json"


def test_an_address_that_no_route_has_is_a_page_for_people(shown: Service) -> None:
    page = shown.client.get("/nowhere")
    assert (page.status_code, page.headers["Content-Type"]) == (404, "text/html; charset=utf-8")
    assert "There is no page /nowhere." in page.text
    for path, headers in (("/nowhere", {"Accept": "*/*"}), ("/v1/nowhere", {})):
        answer = shown.client.get(path, headers=headers)
        assert (answer.status_code, answer.json()["type"]) == (404, "/problems/not-found")


@pytest.mark.parametrize(
    "path", ["/drafters/%3Cscript%3E", "/drafters/first/revisions/x", "/drafters/first/revisions/9"]
)
def test_strange_addresses_are_not_found(shown: Service, path: str) -> None:
    answer = shown.client.get(path)
    assert answer.status_code == 404
    assert "<script>" not in answer.text


@pytest.mark.parametrize(
    ("error", "status"),
    [(StoreUnavailableError("secret host"), 503), (RuntimeError("secret"), 500)],
)
def test_outages_have_a_page_without_internals(
    shown: Service, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(fleet_queries, "engine_counts", fail)
    answer = shown.client.get("/")
    assert answer.status_code == status
    assert "secret" not in answer.text
    assert "Try again" in answer.text


def test_a_link_from_elsewhere_loads_the_page_again(shown: Service) -> None:
    headers = {"Authorization": "Bearer wrong", "Sec-Fetch-Site": "cross-site"}
    answer = shown.client.get("/drafters/first?view=conditional", headers=headers)
    assert answer.status_code == 200
    assert 'content="0;url=/drafters/first?view=conditional"' in answer.text
    headers["Sec-Fetch-Site"] = "same-origin"
    led = shown.client.get("/drafters/first", headers=headers, follow_redirects=False)
    assert led.status_code == 303


def test_a_browser_names_html() -> None:
    def asks(accept: str) -> bool:
        scope = {"type": "http", "headers": [(b"accept", accept.encode())]}
        return wants_page(Request(scope))

    assert asks("text/html,application/xhtml+xml;q=0.9,*/*;q=0.8")
    assert not asks("*/*")
    assert not asks("application/json")
