from __future__ import annotations

import numpy as np
import pytest

from calib.reliability import ReliabilitySums
from calib.reliability_bins import reliability_bins, wilson_interval


def test_r06_fifteen_bins_twelve_of_them_null() -> None:
    sums = ReliabilitySums.from_predictions([0.2, 0.5, 0.9], [0, 1, 1]).position(0)
    bins = reliability_bins(sums)
    assert len(bins) == 15
    assert [index for index, b in enumerate(bins) if b is not None] == [3, 7, 13]


def test_bin_values_and_plain_dict() -> None:
    sums = ReliabilitySums.from_predictions([0.25, 0.75] * 50, [0, 1] * 50, n_bins=1).position(0)
    (only,) = reliability_bins(sums)
    assert only is not None
    assert (only.mean_prediction, only.mean_label, only.count) == (0.5, 0.5, 100)
    assert [only.mean_label_low, only.mean_label_high] == pytest.approx(
        [0.40383, 0.59617], abs=1e-5
    )
    assert only.to_dict()["mean_label_low"] == only.mean_label_low


@pytest.mark.parametrize(("share", "rows"), [(0.0, 1), (1.0, 1), (0.5, 3), (0.99, 10_000)])
def test_interval_is_inside_the_unit_interval_and_holds_the_share(share: float, rows: int) -> None:
    low, high = wilson_interval(share, rows)
    assert 0.0 <= low <= share <= high <= 1.0
    assert low < high


def test_clusters_widen_and_soft_labels_narrow() -> None:
    rng = np.random.default_rng(0)
    soft = rng.beta(8, 2, 400)
    hard = (rng.random(400) < soft).astype(float)

    def width(labels: np.ndarray, design_effect: float = 1.0) -> float:
        sums = ReliabilitySums.from_predictions(np.full(400, 0.8), labels).position(0)
        only = reliability_bins(sums, design_effect)[12]
        assert only is not None
        return only.mean_label_high - only.mean_label_low

    assert width(hard, 4.0) == pytest.approx(2 * width(hard), rel=0.05)
    assert width(soft) == pytest.approx(2 * 1.96 * soft.std() / 20, rel=0.1)


def test_equal_soft_labels_do_not_claim_certainty() -> None:
    sums = ReliabilitySums.from_predictions([0.5, 0.5], [0.4, 0.4], n_bins=1).position(0)
    (only,) = reliability_bins(sums)
    assert only is not None
    assert only.mean_label_high - only.mean_label_low > 0.5


@pytest.mark.statistical
def test_interval_covers_the_true_share() -> None:
    rng = np.random.default_rng(1)
    for true in (0.5, 0.9):
        counts = rng.binomial(60, true, size=2000)
        ends = [wilson_interval(count / 60, 60) for count in counts]
        assert 0.93 <= np.mean([low <= true <= high for low, high in ends]) <= 0.975
