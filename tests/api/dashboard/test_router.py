"""Pages as text; test_router_in_browser.py looks at them."""

from __future__ import annotations

import json
import re

import pytest

from monitoring.store.reports import PAGE_KIND, put_report
from tests.api.dashboard import seeding
from tests.support.service import Service, empty_database, running_service

HOSTILE = '"><script>alert(1)</script>'


def test_an_empty_service_says_how_to_begin(tmp_path_factory: pytest.TempPathFactory) -> None:
    with running_service(empty_database(tmp_path_factory.mktemp("empty"))) as service:
        page = service.client.get("/", headers={"Accept": "text/html"})
        # What it shows is a command that works, once the names are filled in.
        shown = re.search(r"curl -X PUT (\S+) .*?-d '(.*?)'", page.text, re.DOTALL)
        assert shown is not None
        body = json.loads(shown[2].replace("…", "x"))
        assert service.client.put(shown[1], json=body).status_code == 201
    assert page.status_code == 200
    assert "No drafters yet" in page.text
    assert "serve --demo" in page.text


@pytest.mark.parametrize(
    "path", ["/drafters/first", "/drafters/first/engines", "/drafters/first/revisions/0"]
)
def test_pages_without_anything_to_show_are_pages(shown: Service, path: str) -> None:
    page = shown.client.get(path)
    assert page.status_code == 200
    assert page.headers["Content-Security-Policy"].startswith(
        "default-src 'none'; script-src 'self'"
    )


def test_names_from_outside_stay_text(shown: Service) -> None:
    seeding.see_engines(shown.database, "second", 2, publication=1, prefix=HOSTILE)
    seeding.raise_event(
        shown.database, HOSTILE, drafter="second", kind=HOSTILE, details={"reason": HOSTILE}
    )
    test = seeding.drift_test(3, 7.0, segment={HOSTILE: HOSTILE}, scope="segment")
    held = {"monitor": HOSTILE, "status": "held", "message": HOSTILE, "engine": HOSTILE}
    decision = {"kind": HOSTILE, "at": HOSTILE, "reason": HOSTILE}
    seeding.save_drift(
        shown.database,
        "second",
        tests=[test],
        data_quality=[held],
        last_decision=decision,
        status="held",
    )
    number = seeding.add_revision(shown.database, "second", [1.1] * 7, reason=HOSTILE)
    for path in ("", "/engines", "/engines?q=" + HOSTILE, f"/revisions/{number}"):
        page = shown.client.get(f"/drafters/second{path}")
        assert page.status_code == 200
        assert HOSTILE not in page.text, path
        assert "alert(1)" in page.text, path
    fleet = shown.client.get("/", params={"q": HOSTILE, "sort": HOSTILE, "status": HOSTILE}).text
    assert HOSTILE not in fleet


def test_a_page_that_has_not_changed_is_not_sent_again(shown: Service) -> None:
    headers = {"X-Dashboard-Live": "1"}
    first = shown.client.get("/drafters/first", headers=headers)
    again = shown.client.get(
        "/drafters/first", headers=headers | {"If-None-Match": first.headers["ETag"]}
    )
    assert (again.status_code, again.content) == (304, b"")
    seeding.raise_event(shown.database, "News", drafter="first", details={"theta_loss": 0.012})
    news = shown.client.get(
        "/drafters/first", headers=headers | {"If-None-Match": first.headers["ETag"]}
    )
    assert (news.status_code, "News" in news.text) == (200, True)
    assert "Costs about 1.2 % of throughput." in news.text


def test_engines_are_found_by_id_and_status(shown: Service) -> None:
    seeding.see_engines(shown.database, "first", 130, publication=1, behind=3, silent=1)
    page = shown.client.get("/drafters/first/engines").text
    assert "126" in page
    assert page.count("<tr>") == 1 + 100
    assert 'rel="next"' in page
    behind = shown.client.get("/drafters/first/engines?status=behind").text
    assert behind.count("<tr>") == 1 + 3
    assert 'page=1"' not in behind
    last = shown.client.get("/drafters/first/engines?page=2").text
    assert (last.count("<tr>"), 'rel="prev"' in last) == (1 + 30, True)


def test_the_report_is_the_apis(shown: Service) -> None:
    missing = shown.client.get("/drafters/first/report")
    assert missing.status_code == 404
    assert "No report yet" in missing.text
    stored = {"evaluation": b'{"revision":0,"created_at":"x","reason":"no_rows"}'}
    stored[PAGE_KIND] = b"<!doctype html><title>printed</title>"
    with shown.database.write() as connection:
        for kind, document in stored.items():
            put_report(
                connection,
                "first",
                kind,
                document,
                revision=0,
                through_batch=None,
                created_at=0.0,
            )
    printed = shown.client.get("/drafters/first/report")
    assert (printed.content, printed.status_code) == (stored[PAGE_KIND], 200)
    assert printed.headers["Content-Type"].startswith("text/html")
    seeding.store_rows(shown.database, "first", seeding.shipped_rows(3))
    page = shown.client.get("/drafters/first").text
    assert page.count("had nothing to judge (no rows)") == 1


def test_the_description_of_the_api_does_not_know_of_pages(shown: Service) -> None:
    paths = shown.client.get("/openapi.json").json()["paths"]
    assert {"/", "/sign-in", "/drafters/{drafter}", "/assets/{name}"}.isdisjoint(paths)
    assert "/v1/drafters/{drafter}" in paths
