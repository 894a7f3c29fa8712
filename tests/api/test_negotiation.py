from __future__ import annotations

import pytest

from api.negotiation import chosen_media

STS = "application/vnd.sglang.dspark-sts+json"


@pytest.mark.parametrize(
    ("accept", "media"),
    [
        (None, "json"),
        ("", "json"),
        ("*/*", "json"),
        ("application/json", "json"),
        ("application/*", "json"),
        (STS, "sts"),
        (STS.upper(), "sts"),
        (f"{STS};q=0.9, application/json;q=0.5", "sts"),
        (f"{STS};q=0.5, application/json", "json"),
        (f"{STS}, */*;q=0.1", "sts"),
        ("application/json;q=0, */*", "sts"),  # what is excluded by name stays excluded
        ("text/html", None),
        ("text/html, */*;q=0.8", "json"),
        ("application/json;q=0", None),
        ("*/*;q=0", None),
        ("application/json;q=abc", None),
        ("application/json; charset=utf-8", "json"),
        (", ,application/json", "json"),
        (";", None),
    ],
)
def test_the_accept_header_chooses(accept: str | None, media: str | None) -> None:
    assert chosen_media(accept) == media
