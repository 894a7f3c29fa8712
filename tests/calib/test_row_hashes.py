from __future__ import annotations

from typing import Any

import numpy as np

from calib.records import AcceptanceRecords
from calib.row_hashes import cluster_hashes, row_hashes
from tests.support.telemetry import synthetic_records


def log(**columns: Any) -> AcceptanceRecords:
    rows = len(next(iter(columns.values())))
    draw = np.random.default_rng(0)
    base = {
        "confidence_logits": draw.normal(size=(rows, 2)).astype(np.float32),
        "verified": [2] * rows,
        "accepted": [1] * rows,
    }
    return AcceptanceRecords.from_columns(2, {**base, **columns})


def test_rows_keep_their_number_wherever_they_stand() -> None:
    records = synthetic_records(500)
    order = np.random.default_rng(1).permutation(500)
    for hashes in (row_hashes, cluster_hashes):
        assert np.array_equal(hashes(records)[order], hashes(records.select(order)))


def test_outcomes_do_not_enter() -> None:
    one, other = log(accepted=[0, 1, 2]), log(accepted=[2, 2, 2])
    assert np.array_equal(row_hashes(one), row_hashes(other))
    assert len(set(row_hashes(one).tolist())) == 3


def test_rows_of_a_prompt_share_a_number() -> None:
    hashes = cluster_hashes(log(prompt=["p", "q", "p", None], request=["r"] * 4)).tolist()
    assert hashes[0] == hashes[2]
    assert len(set(hashes)) == 3
    # A row of unknown prompt stands for itself, as rows without any names do.
    assert hashes[3] == row_hashes(log(accepted=[1] * 4)).tolist()[3]
    named = cluster_hashes(log(request=["r", "s", "r"])).tolist()
    assert named[0] == named[2] != named[1]


def test_zero_has_one_sign() -> None:
    columns = {"verified": [2, 2], "accepted": [0, 0], "confidence_logits": [[0.0, 1], [-0.0, 1]]}
    hashes = row_hashes(AcceptanceRecords.from_columns(2, columns))
    assert hashes[0] == hashes[1]


def test_halves_are_halves() -> None:
    """20,000 rows fall into each of 16 parts within five standard errors."""
    records = synthetic_records(20_000)
    for shift in (0, 20, 60):
        parts = (row_hashes(records) >> np.uint64(shift)) % np.uint64(16)
        counts = np.bincount(parts.astype(int), minlength=16)
        assert np.abs(counts - 1250).max() < 5 * (1250 * 15 / 16) ** 0.5
