"""What detectors read is checked once and scored under the champion."""

from __future__ import annotations

import numpy as np
import pytest

from calib.calibration import Calibration
from calib.errors import RecordError
from calib.records import AcceptanceRecords
from calib.statuses import PositionStatus
from monitoring.detectors.observations import Observations

C = np.array([[0.5, 0.25], [1.0, 0.0]], dtype=np.float32)
L, N = np.array([2, 1], dtype=np.uint8), np.array([1, 1], dtype=np.uint8)


def test_from_records_scores_usable_rows_under_the_champion() -> None:
    logits = np.array([[2.0, -1.0], [0.0, 1.0], [4.0, 4.0]])
    records = AcceptanceRecords.from_columns(
        2,
        {
            "confidence_logits": logits,
            "verified": [2, 1, 2],
            "accepted": [1, 1, 2],
            "anticipating": [False, False, True],
        },
    )
    champion = Calibration.from_temperatures([2.0, 1.0], gamma=2)
    survival = np.array([[0.6, 0.2], [0.5, 0.3], [0.9, 0.9]])
    observed = Observations.from_records(records, champion, survival)
    assert len(observed) == 2  # its own later logits decided ℓ of the third row
    assert observed.conditional[0].tolist() == pytest.approx([0.7310586, 0.2689414])
    assert observed.survival is not None
    assert observed.survival.tolist() == np.float32(survival[:2]).tolist()
    affine = Calibration(
        2, (2.0, 1.0), (0.5, 1.0), (1.0, 0.0), position_statuses=(PositionStatus.OK,) * 2
    )
    model = Observations.from_records(records, affine)
    assert model.conditional[0, 0] == pytest.approx(0.8807971)  # σ(2): the model, not the served
    with pytest.raises(RecordError, match="champion"):
        Observations.from_records(records, Calibration.identity(3))


@pytest.mark.parametrize("wrong", [np.nan, -0.1, 1.1, np.inf])
def test_no_probability(wrong: float) -> None:
    bad = C.copy()
    bad[1, 1] = wrong
    with pytest.raises(RecordError, match="conditional"):
        Observations(bad, L, N)
    with pytest.raises(RecordError, match="survival"):
        Observations(C, L, N, bad)


def test_wrong_shapes_and_lengths() -> None:
    for conditional, verified, accepted in (
        (C[0], L, N),
        (C, L[:1], N[:1]),
        (C, L, N[:1]),
        (C, N, L),  # accepted beyond verified
        (C, L + 1, N),
    ):
        with pytest.raises(RecordError):
            Observations(conditional, verified, accepted)
    with pytest.raises(RecordError, match="survival"):
        Observations(C, L, N, C[:1])


def test_select_keeps_columns_together() -> None:
    part = Observations(C, L, N, C).select(slice(1, 2))
    assert (len(part), part.gamma) == (1, 2)
    assert part.verified.tolist() == [1]
    assert part.survival is not None
    assert part.survival.tolist() == [[1.0, 0.0]]
