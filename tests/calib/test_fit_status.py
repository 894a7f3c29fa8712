from __future__ import annotations

import json

import pytest

from calib.fit_status import FitEvidence, PositionFit, judge
from calib.statuses import PositionStatus


@pytest.mark.parametrize(
    ("evidence", "status"),
    [
        (FitEvidence(0, one_class=True), "insufficient"),
        (FitEvidence(5000, one_class=True), "one_class"),
        (
            FitEvidence(5000, False, 20.0, "upper", residual=0.2, null_level=0.03),
            "temperature_cannot_fit",
        ),
        (
            FitEvidence(5000, False, 1.5, None, residual=0.2, null_level=0.03),
            "temperature_cannot_fit",
        ),
        (FitEvidence(5000, False, 20.0, "upper", residual=0.0, null_level=0.03), "at_bound"),
        (FitEvidence(4, False, 20.0, "upper", residual=0.2, null_level=0.19), "at_bound"),
        (FitEvidence(999, False, 1.5, residual=0.02, null_level=0.01), "insufficient"),
        (FitEvidence(1000, False, 1.5, residual=0.02, null_level=0.01), "ok"),
    ],
)
def test_one_status_in_a_fixed_order(evidence: FitEvidence, status: str) -> None:
    found, reason = judge(evidence)
    assert found is PositionStatus(status)
    assert (reason is None) == (status == "ok")


def test_limits_are_parameters() -> None:
    evidence = FitEvidence(50, False, 1.5, residual=0.04)
    assert judge(evidence, minimum_rows=50)[0] is PositionStatus.OK
    strict = judge(evidence, minimum_rows=50, gap_tolerance=0.03)[0]
    assert strict is PositionStatus.TEMPERATURE_CANNOT_FIT


def test_reasons_carry_the_numbers() -> None:
    cannot = judge(FitEvidence(5000, False, 20.0, "upper", residual=0.2))[1]
    assert cannot is not None
    assert "0.2000" in cannot
    assert "temperature alone cannot fix" in cannot
    few = judge(FitEvidence(60, False, 1.5))[1]
    assert few is not None
    assert "60" in few
    assert "1000" in few


def test_a_position_fit_is_plain_json() -> None:
    fit = PositionFit(1, 9, PositionStatus.ONE_CLASS, None, 1.0, 0.3, 0.3, None, None, "same")
    values = json.loads(json.dumps(fit.to_dict()))
    assert values["status"] == "one_class"
    assert values["temperature"] is None
