from __future__ import annotations

import numpy as np
import pytest

from calib.calibration import Calibration
from calib.evaluation import evaluate
from calib.records import AcceptanceRecords
from monitoring.reports.block_error import block_errors
from tests.support.telemetry import TEMPERATURES, synthetic_records

TRUTH = Calibration.from_temperatures(TEMPERATURES, gamma=7)


def test_one_position_gives_the_metric_of_that_position() -> None:
    records = synthetic_records(3000, gamma=1)
    identity = Calibration.identity(1)
    error = block_errors(records, identity)["survival"]
    metric = evaluate(records, identity).survival[0]
    assert error.rows == metric.n
    assert error.value == pytest.approx(metric.debiased_ece)
    assert error.low == pytest.approx(metric.debiased_ece_low)
    assert error.high == pytest.approx(metric.debiased_ece_high)


def test_square_is_the_row_weighted_mean_of_the_positions() -> None:
    records = synthetic_records(4000)
    identity = Calibration.identity(7)
    for view in ("conditional", "survival"):
        metrics = getattr(evaluate(records, identity), view).positions
        squares = np.average(
            [metric.debiased_ece_squared for metric in metrics],
            weights=[metric.n for metric in metrics],
        )
        assert block_errors(records, identity)[view].value == pytest.approx(squares**0.5)


@pytest.mark.slow
@pytest.mark.statistical
def test_interval_covers_zero_for_a_perfect_model() -> None:
    """Of 100 data sets with clusters at most 10 exclude the truth at a nominal 5 %."""
    misses = 0
    for seed in range(100):
        records = synthetic_records(1500, prompts=100, seed=seed)
        low = block_errors(records, TRUTH)["survival"].low
        assert low is not None
        misses += low > 0.0
    assert misses <= 10


def test_no_rows_and_one_cluster_are_null() -> None:
    empty = block_errors(AcceptanceRecords.empty(2), Calibration.identity(2))["survival"]
    assert (empty.rows, empty.value) == (0, None)
    one = synthetic_records(50, prompts=1, gamma=2)
    error = block_errors(one, Calibration.identity(2))["conditional"]
    assert error.rows > 0
    assert error.to_dict()["value"] is None


def test_without_prompts_blocks_are_the_clusters() -> None:
    records = AcceptanceRecords.from_columns(
        2,
        {
            "confidence_logits": np.zeros((40, 2)),
            "verified": [2] * 40,
            "accepted": [0, 2] * 20,
        },
    )
    error = block_errors(records, Calibration.identity(2))["survival"]
    # Position 1 is right (.5 against .5); position 2 says .25 and sees .5 on half of the cells.
    # Without noise θ = √(.25² / 2) = .177.
    assert error.value == pytest.approx(0.177, abs=0.05)
