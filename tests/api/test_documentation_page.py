"""``/docs`` in a browser's eyes: everything it needs comes from the service itself."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from urllib.parse import urljoin

import pytest
from fastapi import FastAPI

from api.documentation_page import PAGE, install_documentation_page
from calib.errors import ConfigurationError
from tests.support.service import Service, empty_database, running_service


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running_service(empty_database(tmp_path_factory.mktemp("page"))) as started:
        yield started


class Links(HTMLParser):
    """What a page loads by itself."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.inline = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "script":
            self.inline = self.inline or "src" not in given
        if tag in ("script", "link"):
            self.found.append(given.get("src") or given.get("href") or "")


def test_everything_it_loads_is_served_here(service: Service) -> None:
    page = service.client.get(PAGE)
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")
    links = Links(page.text)
    assert not links.inline
    kinds = {}
    for link in links.found:
        if link != "data:,":
            assert not re.match(r"[a-z]+:|//", link), "another host"
            answer = service.client.get(urljoin(PAGE, link))
            assert answer.status_code == 200
            kinds[link.rpartition(".")[2]] = answer.headers["content-type"].partition(";")[0]
            assert answer.headers["x-content-type-options"] == "nosniff"
    assert kinds == {"css": "text/css", "js": "text/javascript"}
    script = service.client.get(f"{PAGE}/start.js").text
    document = re.findall(r'url: "([^"]+)"', script)
    assert [urljoin(PAGE, link) for link in document] == [service.app.openapi_url]
    assert "validatorUrl: null" in script


def test_its_policy_names_no_other_host(service: Service) -> None:
    policy = service.client.get(PAGE).headers["Content-Security-Policy"]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert rules["script-src"] == "'self'"
    allowed = {"'self'", "'none'", "'unsafe-inline'", "data:"}
    assert {word for rule in rules.values() for word in rule.split()} <= allowed


def test_assets_are_kept_by_browsers_and_nothing_else_is_shown(service: Service) -> None:
    place = f"{PAGE}/assets/swagger-ui.css"
    tag = service.client.get(place).headers["ETag"]
    assert service.client.get(place, headers={"If-None-Match": tag}).status_code == 304
    for wrong in ("nothing.js", "..%2f__init__.py", "%2e%2e/core.py", ""):
        answer = service.client.get(f"{PAGE}/assets/{wrong}")
        assert answer.status_code == 404
        assert answer.headers["content-type"] == "application/problem+json"
    assert service.client.post(place).status_code == 405


def test_without_its_assets_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match="service extra"):
        install_documentation_page(FastAPI())
