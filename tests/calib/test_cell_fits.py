from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.special import expit

from calib.cell_fits import cell_ece, fit_affine, fit_temperature_cells, is_flat
from calib.conditional_temperature import fit_temperature
from calib.logit_sketch import LogitSketch
from calib.sketch_cells import LogitCells

BOUNDS = (0.05, 20.0)


def cells_of(logits: np.ndarray, labels: np.ndarray) -> LogitCells:
    return LogitCells.of(LogitSketch.from_labels(logits[:, None], labels[:, None]))


def temperature_of(cells: LogitCells, ridge: float = 0.0, center: float = 1.0) -> Any:
    """Fit of the only position, with plain numbers."""
    found = fit_temperature_cells(cells, bounds=BOUNDS, ridge=ridge, center=np.array([center]))
    return only(found)


def affine_of(cells: LogitCells) -> Any:
    return only(fit_affine(cells, ridge=0.0, center=np.array([[1.0, 0.0]])))


def only(found: Any) -> SimpleNamespace:
    names = set(type(found).__dataclass_fields__) - {"fit"}
    return SimpleNamespace(**{name: getattr(found, name)[0] for name in names})


def drawn(rows: int, seed: int, slope: float = 0.7, intercept: float = 0.2) -> LogitCells:
    draw = np.random.default_rng(seed)
    z = draw.normal(1.5, 2.0, rows)
    return cells_of(z, (draw.random(rows) < expit(slope * z + intercept)).astype(float))


def test_cells_give_the_fit_of_the_rows() -> None:
    draw = np.random.default_rng(3)
    z = draw.normal(1.0, 2.2, 20_000).astype(np.float32)
    y = (draw.random(20_000) < expit(z / 1.5)).astype(float)
    exact = fit_temperature(z, y).temperature
    fit = temperature_of(cells_of(z, y))
    assert fit.temperature == pytest.approx(exact, rel=2e-5)
    assert fit.log_error > 100 * abs(math.log(fit.temperature / exact))


def test_ridge_pulls_to_the_center() -> None:
    cells = drawn(50, 0)
    free = temperature_of(cells, center=2.0).temperature
    pulled = [temperature_of(cells, ridge, center=2.0).temperature for ridge in (5.0, 1e9)]
    assert abs(1 / pulled[0] - 0.5) < abs(1 / free - 0.5)
    assert pulled[1] == pytest.approx(2.0)


def test_affine_recovers_slope_and_intercept() -> None:
    fit = affine_of(drawn(200_000, 1))
    assert fit.slope == pytest.approx(0.7, abs=4 * fit.slope_error)
    assert fit.intercept == pytest.approx(0.2, abs=4 * fit.intercept_error)
    assert fit.slope_error < 0.01


def test_one_logit_value_fits_the_intercept_alone() -> None:
    cells = cells_of(np.full(100, 1.5), np.repeat([1.0, 0.0], [30, 70]))
    fit = affine_of(cells)
    assert fit.slope == 1.0
    assert expit(1.5 + fit.intercept) == pytest.approx(0.3, abs=1e-6)
    assert fit.slope_error == math.inf
    assert fit.intercept_error == pytest.approx(1 / math.sqrt(100 * 0.21), rel=1e-6)


def test_separated_classes_have_no_number() -> None:
    cells = cells_of(np.array([2.0, -2.0] * 20), np.array([1.0, 0.0] * 20))
    assert temperature_of(cells).at_bound == "lower"
    assert not affine_of(cells).converged
    flipped = cells_of(np.array([2.0, -2.0] * 20), np.array([0.0, 1.0] * 20))
    assert temperature_of(flipped).at_bound == "upper"


def test_zero_logits_say_nothing() -> None:
    cells = cells_of(np.zeros(10), np.array([1.0, 0.0] * 5))
    fit = temperature_of(cells, center=1.25)
    assert (fit.temperature, fit.at_bound, fit.log_error) == (1.25, None, math.inf)
    assert is_flat(cells.logit, cells.weight).tolist() == [True]


def test_r14_error_of_cells() -> None:
    """980 rows c = .9 with 882 accepted, 20 rows c = .1 all accepted: ECE .018."""
    z = np.log(9.0) * np.repeat([1.0, -1.0], [980, 20])
    y = np.repeat([1.0, 0.0, 1.0], [882, 98, 20])
    cells = cells_of(z, y)
    (ece,), (null_level,) = cell_ece(cells, expit(cells.logit), 15)
    assert ece == pytest.approx(0.018, abs=1e-5)
    expected = math.sqrt(2 / math.pi) * (math.sqrt(980 * 0.09) + math.sqrt(20 * 0.09)) / 1000
    assert null_level == pytest.approx(expected, abs=1e-5)


@pytest.mark.statistical
def test_standard_errors_cover() -> None:
    """95 % intervals of 300 fits of 600 rows, of T and of (s, b): 91 to 98.5 % hold the truth."""
    hits = np.zeros(3)
    for seed in range(300):
        cells = drawn(600, seed, intercept=0.0)
        one = temperature_of(cells)
        two = affine_of(cells)
        hits[0] += abs(math.log(one.temperature * 0.7)) <= 1.96 * one.log_error
        hits[1] += abs(two.slope - 0.7) <= 1.96 * two.slope_error
        hits[2] += abs(two.intercept) <= 1.96 * two.intercept_error
    assert (hits >= 273).all()
    assert (hits <= 295).all()
