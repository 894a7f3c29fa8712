from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from calib.calibration_fields import (
    checked_mapping,
    checked_statuses,
    checked_text,
    checked_word,
    frozen_evidence,
    serving_status,
)
from calib.errors import CalibrationValueError
from calib.statuses import PositionStatus, ServingStatus

OK, BOUND = PositionStatus.OK, PositionStatus.AT_BOUND


@pytest.mark.parametrize(
    ("positions", "expected"),
    [
        ((OK, OK), "fitted"),
        ((OK, BOUND), "partial"),
        ((BOUND, BOUND), "insufficient"),
        ((), "insufficient"),
    ],
)
def test_serving_status_follows_from_the_positions(
    positions: tuple[PositionStatus, ...], expected: str
) -> None:
    assert serving_status(positions) is ServingStatus(expected)


def test_statuses_default_to_ok_and_accept_words() -> None:
    assert checked_statuses((), 3) == (OK, OK, OK)
    assert checked_statuses(("ok", "at_bound"), 2) == (OK, BOUND)


@pytest.mark.parametrize("bad", [("ok",), ("ok", "fine"), "ok", 3])
def test_wrong_statuses_are_refused(bad: Any) -> None:
    with pytest.raises(CalibrationValueError, match="position_statuses"):
        checked_statuses(bad, 2)


def test_unknown_words_name_the_known_ones() -> None:
    with pytest.raises(CalibrationValueError, match="'fitted'"):
        checked_word(ServingStatus, "status", "done")


def test_text_is_plain_or_none() -> None:
    assert checked_text("fitted_at", None) is None
    assert type(checked_text("method", ServingStatus.STALE)) is str
    for bad in ("", 3):
        with pytest.raises(CalibrationValueError):
            checked_text("fitted_at", bad)


def test_mapping_is_copied_or_refused() -> None:
    source = {"a": 1}
    assert checked_mapping("key", source) == source
    assert checked_mapping("key", source) is not source
    with pytest.raises(CalibrationValueError, match="mapping"):
        checked_mapping("key", [1])


def test_evidence_is_deeply_read_only() -> None:
    source: dict[str, Any] = {"rows": [1, 2], "inner": {"x": 0.5}}
    frozen = frozen_evidence(source)
    source["rows"].append(3)
    assert frozen["rows"] == (1, 2)
    assert isinstance(frozen["inner"], Mapping)
    with pytest.raises(TypeError):
        frozen["inner"]["x"] = 1.0


@pytest.mark.parametrize("bad", [{"ece": float("nan")}, {"a": {1: 2}}, {"a": object()}, [1]])
def test_evidence_that_is_no_json_is_refused(bad: Any) -> None:
    with pytest.raises(CalibrationValueError, match="evidence"):
        frozen_evidence(bad)


def test_an_affine_form_beside_temperatures_of_none_is_partial() -> None:
    assert serving_status((BOUND, BOUND), affine=True) == "partial"
    assert serving_status((OK, OK), affine=True) == "fitted"
