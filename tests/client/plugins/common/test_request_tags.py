from __future__ import annotations

from typing import Any

import pytest

from dspark_calib_client.plugins.common.request_tags import RequestTags, Said, tag_text

PLAIN = Said("alice@example.org", 0.0, None, "domain", "tenant", None, 0, frozenset())


def tags(**changes: Any) -> RequestTags:
    found = RequestTags(lambda: PLAIN._replace(**changes))
    found.settle()
    return found


def test_names_are_hashed_and_tags_are_short_text() -> None:
    found = tags(tags={"domain": "code", "tenant": "alice"}, adapter="sql")
    assert "alice" not in (found.request + str(found.tenant))
    assert (found.domain, found.adapter, found.greedy) == ("code", "sql", True)
    odd = tags(tags={"domain": 7, "tenant": "a\nb"}, adapter=7)
    assert (odd.domain, odd.tenant, odd.adapter) == (None, None, None)
    assert tags(tags="no mapping").domain is None
    assert len(str(tag_text("x" * 999))) == 128


def test_a_request_is_read_once_and_not_before_it_is_settled() -> None:
    """Reading costs more than an engine's step should; and later it might be gone."""
    read = []
    found = RequestTags(lambda: read.append(1) or PLAIN)  # type: ignore[func-returns-value]
    assert (read, found.ended) == ([], False)
    found.settle()
    found.settle()
    assert read == [1]


def test_a_request_that_cannot_be_read_has_no_rows(caplog: pytest.LogCaptureFixture) -> None:
    def unreadable() -> Said:
        raise TypeError("temperature 'hot'")

    found = RequestTags(unreadable)
    for _ in range(2):
        found.settle()
    assert found.ended
    assert len(caplog.records) == 1
