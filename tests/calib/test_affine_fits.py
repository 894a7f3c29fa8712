from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit

from calib.affine_fits import AffineFit, AffineRules
from calib.logistic_newton import log_loss
from calib.logit_sketch import LogitSketch
from calib.sketch_cells import LogitCells
from calib.statuses import PositionStatus


def rules(**options: float) -> AffineRules:
    defaults = {
        "ridge": 0.0,
        "minimum_rows": 100,
        "minimum_class_rows": 10,
        "n_bins": 15,
        "gap_tolerance": 0.05,
    }
    return AffineRules(**{**defaults, **options})  # type: ignore[arg-type]


def fit(logits: np.ndarray, labels: np.ndarray, **options: float) -> AffineFit:
    sketch = LogitSketch.from_labels(logits[:, None], labels[:, None])
    cells = LogitCells.of(sketch)
    of_one = log_loss(cells.logit, cells.weight, cells.positive)[~cells.one_class]
    return rules(**options).fit(cells, np.ones(1), of_one)[0]


def drawn(rows: int, intercept: float = -0.4) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(0)
    z = draw.normal(1.0, 2.0, rows)
    return z, (draw.random(rows) < expit(0.8 * z + intercept)).astype(float)


def test_enough_rows_are_served() -> None:
    found = fit(*drawn(5000))
    assert found.status is PositionStatus.OK
    assert found.reason is None
    assert found.slope == pytest.approx(0.8, abs=0.08)
    assert found.to_dict()["status"] == "ok"


@pytest.mark.parametrize("option", [{"minimum_rows": 5001}, {"minimum_class_rows": 2501}])
def test_too_few_rows_keep_the_number(option: dict[str, float]) -> None:
    found, served = fit(*drawn(5000), **option), fit(*drawn(5000))
    assert found.status is PositionStatus.INSUFFICIENT
    assert (found.slope, found.intercept) == (served.slope, served.intercept)
    assert found.reason is not None
    assert "needed" in found.reason


def test_the_pull_is_to_the_temperature() -> None:
    found = fit(*drawn(50, intercept=0.3), ridge=1e7, gap_tolerance=1.0)
    assert found.slope == pytest.approx(1.0, abs=1e-4)
    assert found.intercept == pytest.approx(0.0, abs=1e-4)


def test_r20_no_slope() -> None:
    found = fit(np.array([2.0, 2, -2, -2]), np.array([1.0, 0, 1, 0]), minimum_rows=0)
    assert found.status is PositionStatus.AT_BOUND
    assert found.slope is None


def test_gain_is_the_log_loss_saved_per_row() -> None:
    z, y = drawn(5000)
    found = fit(z, y)
    assert found.slope is not None
    assert found.intercept is not None

    def loss(odds: np.ndarray) -> float:
        return float((np.logaddexp(0.0, odds) - y * odds).mean())

    saved = loss(z) - loss(found.slope * z + found.intercept)
    assert found.gain == pytest.approx(saved, rel=1e-2)
    assert saved > 0.01


def test_one_class() -> None:
    found = fit(np.array([2.0, 1.0]), np.array([1.0, 1.0]))
    assert found.status is PositionStatus.ONE_CLASS
    assert found.slope is None


def test_acceptance_that_does_not_rise_is_no_fit() -> None:
    # Never at -3, always at 0, half the time at 3: .33 is left whatever the curve.
    z = np.tile([-3.0, 0.0, 3.0, 3.0], 1000)
    found = fit(z, np.tile([0.0, 1.0, 0.0, 1.0], 1000))
    assert found.status is PositionStatus.TEMPERATURE_CANNOT_FIT
    assert found.slope is None
