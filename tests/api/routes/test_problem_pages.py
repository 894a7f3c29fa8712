from __future__ import annotations

import pytest

from api.problem_catalogue import CATALOGUE, ProblemType
from tests.support.service import Service


def test_every_type_has_its_page(service: Service) -> None:
    index = service.client.get("/problems").text
    for kind in CATALOGUE.values():
        assert f'href="{kind.uri}"' in index
        page = service.client.get(kind.uri)
        assert page.status_code == 200
        assert page.headers["Content-Type"].startswith("text/html")
        assert f"status {kind.status}" in page.text
        assert kind.title in page.text


def test_what_is_not_in_the_catalogue_has_none(service: Service) -> None:
    answer = service.client.get("/problems/no-such")
    assert answer.status_code == 404
    assert answer.json()["type"] == "/problems/not-found"


def test_pages_are_escaped(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = ProblemType("odd", "<b>", 400, "Write <i>.")
    monkeypatch.setitem(CATALOGUE, "odd", kind)
    text = service.client.get("/problems/odd").text
    assert "<b>" not in text
    assert "&lt;i&gt;" in text
