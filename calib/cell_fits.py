"""Temperature and affine fits of all positions from sketch cells, with evidence and errors.

Standard errors are robust to a wrong model (sandwich form, from Σ(y - p)²) and take rows as
independent; for soft labels, whose squares a sketch does not hold, y² <= y makes them upper bounds.

Letters: g positions, C cells, P parameters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calib.canonical_json import round_significant
from calib.fit_status import Bound
from calib.logistic_newton import LogisticFits, fit_logistic
from calib.sketch_cells import LogitCells

__all__ = ["AffineNumbers", "TemperatureNumbers", "cell_ece", "fit_affine", "fit_temperature_cells"]

Floats = NDArray[np.float64]

# Below this share of Σwz², all logits are one value and no slope can be told from an intercept.
_FLAT = 1e-9
_NEIGHBOURS = 8  # cells joined for a first fit


@dataclass(frozen=True, eq=False, slots=True)
class TemperatureNumbers:
    """The most likely temperatures.

    Attributes:
        temperature: [g] within the bounds, six significant digits.
        at_bound: [g] the bound it lies at, or None.
        log_error: [g] standard error of log T; infinite where the rows say nothing.
        confidence_error: [g] standard error of c, root mean square over the rows.
        fit: the optima of unit / T, bounds or not.
    """

    temperature: Floats
    at_bound: tuple[Bound | None, ...]
    log_error: Floats
    confidence_error: Floats
    fit: LogisticFits


@dataclass(frozen=True, eq=False, slots=True)
class AffineNumbers:
    """The most likely slopes and intercepts.

    Attributes:
        slope: [g] s of σ(s z + b), six significant digits.
        intercept: [g] b, six significant digits.
        converged: [g] False where the likelihood has no finite optimum.
        slope_error: [g] standard error of s.
        intercept_error: [g] standard error of b.
        confidence_error: [g] standard error of c, root mean square over the rows.
        loss: [g] log loss in nats, summed over the weighted rows.
    """

    slope: Floats
    intercept: Floats
    converged: NDArray[np.bool_]
    slope_error: Floats
    intercept_error: Floats
    confidence_error: Floats
    loss: Floats


def fit_temperature_cells(
    cells: LogitCells, *, bounds: tuple[float, float], ridge: float, center: Floats
) -> TemperatureNumbers:
    """Minimise Σ log loss(σ(z / T), y) + ridge·(1/T - 1/center)²/2 within ``bounds``.

    Args:
        cells: positions with rows.
        bounds: smallest and largest temperature.
        ridge: strength of the pull, in rows.
        center: [g] temperatures the ridge pulls to; kept where the rows say nothing.
    """
    unit = cells.unit
    features = (cells.logit / unit)[:, None]
    pull = np.full((cells.gamma, 1), ridge / unit**2)
    fit = _fit(cells, features, ridge=pull, center=(unit / center)[:, None])
    scaled = fit.coefficients[:, 0]
    found = [
        _bounded(beta, finite, bounds)
        for beta, finite in zip((scaled / unit).tolist(), fit.converged.tolist(), strict=True)
    ]
    covariance = _sandwich(features, fit, cells)
    error = np.sqrt(covariance[:, 0, 0])
    return TemperatureNumbers(
        temperature=np.array([temperature for temperature, _ in found]),
        at_bound=tuple(at_bound for _, at_bound in found),
        log_error=np.divide(error, abs(scaled), out=np.full_like(error, np.inf), where=scaled != 0),
        confidence_error=_confidence_error(features, fit, cells, covariance),
        fit=fit,
    )


def _bounded(beta: float, finite: bool, bounds: tuple[float, float]) -> tuple[float, Bound | None]:
    """Temperature of 1/T, and the bound it lies at."""
    low, high = bounds
    if not finite:  # separated classes: the likelihood rises for ever
        return (low, "lower") if beta > 0.0 else (high, "upper")
    if beta * high <= 1.0:
        return high, "upper"
    if beta * low >= 1.0:
        return low, "lower"
    return round_significant(1.0 / beta), None


def fit_affine(cells: LogitCells, *, ridge: float, center: Floats) -> AffineNumbers:
    """Minimise Σ log loss(σ(s z + b), y) + ridge·[(s - s₀)² + (b - b₀)²]/2.

    Where all logits are one value the slope stays s₀ and the intercept alone is fitted.

    Args:
        cells: positions with rows.
        ridge: strength of the pull, in rows.
        center: [g, 2] (s₀, b₀) the ridge pulls to.
    """
    unit = cells.unit
    scaled = cells.logit / unit
    features = np.stack([scaled, np.ones_like(scaled)], axis=1)
    pull = np.tile([ridge / unit**2, ridge], (cells.gamma, 1))
    start = center * [unit, 1.0]
    # A frozen slope leaves the features and is held where it is; its share of η stays.
    frozen = is_flat(scaled, cells.weight)
    features[frozen, 0] = 0.0
    pull[frozen, 0] = 1.0
    level = np.where(frozen, (cells.weight * scaled).sum(axis=1) / cells.total * start[:, 0], 0.0)
    start[:, 1] += level
    fit = fit_logistic(features, cells.weight, cells.positive, ridge=pull, center=start)
    covariance = _sandwich(features, fit, cells)
    slope_error, intercept_error = np.sqrt(np.diagonal(covariance, axis1=1, axis2=2)).T
    return AffineNumbers(
        slope=_rounded(fit.coefficients[:, 0] / unit),
        intercept=_rounded(fit.coefficients[:, 1] - level),
        converged=fit.converged,
        slope_error=np.where(frozen, np.inf, slope_error / unit),
        intercept_error=intercept_error,
        confidence_error=_confidence_error(features, fit, cells, covariance),
        loss=fit.loss(cells.weight, cells.positive),
    )


def is_flat(values: Floats, weight: Floats) -> NDArray[np.bool_]:
    """[g] whether weighted values [g, C] are one value but for rounding."""
    total = np.maximum(weight.sum(axis=1), 1e-300)
    mean = (weight * values).sum(axis=1) / total
    spread = (weight * np.square(values - mean[:, None])).sum(axis=1)
    size = (weight * np.square(values)).sum(axis=1)
    return np.asarray(spread <= _FLAT * np.maximum(size, 1e-300))


def cell_ece(cells: LogitCells, probability: Floats, n_bins: int) -> tuple[Floats, Floats]:
    """Calibration error of the cells' predictions, and the level a perfect model would show.

    Args:
        cells: positions; without rows both numbers are 0.
        probability: [g, C] prediction of each cell.
        n_bins: equal-width bins.

    Returns:
        [g] ECE in [0, 1], and [g] √(2/π)·Σ_b √(Σ w²p(1 - p)) / Σw.
    """
    # The rule of calib.reliability, without its checks: these are sigmoids.
    bins = (probability.astype(np.float32) * np.float32(n_bins)).astype(np.intp)
    np.minimum(bins, n_bins - 1, out=bins)
    bins += n_bins * np.arange(cells.gamma)[:, None]

    def summed(values: Floats) -> Floats:
        sums = np.bincount(bins.ravel(), values.ravel(), n_bins * cells.gamma)
        return np.asarray(sums.reshape(cells.gamma, n_bins))

    gap = summed(cells.weight * probability - cells.positive)
    variance = summed(cells.squared_weight * probability * (1.0 - probability))
    total = np.maximum(cells.total, 1e-300)
    null_level = math.sqrt(2.0 / math.pi) * np.sqrt(variance).sum(axis=1) / total
    return np.abs(gap).sum(axis=1) / total, null_level


def _fit(cells: LogitCells, features: Floats, *, ridge: Floats, center: Floats) -> LogisticFits:
    """The optimum, by way of that on joined neighbours, where a step costs an eighth."""

    def joined(values: Floats) -> Floats:
        parts = values.reshape(*values.shape[:-1], values.shape[-1] // _NEIGHBOURS, _NEIGHBOURS)
        return np.asarray(parts @ np.ones(_NEIGHBOURS))

    weight = joined(cells.weight)
    sums = joined(features * cells.weight[:, None])
    means = np.divide(sums, weight[:, None], out=np.zeros_like(sums), where=weight[:, None] > 0.0)
    near = fit_logistic(means, weight, joined(cells.positive), ridge=ridge, center=center)
    return fit_logistic(
        features,
        cells.weight,
        cells.positive,
        ridge=ridge,
        center=center,
        start=np.where(near.converged[:, None], near.coefficients, center),
    )


def _rounded(values: Floats) -> Floats:
    return np.array([round_significant(value) for value in values.tolist()])


def _sandwich(features: Floats, fit: LogisticFits, cells: LogitCells) -> Floats:
    """[g, P, P] covariance of the coefficients; infinite where the information is singular."""
    # Σw²(y - p)² of a cell, y² taken as y.
    residual = cells.squared_positive * (1.0 - 2.0 * fit.chance)
    residual += cells.squared_weight * fit.chance**2
    meat = (features * residual[:, None]) @ features.transpose(0, 2, 1)
    bread = _inverses(fit.information)
    with np.errstate(over="ignore", invalid="ignore"):
        covariance = bread @ meat @ bread
    unknown = ~np.isfinite(covariance).all(axis=(1, 2))
    covariance[unknown] = np.diag(np.full(features.shape[1], np.inf))
    return np.asarray(covariance)


def _inverses(matrices: Floats) -> Floats:
    """[g, P, P] inverses, NaN where there is none."""
    try:
        return np.asarray(np.linalg.inv(matrices))
    except np.linalg.LinAlgError:
        if len(matrices) == 1:
            return np.full_like(matrices, np.nan)
        return np.concatenate([_inverses(matrix[None]) for matrix in matrices])


def _confidence_error(
    features: Floats, fit: LogisticFits, cells: LogitCells, covariance: Floats
) -> Floats:
    known = np.asarray(np.isfinite(covariance).all(axis=(1, 2)))
    finite = np.where(known[:, None, None], covariance, 0.0)
    variance = ((finite @ features) * features).sum(axis=1)
    variance *= (fit.chance * (1.0 - fit.chance)) ** 2
    mean = (cells.weight * variance).sum(axis=1) / np.maximum(cells.total, 1e-300)
    return np.where(known, np.sqrt(np.maximum(mean, 0.0)), np.inf)
