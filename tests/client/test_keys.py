"""The client's digest of a calibration key is the service's."""

from __future__ import annotations

from typing import Any

import pytest

from calib.calibration_key import CalibrationKey
from dspark_calib_client.errors import ClientConfigurationError
from dspark_calib_client.keys import is_digest, key_digest

FIELDS: dict[str, Any] = {
    "target_model": "Qwen/Qwen3-8B",
    "target_revision": "main",
    "target_quantization": "none",
    "draft_model": "Qwen/Qwen3-8B-DSpark",
    "draft_revision": "8f3c",
    "draft_quantization": "fp8",
    "gamma": 7,
    "slot_convention": "anchor_excluded",
}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"confidence_source": "max_log_odds", "verification_method": "block"},
        {"draft_vocabulary_hash": "0123abcd"},
        {"target_model": 'quoted "name" \\ tab\t, é, 日本, \U0001f600, \x7f, \u2028'},
    ],
)
def test_the_service_computes_the_same(changes: dict[str, Any]) -> None:
    fields = {**FIELDS, **changes}
    assert key_digest(fields) == CalibrationKey(**fields).digest


def test_a_digest_is_taken_as_it_is() -> None:
    assert key_digest("0f" * 32) == "0f" * 32
    assert is_digest("0f" * 32)
    assert not is_digest("0F" * 32)
    assert not is_digest(b"0f" * 32)


@pytest.mark.parametrize(
    "key",
    [
        "too short",
        "0F" * 32,
        7,
        {},
        {**FIELDS, "colour": "red"},
        {**FIELDS, "gamma": True},
        {**FIELDS, "gamma": "7"},
        {**FIELDS, "target_model": None},
        {**FIELDS, "target_model": 7},
        {**FIELDS, "target_model": "\ud800"},
        {name: value for name, value in FIELDS.items() if name != "draft_model"},
    ],
)
def test_anything_else_is_refused(key: Any) -> None:
    with pytest.raises(ClientConfigurationError):
        key_digest(key)
