"""Arguments are checked once, by a constructor that says what to mend."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dspark_calib_client import CalibrationClient, ClientConfigurationError
from dspark_calib_client.configuration import SEGMENT_TAGS, checked_baked_in, checked_key
from tests.client.test_keys import FIELDS

GOOD: dict[str, Any] = {
    "base_url": "http://127.0.0.1:8765",
    "drafter": "qwen3-8b",
    "gamma": 7,
    "engine_id": "engine-0",
}


def test_a_client_needs_little() -> None:
    client = CalibrationClient(**GOOD)
    assert client.current().values == (1.0,) * 7


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("base_url", "127.0.0.1:8765"),
        ("base_url", "ftp://host"),
        ("base_url", "http://"),
        ("base_url", "http://host:99999"),
        ("base_url", "http://host?x=1"),
        ("base_url", None),
        ("base_url", b"http://host"),
        ("drafter", "Qwen/Qwen3"),
        ("drafter", ""),
        ("drafter", "x" * 129),
        ("drafter", None),
        ("gamma", 0),
        ("gamma", 255),
        ("gamma", True),
        ("gamma", "7"),
        ("engine_id", ""),
        ("engine_id", "a\nb"),
        ("engine_id", None),
        ("engine_id", "x" * 129),
        ("anchor_included", 1),
        ("key", "short"),
        ("token", ""),
        ("token", "two words"),
        ("token", "line\nbreak"),
        ("token", 5),
        ("interval", 0),
        ("interval", float("nan")),
        ("interval", "30"),
        ("wait", 61),
        ("wait", -1),
        ("wait", 1.5),
        ("timeout", -1),
        ("stale_after", 0),
        ("start_delay", -0.5),
        ("max_backoff", float("inf")),
        ("segment", "code"),
        ("segment", {"domain": ""}),
        ("segment", {"colour": "red"}),
        ("telemetry", {"share": 0.5}),
        ("baked_in", [1.0] * 6),
        ("baked_in", [0.0] * 7),
        ("baked_in", "1.0"),
        ("baked_in", {"ece_before": []}),
        ("baked_in", 1.0),
        ("proxy", "host"),
    ],
)
def test_wrong_arguments_name_themselves(field: str, value: Any) -> None:
    with pytest.raises(ClientConfigurationError) as caught:
        CalibrationClient(**{**GOOD, field: value})
    assert caught.value.field.split(".")[0] == field


def test_segment_tags_are_the_services() -> None:
    from monitoring.segment_match import SEGMENT_TAGS as known

    assert known == SEGMENT_TAGS


def test_a_token_is_never_shown() -> None:
    with pytest.raises(ClientConfigurationError) as caught:
        CalibrationClient(**GOOD, token="secret token")
    assert "secret" not in str(caught.value)


def test_a_state_file_may_be_a_path() -> None:
    CalibrationClient(**GOOD, state_file=Path("state") / "file.json")


def test_baked_in_numbers_may_be_a_vector_or_a_file_that_sglang_loads() -> None:
    assert checked_baked_in((1.5, 2.0), 2).values == (1.5, 2.0)  # type: ignore[union-attr]
    loaded = {"temperatures": [1.5, 2.0, 3.0], "ece_before": [0.1], "revision": 4}
    found = checked_baked_in(loaded, 2)
    assert found is not None
    assert (found.values, found.revision) == ((1.5, 2.0), 4)
    assert checked_baked_in(None, 2) is None


def test_no_key_is_none() -> None:
    assert checked_key(None) is None
    assert checked_key("0f" * 32) == "0f" * 32


@pytest.mark.parametrize(
    ("key", "given", "width"),
    [
        (None, None, 7),
        (None, True, 8),
        ({**FIELDS, "slot_convention": "anchor_included"}, None, 8),
        ({**FIELDS, "slot_convention": "anchor_included"}, False, 7),
        (FIELDS, None, 7),
    ],
)
def test_rows_may_have_an_anchor(key: Any, given: bool | None, width: int) -> None:
    client = CalibrationClient(**GOOD, key=key, anchor_included=given)
    assert client.observe([0.0] * width, 7, 1)
    assert not client.observe([0.0] * (15 - width), 7, 1)
