from __future__ import annotations

import re

import pytest

from api.dashboard.assets import asset_url, assets
from tests.support.service import Service


def test_an_address_names_the_content(shown: Service) -> None:
    for name in assets():
        answer = shown.client.get(asset_url(name))
        assert answer.status_code == 200
        assert answer.headers["Cache-Control"] == "public, max-age=31536000, immutable"
        again = shown.client.get(asset_url(name), headers={"If-None-Match": answer.headers["ETag"]})
        assert (again.status_code, again.content) == (304, b"")
    stale = shown.client.get("/assets/dashboard.css?v=old")
    assert (stale.status_code, stale.headers["Cache-Control"]) == (200, "no-cache")


@pytest.mark.parametrize("name", ["nothing.css", "..%2fpages.py", "base.html"])
def test_nothing_else_is_served(shown: Service, name: str) -> None:
    assert shown.client.get(f"/assets/{name}").status_code == 404


def test_they_load_nothing_from_elsewhere() -> None:
    for asset in assets().values():
        text = asset.body.decode()
        found = re.findall(r"(?:https?:)?//[a-z][\w.-]*\.[a-z]+|@import|url\(", text)
        assert set(found) <= {"http://www.w3.org"}, asset.name
        assert "eval(" not in text
        assert "innerHTML" not in text
