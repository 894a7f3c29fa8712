from __future__ import annotations

from calib.reliability import ReliabilitySums
from calib.sharpness import sharpness_histogram


def test_histogram_counts_rows_and_keeps_empty_bins() -> None:
    sums = ReliabilitySums.from_predictions([0.05, 0.1, 0.95, 1.0], [0, 0, 1, 1], n_bins=4)
    assert sharpness_histogram(sums.position(0)) == (2, 0, 0, 2)


def test_labels_do_not_matter() -> None:
    p = [0.1, 0.5, 0.9]
    one, other = (ReliabilitySums.from_predictions(p, y).position(0) for y in ([0] * 3, [1] * 3))
    assert sharpness_histogram(one) == sharpness_histogram(other)
