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


def test_a_verdict_decides_which_number_later_positions_rest_on() -> None:
    searched = FitEvidence(50, False, 1.3, None, residual=0.01, null_level=0.02)
    errors = (lambda t: 0.2 * t, lambda t: 0.1 * t)
    for status, temperature, continued in (
        (PositionStatus.OK, 1.3, 1.3),
        (PositionStatus.INSUFFICIENT, 1.3, 1.3),  # a number that only lacks rows is a number
        (PositionStatus.AT_BOUND, None, 1.7),
    ):
        found = PositionFit.concluded(2, searched, (status, "why"), 1.7, errors)
        assert (found.position, found.rows, found.reason) == (3, 50, "why")
        assert (found.temperature, found.continued_with) == (temperature, continued)
        assert (found.ece_before, found.ece_after) == (0.2, 0.1 * continued)
        assert (found.residual, found.null_level) == (0.01, 0.02)
    nothing = PositionFit.concluded(
        0, FitEvidence(0, True), judge(FitEvidence(0, True)), 1.0, errors
    )
    assert (nothing.temperature, nothing.residual, nothing.null_level) == (None, None, None)
