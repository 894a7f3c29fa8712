"""One matrix of label counts for every detector that reads a stream."""

from __future__ import annotations

import numpy as np

from monitoring.detectors.label_counts import CELLS, label_counts
from monitoring.detectors.observations import Observations
from tests.monitoring.traffic import heads_traffic


def test_counts_are_those_of_a_loop_over_labels() -> None:
    rows = heads_traffic(np.random.default_rng(1), 90, threshold=0.4).served()
    offsets = np.array([0, 7, 40])
    expected = np.zeros((rows.gamma * 3, 2 * CELLS))
    for row in range(90):
        block = int(np.searchsorted(offsets, row, side="right")) - 1
        accepted = int(rows.accepted[row])
        for k in range(min(accepted + 1, int(rows.verified[row]))):
            cell = min(int(float(rows.conditional[row, k]) * CELLS), CELLS - 1)
            expected[3 * k + block, 2 * cell + (k < accepted)] += 1
    counts = label_counts(rows, offsets)
    assert (counts.toarray() == expected).all()
    assert counts.sum() == expected.sum() > 0


def test_certain_confidence_stays_within_its_cells() -> None:
    c = np.array([[1.0, 0.0]], dtype=np.float32)
    rows = Observations(c, np.array([2], np.uint8), np.array([1], np.uint8))
    found = label_counts(rows, np.array([0])).toarray()
    assert [np.flatnonzero(row).tolist() for row in found] == [[2 * CELLS - 1], [0]]


def test_no_label_at_all() -> None:
    none = Observations(
        np.full((3, 2), 0.5, np.float32), np.zeros(3, np.uint8), np.zeros(3, np.uint8)
    )
    assert label_counts(none, np.array([0])).nnz == 0
