"""Temperature and affine fit of one position from its sketch cells, with evidence and errors.

Standard errors are robust to a wrong model (sandwich form, from Σ(y - p)²) and take rows as
independent; for soft labels, whose squares a sketch does not hold, y² <= y makes them upper bounds.

Letters: M cells.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from calib.canonical_json import round_significant
from calib.fit_status import Bound
from calib.logistic_newton import LogisticFit, fit_logistic
from calib.sketch_cells import PositionCells

__all__ = ["AffineNumbers", "TemperatureNumbers", "cell_ece", "fit_affine", "fit_temperature_cells"]

Floats = NDArray[np.float64]

# Below this share of Σwz², all logits are one value and no slope can be told from an intercept.
_FLAT = 1e-9


@dataclass(frozen=True, slots=True)
class TemperatureNumbers:
    """The most likely temperature of one position.

    Attributes:
        temperature: within the bounds, six significant digits.
        at_bound: the bound it lies at, or None.
        log_error: standard error of log T; infinite where the rows say nothing.
        confidence_error: standard error of c, root mean square over the rows.
        loss: log loss in nats, summed over the weighted rows.
    """

    temperature: float
    at_bound: Bound | None
    log_error: float
    confidence_error: float
    loss: float


@dataclass(frozen=True, slots=True)
class AffineNumbers:
    """The most likely slope and intercept of one position.

    Attributes:
        slope: s of σ(s z + b), six significant digits.
        intercept: b, six significant digits.
        converged: False where the likelihood has no finite optimum.
        slope_error: standard error of s.
        intercept_error: standard error of b.
        confidence_error: standard error of c, root mean square over the rows.
        loss: log loss in nats, summed over the weighted rows.
    """

    slope: float
    intercept: float
    converged: bool
    slope_error: float
    intercept_error: float
    confidence_error: float
    loss: float


def fit_temperature_cells(
    cells: PositionCells,
    *,
    bounds: tuple[float, float],
    ridge: float,
    center: float,
) -> TemperatureNumbers:
    """Minimise Σ log loss(σ(z / T), y) + ridge·(1/T - 1/center)²/2 within ``bounds``.

    Args:
        cells: one position.
        bounds: smallest and largest temperature.
        ridge: strength of the pull, in rows.
        center: temperature the ridge pulls to; kept where the rows say nothing.
    """
    features = (cells.logit / cells.unit)[:, None]
    fit = fit_logistic(
        features,
        cells.weight,
        cells.positive,
        ridge=np.array([ridge / cells.unit**2]),
        center=np.array([cells.unit / center]),
    )
    beta = float(fit.coefficients[0]) / cells.unit
    at_bound: Bound | None = None
    if not fit.converged:  # separated classes: the likelihood rises for ever
        at_bound = "lower" if beta > 0.0 else "upper"
    elif beta * bounds[1] <= 1.0:
        at_bound = "upper"
    elif beta * bounds[0] >= 1.0:
        at_bound = "lower"
    limit = bounds[0] if at_bound == "lower" else bounds[1]
    temperature = limit if at_bound is not None else round_significant(1.0 / beta)
    chance = expit(features @ fit.coefficients)
    covariance = _sandwich(features, chance, cells, fit)
    error = math.sqrt(covariance[0, 0])
    return TemperatureNumbers(
        temperature=temperature,
        at_bound=at_bound,
        log_error=error / abs(beta * cells.unit) if beta else math.inf,
        confidence_error=_confidence_error(features, chance, cells, covariance),
        loss=fit.loss,
    )


def fit_affine(
    cells: PositionCells,
    *,
    ridge: float,
    center: tuple[float, float],
) -> AffineNumbers:
    """Minimise Σ log loss(σ(s z + b), y) + ridge·[(s - s₀)² + (b - b₀)²]/2.

    Where all logits are one value the slope stays s₀ and the intercept alone is fitted.

    Args:
        cells: one position.
        ridge: strength of the pull, in rows.
        center: (s₀, b₀) the ridge pulls to.
    """
    unit = cells.unit
    scaled = cells.logit / unit
    features = np.stack([scaled, np.ones_like(scaled)], axis=1)
    pull = np.array([ridge / unit**2, ridge])
    start = np.array([center[0] * unit, center[1]])
    free = np.array([not is_flat(scaled, cells.weight), True])
    # A frozen slope enters as if infinitely penalised: its column leaves, its share of η stays.
    if free[0]:
        fit = fit_logistic(features, cells.weight, cells.positive, ridge=pull, center=start)
        theta, design = fit.coefficients, features
    else:
        level = float(cells.weight @ scaled / max(cells.total, 1e-300)) * start[0]
        fit = fit_logistic(
            features[:, 1:],
            cells.weight,
            cells.positive,
            ridge=pull[1:],
            center=np.array([start[1] + level]),
        )
        theta, design = np.array([start[0], fit.coefficients[0] - level]), features[:, 1:]
    chance = expit(design @ fit.coefficients)
    covariance = _sandwich(design, chance, cells, fit)
    errors = np.full(2, math.inf)
    errors[free] = np.sqrt(np.diag(covariance))
    return AffineNumbers(
        slope=round_significant(float(theta[0] / unit)),
        intercept=round_significant(float(theta[1])),
        converged=fit.converged,
        slope_error=float(errors[0] / unit),
        intercept_error=float(errors[1]),
        confidence_error=_confidence_error(design, chance, cells, covariance),
        loss=fit.loss,
    )


def is_flat(values: Floats, weight: Floats) -> bool:
    """Whether weighted values [M] are one value but for rounding."""
    total = float(weight.sum())
    if total <= 0.0:
        return True
    mean = float(weight @ values) / total
    spread = float(weight @ np.square(values - mean))
    return spread <= _FLAT * max(float(weight @ np.square(values)), 1e-300)


def cell_ece(cells: PositionCells, probability: Floats, n_bins: int) -> tuple[float, float]:
    """Calibration error of the cells' predictions, and the level a perfect model would show.

    Args:
        cells: one position with rows.
        probability: [M] prediction of each cell.
        n_bins: equal-width bins.

    Returns:
        ECE in [0, 1], and √(2/π)·Σ_b √(Σ w²p(1 - p)) / Σw.
    """
    # The rule of calib.reliability, without its checks: these are sigmoids.
    bins = (probability.astype(np.float32) * np.float32(n_bins)).astype(np.intp)
    bins = np.minimum(bins, n_bins - 1)
    gap = np.bincount(bins, cells.weight * probability - cells.positive, n_bins)
    variance = np.bincount(bins, cells.squared_weight * probability * (1.0 - probability), n_bins)
    null_level = math.sqrt(2.0 / math.pi) * float(np.sqrt(variance).sum()) / cells.total
    return float(np.abs(gap).sum()) / cells.total, null_level


def _sandwich(features: Floats, chance: Floats, cells: PositionCells, fit: LogisticFit) -> Floats:
    """[P, P] covariance of the coefficients; infinite where the information is singular."""
    size = len(fit.coefficients)
    # Σw²(y - p)² of a cell, y² taken as y.
    residual = cells.squared_positive * (1.0 - 2.0 * chance) + cells.squared_weight * chance**2
    columns = np.ascontiguousarray(features.T)
    meat = (columns * residual) @ columns.T
    unknown = np.diag(np.full(size, math.inf))
    try:
        bread = np.linalg.inv(fit.information)
    except np.linalg.LinAlgError:
        return unknown
    with np.errstate(over="ignore", invalid="ignore"):
        covariance = bread @ meat @ bread
    return np.asarray(covariance) if np.isfinite(covariance).all() else unknown


def _confidence_error(
    features: Floats, chance: Floats, cells: PositionCells, covariance: Floats
) -> float:
    if not np.isfinite(covariance).all():
        return math.inf
    columns = np.ascontiguousarray(features.T)
    variance = ((covariance @ columns) * columns).sum(axis=0)
    variance *= (chance * (1.0 - chance)) ** 2
    return math.sqrt(max(float(cells.weight @ variance) / cells.total, 0.0))
