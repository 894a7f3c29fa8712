from __future__ import annotations

from dataclasses import FrozenInstanceError, fields, replace
from typing import Any

import pytest

from calib.calibration_key import CalibrationKey
from calib.errors import CalibrationValueError

KEY = CalibrationKey(
    target_model="org/target",
    target_revision="abc",
    target_quantization="none",
    draft_model="org/draft",
    draft_revision="def",
    draft_quantization="fp8",
    gamma=7,
    slot_convention="anchor_excluded",
)


def test_round_trip_and_stable_digest() -> None:
    assert CalibrationKey.from_dict(KEY.to_dict()) == KEY
    assert KEY.digest == replace(KEY).digest
    assert len(KEY.digest) == 64


@pytest.mark.parametrize("name", [field.name for field in fields(CalibrationKey)])
def test_any_change_is_another_key(name: str) -> None:
    other: Any = {"gamma": 8, "slot_convention": "anchor_included"}.get(name, "other")
    assert replace(KEY, **{name: other}).digest != KEY.digest


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("target_model", ""),
        ("target_model", None),
        ("draft_revision", 3),
        ("draft_vocabulary_hash", ""),
        ("slot_convention", "anchor"),
        ("gamma", 0),
        ("gamma", True),
    ],
)
def test_wrong_fields_are_named(name: str, value: Any) -> None:
    with pytest.raises(CalibrationValueError, match=f"key.{name}"):
        replace(KEY, **{name: value})


def test_unknown_and_missing_fields_are_refused() -> None:
    with pytest.raises(CalibrationValueError, match="colour"):
        CalibrationKey.from_dict({**KEY.to_dict(), "colour": "red"})
    with pytest.raises(CalibrationValueError, match="target_model"):
        CalibrationKey.from_dict({"gamma": 7})


def test_is_immutable_and_hashable() -> None:
    assert len({KEY, replace(KEY)}) == 1
    with pytest.raises(FrozenInstanceError):
        KEY.gamma = 8  # type: ignore[misc]
