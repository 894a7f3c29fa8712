"""The leading run decides; the runs that hold 95 % of the evidence show the spread."""

from __future__ import annotations

import numpy as np

from monitoring.detectors.change_point import estimate_change_point


def test_leading_run_and_spread() -> None:
    starts = np.array([100, 900, 300, 5])
    shares = np.log([0.20, 0.70, 0.08, 0.02])
    point = estimate_change_point(shares + 30.0, starts)  # scale is irrelevant
    assert (point.row, point.earliest, point.latest) == (900, 100, 900)


def test_one_alternative() -> None:
    point = estimate_change_point(np.array([-700.0]), np.array([12]))
    assert (point.row, point.earliest, point.latest) == (12, 12, 12)


def test_extreme_evidence_does_not_overflow() -> None:
    point = estimate_change_point(np.array([1e5, 1e5 - 1.0]), np.array([1, 2]))
    assert point.row == 1
    assert (point.earliest, point.latest) == (1, 2)
