"""Errors before and after a change of what is served."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import expit

from calib.calibration import Calibration
from calib.records import AcceptanceRecords
from monitoring.loop_settings import LoopSettings
from monitoring.replay import Replay, ReplayOptions
from monitoring.replay_errors import _judged, served_changes, survival_error
from tests.monitoring.loop_rows import revision, rows


def test_the_right_numbers_have_less_error_on_the_same_rows_and_the_interval_says_so() -> None:
    records = rows(1, 4000, scale=1.8)
    wrong, right = survival_error(records, revision(0), revision(1, 1.8))
    assert wrong.value is not None
    assert right.value is not None
    assert wrong.low is not None
    assert right.high is not None
    assert right.high < wrong.low
    assert right.value < 0.02 < wrong.value


def test_ece_is_the_mean_over_positions_of_the_binned_gap() -> None:
    records = rows(2, 500)
    found = survival_error(records, revision(0))[0]
    survival = np.cumprod(
        1.0 / (1.0 + np.exp(-records.confidence_logits.astype(np.float64))), axis=1
    )
    gaps = []
    for k in range(7):
        p, y = survival[:, k], records.accepted > k
        bins = np.minimum((p * 15).astype(int), 14)
        gaps.append(np.abs(np.bincount(bins, y - p, 15)).sum() / len(p))
    assert found.value is not None
    assert abs(found.value - np.mean(gaps)) < 2e-3  # fp32 moves a few rows over an edge


def test_positions_of_the_ece_count_by_their_rows() -> None:
    whole = rows(2, 4000)
    verified = np.where(np.arange(4000) < 40, 7, 1)
    columns = {
        "confidence_logits": whole.confidence_logits,
        "verified": verified,
        "accepted": np.minimum(whole.accepted, verified),
    }
    found = survival_error(AcceptanceRecords.from_columns(7, columns), revision(0))[0]
    survival = np.cumprod(expit(whole.confidence_logits.astype(np.float64)), axis=1)
    gaps, counts = [], []
    for k in range(7):
        known = verified > k
        p, y = survival[known, k], whole.accepted[known] > k
        bins = np.minimum((p * 15).astype(int), 14)
        gaps.append(np.abs(np.bincount(bins, y - p, 15)).sum())
        counts.append(known.sum())
    assert counts == [4000] + [40] * 6
    assert found.value == pytest.approx(sum(gaps) / 4240, abs=2e-3)  # fp32 moves a few rows
    assert np.mean(np.divide(gaps, counts)) > 3.0 * sum(gaps) / 4240


def test_a_promotion_is_judged_on_the_rows_after_it() -> None:
    records = rows(3, 4000, scale=1.5)
    options = ReplayOptions(baseline_rows=2000)
    settings = LoopSettings(refit_rows=10**9, early_fit_method="temperature")
    result = Replay(records, settings=settings, options=options).run()
    change = served_changes(records, result)[0]
    assert (change.row, change.before, change.after, change.rows) == (2000, 0, 1, 2000)
    assert change.difference.value is not None
    assert change.difference.high is not None
    assert change.difference.high < 0.0
    assert change.to_dict()["ece_before"]["value"] == change.ece_before.value


def test_few_rows_have_a_number_and_no_interval() -> None:
    found = survival_error(rows(4, 50), revision(0))[0]
    assert found.value is not None
    assert (found.low, found.high) == (None, None)
    assert survival_error(rows(4, 5).select(slice(0, 0)), revision(0))[0].value is None


def test_slopes_are_judged_where_temperatures_do_not_change() -> None:
    records = rows(5, 4000, scale=1.8)
    slopes = {"slopes": (1 / 1.8,) * 7, "intercepts": (0.0,) * 7}
    plain = revision(0)
    ones = Calibration.from_temperatures([1.0] * 7, gamma=7)
    sloped = replace(revision(1), calibration=replace(ones, **slopes))
    change = _judged(0, plain, sloped, records)
    assert change.form == "affine"
    assert change.ece_before == survival_error(records, plain)[0]
    assert change.ece_after.value == pytest.approx(
        survival_error(records, revision(2, 1.8))[0].value, abs=1e-4
    )
    assert _judged(0, plain, revision(2, 1.8), records).form == "temperatures"
