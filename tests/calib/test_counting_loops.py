"""The loops run uncompiled too, and count what a person counts by hand."""

from __future__ import annotations

import numpy as np
import pytest

from calib.counting_loops import REJECTION, count_all, count_observed, increments

# Cells of 8: u = z / (1 + |z| / 4), cell = floor(u + 4).
LOGITS = np.array([[0.0, 4.0], [-4.0, 12.0], [1.0, -1.0], [0.5, 0.5]], dtype=np.float32)
CELL = [[4, 6], [2, 7], [4, 3], [4, 4]]
ACCEPTED = np.array([2, 1, 0, 0], dtype=np.int16)
VERIFIED = np.array([2, 2, 2, 0], dtype=np.int16)  # nothing of the last row is known


def expected() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rows, sums, rejections = np.zeros((3, 2, 8), dtype=np.int64)
    for row in range(4):
        for position in range(min(ACCEPTED[row] + 1, VERIFIED[row])):
            cell = CELL[row][position]
            rows[position, cell] += 1
            sums[position, cell] += int(LOGITS[row, position] * 65536)
            rejections[position, cell] += position >= ACCEPTED[row]
    return rows, sums, rejections


def test_observed_labels_are_visited() -> None:
    sums, rejections = np.zeros((2, 8, 2), dtype=np.int64), np.zeros((2, 8), dtype=np.int64)
    count_observed(LOGITS, ACCEPTED, np.minimum(ACCEPTED + 1, VERIFIED), sums, rejections)
    for found, value in zip((sums[..., 0], sums[..., 1], rejections), expected(), strict=True):
        assert np.array_equal(found, value)


def test_all_positions_are_visited_and_what_was_not_observed_adds_nothing() -> None:
    sums = np.zeros((2, 8, 2), dtype=np.int64)
    code = (ACCEPTED + np.minimum(ACCEPTED + 1, VERIFIED)).astype(np.int16)
    count_all(LOGITS, code, increments(2), (0, 0), sums)
    found = (sums[..., 0] % REJECTION, sums[..., 1], sums[..., 0] // REJECTION)
    for counted, value in zip(found, expected(), strict=True):
        assert np.array_equal(counted, value)


@pytest.mark.parametrize("gamma", [1, 2, 16])
def test_increments_hold_a_row_for_every_length(gamma: int) -> None:
    table = increments(gamma).reshape(2 * gamma + 1, gamma)
    for accepted in range(gamma + 1):
        for verified in range(accepted, gamma + 1):
            limit = min(accepted + 1, verified)
            row = table[accepted + limit]
            assert (row % REJECTION).tolist() == [1] * limit + [0] * (gamma - limit)
            rejected = [int(limit > accepted and k == accepted) for k in range(gamma)]
            assert (row // REJECTION).tolist() == rejected
