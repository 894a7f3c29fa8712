from __future__ import annotations

import numpy as np
import pytest

from calib.errors import RecordError
from calib.record_schema import Flag
from calib.records import AcceptanceRecords
from calib.replay_outcomes import ExpectedOutcomes, FullyVerified

ROWS = np.arange(4)


def log(**extra: object) -> AcceptanceRecords:
    columns = {
        "confidence_logits": [[0.5] * 3] * 4,
        "verified": [3, 2, 3, 1],
        "accepted": [3, 1, 0, 1],
        **extra,
    }
    return AcceptanceRecords.from_columns(3, columns)


def test_fully_verified_rows_count_themselves() -> None:
    """Row 1 was rejected at position 2, so its accepted length is known; but whether it is known
    depends on the outcome, and using it would prefer rejections."""
    outcomes = FullyVerified(log())
    assert outcomes.known.tolist() == [True, False, True, False]
    assert outcomes.accepted(np.array([0, 2, 0]), np.array([2, 3, 0])).tolist() == [2.0, 0.0, 0.0]


def test_r38_a_stop_token_that_cut_a_full_block_ends_it() -> None:
    stop = int(Flag.STOP_TRUNCATED)
    full = FullyVerified(log(flags=[0, stop, 0, stop], scheduled=[3, 3, 3, 2]))
    assert full.known.tolist() == [True, True, True, False]
    # Nothing follows a stop token, whatever would have been verified.
    assert full.accepted(np.array([1]), np.array([3])).tolist() == [1.0]
    assert FullyVerified(log(flags=[0, stop, 0, stop])).known.tolist() == [True, False, True, False]


def test_expected_outcomes_add_survivals() -> None:
    outcomes = ExpectedOutcomes([[0.5, 0.25], [1.0, 0.75]])
    assert outcomes.known.tolist() == [True, True]
    found = outcomes.accepted(np.array([0, 0, 0, 1]), np.array([0, 1, 2, 2]))
    assert found.tolist() == [0.0, 0.5, 0.75, 1.75]


@pytest.mark.parametrize("wrong", [[0.5, 0.5], [[1.5]], [[np.nan]]])
def test_survivals_outside_the_unit_interval_are_refused(wrong: object) -> None:
    with pytest.raises(RecordError, match="survival"):
        ExpectedOutcomes(wrong)  # type: ignore[arg-type]
