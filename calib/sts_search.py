"""The best temperature of one position: exact survival ECE, refined search, ties towards 1.

The objective is the paper's (§3.2.1): the binned calibration error of a_{k-1}·sigma(z_k / T)
against the survival label [n >= k], with everything before k fixed. Probabilities are fp32 and
multiplied in fp32, sums are integers in units of 2^-30, so the value is the same to the last bit
for any order and any split of the rows, and ties are true ties.

Letters: M rows that inform the position.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calib.canonical_json import round_significant
from calib.fit_status import Bound, FitEvidence
from calib.reliability import FRACTION_BITS
from calib.sigmoid import CHUNK, sigmoid_into
from calib.sts_candidates import CandidateOrder
from calib.sts_screen import SurvivalScreen

__all__ = ["SearchResult", "SurvivalObjective", "search_temperature"]

Labels = NDArray[np.uint8] | NDArray[np.float64]

# A chunk adds at most 2^14 rows of 2^30 units: exact in the fp64 sums of np.bincount.
_UNIT = float(1 << FRACTION_BITS)
_POINTS_PER_DECADE = 20  # of the first pass, as dense as SGLang's grid
_FLAT = 2.0**-22  # errors closer than the rounding of fp32 probabilities are equal
_SMALLEST = 1e-6  # fp32 knows no closer to 0 or 1
_TOWARDS_ZERO = 1e-30  # sigma(z / T) is then 0, 1/2 or 1
_TOWARDS_INFINITY = 1e30  # … and 1/2


class SurvivalObjective:
    """Calibration error of the survival at one position, as a function of its temperature.

    Args:
        survival: [M] fp32 survival of the positions before, in [0, 1].
        logits: [M] fp32 raw logits of the position, finite, contiguous.
        labels: [M] uint8 0/1, or fp64 soft survival labels in [0, 1].
        n_bins: equal-width bins.
    """

    def __init__(
        self,
        survival: NDArray[np.float32],
        logits: NDArray[np.float32],
        labels: Labels,
        n_bins: int,
    ) -> None:
        self._survival = survival
        self._logits = logits
        self._labels = labels
        self._n_bins = n_bins
        self._totals: dict[float, int] = {}
        size = min(len(logits), CHUNK)
        self._factor = np.empty(size, dtype=np.float32)
        self._scratch = np.empty(size, dtype=np.float64)

    @property
    def rows(self) -> int:
        """M."""
        return len(self._logits)

    @property
    def one_class(self) -> bool:
        """Whether all labels are 0 or all are 1; True without rows."""
        if self.rows == 0:
            return True
        low, high = self._labels.min(), self._labels.max()
        return bool(low == high and low in (0, 1))

    def total(self, temperature: float) -> int:
        """M·ECE in units of 2^-30, exact; each temperature is evaluated once."""
        known = self._totals.get(temperature)
        if known is None:
            known = self._totals[temperature] = self._evaluate(temperature)
        return known

    def ece(self, temperature: float) -> float:
        """Survival ECE in [0, 1]."""
        return self.total(temperature) / (_UNIT * self.rows)

    def ece_or_none(self, temperature: float) -> float | None:
        """:meth:`ece`; None without rows."""
        return self.ece(temperature) if self.rows else None

    def evidence_of(
        self, temperature: float, at_bound: Bound | None, *, label_noise: bool = True
    ) -> FitEvidence:
        """What is known of the best temperature of a search.

        Args:
            temperature: it.
            at_bound: the bound that is as good, or None.
            label_noise: whether labels scatter; without, chance explains nothing of what remains.
        """
        residual = self.ece(temperature)
        if at_bound is not None:
            residual = min(residual, self.best_limit(at_bound))
        null_level = self.null_level(temperature) if label_noise else 0.0
        return FitEvidence(self.rows, False, temperature, at_bound, residual, null_level)

    def best_limit(self, bound: Bound) -> float:
        """The ECE that remains when the temperature goes to 0 (``lower``) or infinity."""
        return self.ece(_TOWARDS_ZERO if bound == "lower" else _TOWARDS_INFINITY)

    def null_level(self, temperature: float) -> float:
        """ECE that a perfectly calibrated model with these predictions would show on average.

        sqrt(2/pi)·sum_b sqrt(sum of p(1 - p))/M, the mean absolute deviation of each bin's sum.
        """
        sums = np.zeros(self._n_bins, dtype=np.int64)
        for _, product in self._products(temperature):
            bins = self._bins(product)
            values = self._scratch[: product.size]
            np.copyto(values, product)
            values *= 1.0 - product.astype(np.float64)
            sums += _fixed_sums(bins, values, self._n_bins)
        spread = np.sqrt(sums / _UNIT).sum()
        return float(math.sqrt(2.0 / math.pi) * spread / self.rows)

    def log_loss(self, temperature: float) -> float:
        """Mean log loss of the survival in nats, probabilities kept within 1e-6 of 0 and 1."""
        total = 0.0
        for part, product in self._products(temperature):
            p = np.clip(product.astype(np.float64), _SMALLEST, 1.0 - _SMALLEST)
            labels = self._labels[part]
            total -= float((labels * np.log(p) + (1.0 - labels) * np.log1p(-p)).sum())
        return total / self.rows

    def survive(self, temperature: float) -> NDArray[np.float32]:
        """[M] survival including this position."""
        result = np.empty_like(self._survival)
        for part, product in self._products(temperature):
            result[part] = product
        return result

    def screen(self) -> SurvivalScreen | None:
        """Lower bounds on the error, or None where evaluating is cheaper."""
        return SurvivalScreen.build(self._survival, self._logits, self._labels, self._n_bins)

    def _evaluate(self, temperature: float) -> int:
        sums = np.zeros(self._n_bins, dtype=np.int64)
        for part, product in self._products(temperature):
            bins = self._bins(product)
            values = self._scratch[: product.size]
            np.copyto(values, product)
            values -= self._labels[part]
            sums += _fixed_sums(bins, values, self._n_bins)
        return int(np.abs(sums).sum())

    def _products(self, temperature: float) -> Iterator[tuple[slice, NDArray[np.float32]]]:
        """Chunks of survival * sigma(z / T); each is overwritten by the next."""
        divisor = np.float32(temperature)
        with np.errstate(over="ignore", under="ignore"):
            for start in range(0, self.rows, CHUNK):
                part = slice(start, start + CHUNK)
                logits = self._logits[part]
                factor = self._factor[: logits.size]
                np.divide(logits, divisor, out=factor)
                sigmoid_into(factor, self._scratch[: logits.size], factor)
                yield part, np.multiply(self._survival[part], factor, out=factor)

    def _bins(self, product: NDArray[np.float32]) -> NDArray[np.intp]:
        """Bins by the rule of :mod:`calib.reliability`: the product with B is taken in fp32."""
        bins = (product * np.float32(self._n_bins)).astype(np.intp)
        return np.minimum(bins, self._n_bins - 1, out=bins)


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Outcome of one search.

    Attributes:
        temperature: the best number, six significant digits.
        ece: its error.
        at_bound: the bound that is as good as any temperature, or None.
    """

    temperature: float
    ece: float
    at_bound: Bound | None


def search_temperature(
    objective: SurvivalObjective, bounds: tuple[float, float], refinements: int
) -> SearchResult:
    """Minimise the objective over temperatures within ``bounds``.

    A first pass over 20 temperatures a decade, anchored at 1, then ``refinements`` halvings of the
    step around the best. Of equal errors the temperature nearest to 1 wins, on a log scale, so
    rows that do not care leave a logit as it is.

    Args:
        objective: at least one row.
        bounds: smallest and largest temperature, 0 < low <= 1 <= high.
        refinements: halvings; 7 end at steps of 0.09 %.
    """
    best = _first_pass(objective, _first_grid(bounds))
    step = math.log(10.0) / _POINTS_PER_DECADE
    for _ in range(refinements):
        step /= 2.0
        moved = (round_significant(best * math.exp(side * step)) for side in (-1.0, 1.0))
        near = [min(max(temperature, bounds[0]), bounds[1]) for temperature in moved]
        best = min([best, *near], key=lambda t: _rank(objective, t))
    return SearchResult(best, objective.ece(best), _bound_at(objective, best, bounds, step))


def _first_grid(bounds: tuple[float, float]) -> NDArray[np.float64]:
    low, high = (math.log10(bound) * _POINTS_PER_DECADE for bound in bounds)
    inside = range(math.ceil(low), math.floor(high) + 1)
    grid = {round_significant(10.0 ** (index / _POINTS_PER_DECADE)) for index in inside}
    return np.array(sorted(t for t in grid | set(bounds) if bounds[0] <= t <= bounds[1]))


def _first_pass(objective: SurvivalObjective, grid: NDArray[np.float64]) -> float:
    order = CandidateOrder(grid, objective.screen())
    best = 1.0
    lowest = math.inf
    while (index := order.next(lowest)) is not None:
        temperature = float(grid[index])
        if lowest == math.inf or _rank(objective, temperature) < _rank(objective, best):
            best = temperature
        lowest = objective.ece(best)
    return best


def _rank(objective: SurvivalObjective, temperature: float) -> tuple[int, float, float]:
    """Smaller is better: error, distance from 1 on a log scale, then the less confident."""
    return objective.total(temperature), abs(math.log(temperature)), -temperature


def _bound_at(
    objective: SurvivalObjective, best: float, bounds: tuple[float, float], step: float
) -> Bound | None:
    """The bound at which the error is smallest, or as small as at ``best``.

    A valley that is flat out to the bound only says "at least this far", so its near end is no
    number either. A flat valley around 1 is one: there the rows ask for no change.
    """
    if best == 1.0:
        return None
    bound: Bound = "upper" if best > 1.0 else "lower"
    limit = bounds[1] if best > 1.0 else bounds[0]
    at_limit = abs(math.log(limit / best)) <= step
    flat = objective.ece(limit) - objective.ece(best) <= _FLAT
    return bound if at_limit or flat else None


def _fixed_sums(
    bins: NDArray[np.intp], values: NDArray[np.float64], n_bins: int
) -> NDArray[np.int64]:
    """Sums per bin in units of 2^-30; overwrites ``values``."""
    values *= _UNIT
    np.rint(values, out=values)
    return np.bincount(bins, values, n_bins).astype(np.int64)
