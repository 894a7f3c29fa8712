from __future__ import annotations

import gzip
import re
from dataclasses import replace
from pathlib import Path

from starlette.requests import Request

from api.auth import ANONYMOUS
from api.dashboard import pages
from api.dashboard.pages import POLICY, environment, page_response
from api.dashboard.session import Visitor
from api.dashboard.silence_queries import Silences
from monitoring.store.events import Event

HOSTILE = "\"><script>alert(1)</script><img src=x onerror='alert(2)'>"
VISITOR = Visitor(ANONYMOUS, HOSTILE, False)


def request(**headers: str) -> Request:
    given = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "method": "GET", "path": "/", "headers": given})


def test_templates_hold_no_script_and_no_style_of_their_own() -> None:
    for path in Path(pages.__file__).with_name("templates").iterdir():
        text = path.read_text(encoding="utf-8")
        assert re.findall(r"<script(?! src=)|<style|\sstyle=|\son\w+=", text) == [], path.name
        assert "|safe" not in text, path.name
    assert "unsafe" not in POLICY


def test_a_reason_that_is_a_sentence_ends_once() -> None:
    reasons = ("All 40 labels are the same.", "worse on survival")
    event = Event(1, "first", "k", "info", "Refused", {}, "open", 0.0, 0.0, None, None, None, 1)
    listed = [replace(event, details={"reason": reason}) for reason in reasons]
    macros = environment().get_template("macros.html").module
    page = macros.event_list(listed, VISITOR, False, Silences([], 0.0))  # type: ignore[attr-defined]
    assert re.findall(r'class="why">(.*?)</p>', page) == [
        "All 40 labels are the same.",
        "Worse on survival.",
    ]


def test_everything_that_comes_in_is_escaped() -> None:
    page = (
        environment()
        .get_template("sign_in.html")
        .render(visitor=VISITOR, target=HOSTILE, fault=HOSTILE)
    )
    assert HOSTILE not in page
    assert page.count("&lt;script&gt;") == 2


def test_a_page_is_sent_once() -> None:
    first = page_response(request(), "page")
    again = page_response(request(if_none_match=first.headers["ETag"]), "page")
    other = page_response(request(if_none_match=first.headers["ETag"]), "another page")
    assert (first.status_code, again.status_code, again.body) == (200, 304, b"")
    assert (other.status_code, other.body) == (200, b"another page")
    assert first.headers["Content-Security-Policy"] == POLICY
    # A fault is never "not modified".
    assert page_response(request(if_none_match="*"), "fault", 404).status_code == 404


def test_long_pages_are_compressed_for_who_can_read_that() -> None:
    text = "long " * 1000
    answer = page_response(request(accept_encoding="br, gzip"), text)
    assert answer.headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(bytes(answer.body)).decode() == text
    plain = page_response(request(), text)
    assert plain.body == text.encode()
    assert plain.headers["ETag"] == answer.headers["ETag"]
