"""Debiased L2 calibration error with an interval that is honest near zero.

With μ_b the true mean of r = y - p in bin b and w_b its share of the weight, the binned L2 error
is θ = √(Σ_b w_b μ_b²). The plug-in square adds the noise of every bin. The *debiased* square uses
only products of rows from different clusters,

    T = Σ_b w_b · (R_b² - Σ_c R_cb²) / (W_b² - Σ_c W_cb²),

whose mean is θ² whatever the labels' variance, hard or soft (Kumar, Liang and Ma 2019, section 4;
Bröcker 2012; Ferro and Fricker 2012: there with the variance of y alone, here of y - p). T may be
negative; the reported root is √max(T, 0).

The interval inverts tests instead of adding ± 1.96 standard errors: near θ = 0 the square is a
weighted χ² with rate 1/N, far from it a normal with rate 1/√N (Sun et al. 2024, arXiv 2408.08998
treat the two cases apart). For each candidate θ² the plug-in square Q = Σ_b w_b r̄_b² follows a
weighted noncentral χ², approximated by a shifted gamma with the same first three cumulants; the
interval holds the θ whose Q is in neither 2.5 % tail. The direction of μ decides how strongly
noise moves Q; it is estimated where the signal is clear, and taken as the worst one where it is
not. (Without that the interval covers 88 % instead of 95 % when labels of a cluster share one
strong factor.)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import optimize, special, stats

from calib.bin_sums import Floats
from calib.clusters import BinMoments

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class DebiasedError:
    """Debiased L2 calibration error of one position.

    Attributes:
        squared: T, unbiased for θ² and possibly negative; average and compare this one.
        root: √max(T, 0), in [0, 1].
        low: lower end of the 95 % interval of θ.
        high: upper end of the 95 % interval of θ.
    """

    squared: float
    root: float
    low: float
    high: float


def debiased_squared_error(moments: BinMoments) -> float | None:
    """T, the unbiased estimate of Σ_b w_b μ_b²; None when no bin has two clusters.

    A bin with a single cluster offers no product of different clusters and adds nothing.

    Args:
        moments: per-cluster bin moments of one position.
    """
    pairs = moments.weight**2 - moments.squared_weight
    usable = moments.clusters >= 2
    if not usable.any():
        return None
    product = moments.residual**2 - moments.squared_residual
    square = np.divide(product, pairs, out=np.zeros_like(product), where=usable)
    return float((moments.weight * square).sum() / moments.weight.sum())


def debiased_calibration_error(
    moments: BinMoments, confidence: float = CONFIDENCE
) -> DebiasedError | None:
    """Debiased L2 error with its interval; None when no bin has two clusters.

    Args:
        moments: per-cluster bin moments of one position.
        confidence: coverage of the interval, in (0, 1).
    """
    squared = debiased_squared_error(moments)
    if squared is None:
        return None
    low, high = _interval(moments, squared, 0.5 * (1.0 - confidence))
    return DebiasedError(squared, float(np.sqrt(max(squared, 0.0))), low, high)


@dataclass(frozen=True, slots=True)
class _SquareDistribution:
    """Distribution of Q when the true square is x, by its first three cumulants."""

    noise: tuple[float, float, float]  # tr A, tr A², tr A³ for the covariance A of √w_b r̄_b
    along: tuple[float, float]  # d'Ad, d'A²d for the unit direction d of √w_b μ_b, or the worst
    share: Floats  # [B] w_b
    direction: Floats  # [B] d_b² / w_b, so that μ_b² = x · direction_b
    effective: float  # rows behind the shares

    def tail(self, observed: float, x: float) -> float:
        """P(Q <= observed) when the true square is x."""
        mean = self.noise[0] + x
        variance = 2.0 * self.noise[1] + 4.0 * x * self.along[0] + self._share_variance(x)
        third = 8.0 * self.noise[2] + 24.0 * x * self.along[1]
        if variance <= 0.0:
            return float(observed >= mean)
        shape = 4.0 * variance**3 / third**2 if third > 0.0 else np.inf
        if shape > 1e8:  # no skew left
            return float(stats.norm.cdf(observed, mean, np.sqrt(variance)))
        scale = np.sqrt(variance / shape)
        return float(special.gammainc(shape, max(observed - mean + shape * scale, 0.0) / scale))

    def _share_variance(self, x: float) -> float:
        """Variance of Σ w_b μ_b² because the shares w_b are those of a sample."""
        squares = np.minimum(x * self.direction, 1.0)  # no gap exceeds 1
        mean = float(self.share @ squares)
        return max(float(self.share @ squares**2) - mean * mean, 0.0) / self.effective


def _distribution(moments: BinMoments, squared: float) -> tuple[float, _SquareDistribution]:
    """Q and its distribution, with nuisances estimated from the moments; ``squared`` is T."""
    share = moments.weight / moments.weight.sum()
    mean = np.divide(
        moments.residual, moments.weight, out=np.zeros_like(share), where=moments.weight > 0
    )
    covariance = moments.mean_covariance()
    scaled = covariance * np.sqrt(np.outer(share, share))
    second = scaled @ scaled
    direction = _direction(share, mean, np.diag(covariance))
    observed = float((share * mean**2).sum())
    clear = min(max(squared, 0.0) / observed, 1.0) if observed > 0.0 else 0.0
    worst = float(np.linalg.eigvalsh(scaled)[-1])
    along = (
        clear * float(direction @ scaled @ direction) + (1.0 - clear) * worst,
        clear * float(direction @ second @ direction) + (1.0 - clear) * worst**2,
    )
    return observed, _SquareDistribution(
        noise=(np.trace(scaled), np.trace(second), np.trace(second @ scaled)),
        along=along,
        share=share,
        direction=np.divide(direction**2, share, out=np.zeros_like(share), where=share > 0),
        effective=moments.weight.sum() ** 2 / moments.squared_weight.sum(),
    )


def _direction(share: Floats, mean: Floats, variance: Floats) -> Floats:
    """Unit vector of √w_b μ_b: each bin by its gap, but by its noise where that is larger."""
    signal = share * np.maximum(mean**2, variance)
    if not signal.any():
        signal = share
    return np.asarray(np.sign(mean) * np.sqrt(signal / signal.sum()), dtype=np.float64)


def _interval(moments: BinMoments, squared: float, tail: float) -> tuple[float, float]:
    """Ends of {θ : Q is in neither tail}, as roots."""
    observed, distribution = _distribution(moments, squared)
    low = _solve(distribution, observed, 1.0 - tail)
    # An estimate below zero is read as zero: otherwise luckily small gaps would give an upper
    # end of 0, the claim of a perfect model.
    upper_observed = observed + max(-squared, 0.0)
    high = _solve(distribution, upper_observed, tail)
    return min(np.sqrt(low), 1.0), min(np.sqrt(high), 1.0)


def _solve(distribution: _SquareDistribution, observed: float, level: float) -> float:
    """The x >= 0 at which P(Q <= observed) falls to ``level``; 0 if it starts below it."""

    def excess(x: float) -> float:
        return distribution.tail(observed, x) - level

    if excess(0.0) <= 0.0:
        return 0.0
    upper = max(observed, 1e-12)
    while excess(upper) > 0.0 and upper < 4.0:
        upper *= 2.0
    return float(optimize.brentq(excess, 0.0, upper, xtol=1e-15)) if excess(upper) < 0.0 else upper
