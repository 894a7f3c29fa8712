"""A logit sketch as it is read: weighted cells, forgetting, AUC and equal-mass bins.

Sketches are kept per time bucket as integers; weights enter only here. A weight of 1 everywhere
reads exactly what was counted, and the result does not depend on the order of the buckets.

Letters: g = gamma draft positions, C cells, w the weight of a row's bucket.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from calib.discrimination import ScoreGroups, area_under_curve
from calib.errors import ConfigurationError, InvalidInputError
from calib.logit_sketch import LogitSketch
from calib.reliability import DEFAULT_BINS, check_bins, equal_mass_groups
from calib.squashed_logit import LABEL_UNIT, LOGIT_UNIT

__all__ = ["LogitCells", "PositionCells", "forgetting_weights"]

Floats = NDArray[np.float64]


def forgetting_weights(
    ages: Sequence[float],  # [B] >= 0, any unit
    half_life: float,  # in the same unit, > 0; infinity forgets nothing
) -> list[float]:
    """Weights 2^(-age / half_life), in (0, 1] (0 where that underflows).

    Raises:
        ConfigurationError: a negative age or a half-life that is not positive.
    """
    if not half_life > 0.0:
        raise ConfigurationError("half_life", half_life, "give a positive time, or infinity")
    for age in ages:
        if not 0.0 <= age < float("inf"):
            raise ConfigurationError("ages", age, "give finite ages >= 0")
    return [2.0 ** -(age / half_life) for age in ages]


@dataclass(frozen=True, eq=False)  # no slots: sums are kept once computed
class PositionCells:
    """The cells of one position that hold rows, M of them, by ascending logit.

    Attributes:
        logit: [M] mean logit z of the cell.
        weight: [M] Σw.
        positive: [M] Σwy, between 0 and ``weight``.
        squared_weight: [M] Σw².
        squared_positive: [M] Σw²y.
        rows: rows counted, whatever their weight.
        unit: power of two of the size of the logits, for arithmetic near 1.
    """

    logit: Floats
    weight: Floats
    positive: Floats
    squared_weight: Floats
    squared_positive: Floats
    rows: int
    unit: float

    @cached_property
    def total(self) -> float:
        """Σw of the position."""
        return float(self.weight.sum())

    @cached_property
    def effective_rows(self) -> float:
        """(Σw)² / Σw²: the rows of weight 1 that would be as much evidence."""
        squares = float(self.squared_weight.sum())
        return self.total**2 / squares if squares > 0.0 else 0.0

    @cached_property
    def one_class(self) -> bool:
        """Whether all labels are 0 or all are 1; True without rows."""
        accepted = float(self.positive.sum())
        return accepted <= 0.0 or accepted >= self.total

    def auc(self) -> float | None:
        """Area under the ROC curve in [0, 1], rows of one cell tied; None for one class."""
        return area_under_curve(ScoreGroups(self.weight, self.positive))

    def equal_mass_bins(self, n_bins: int = DEFAULT_BINS) -> NDArray[np.intp]:
        """[M] bin of each cell: neighbours grouped to nearly equal weight, no cell cut.

        Raises:
            ConfigurationError: no whole number of bins.
        """
        bins = check_bins(n_bins)
        if not len(self.weight):
            return np.zeros(0, dtype=np.intp)
        return equal_mass_groups(self.weight, bins)


@dataclass(frozen=True, eq=False, slots=True)
class LogitCells:
    """Weighted sums of one or more sketches, ready to fit on.

    Attributes:
        positions: cells of each position.
        soft: whether any label is strictly between 0 and 1.
    """

    positions: tuple[PositionCells, ...]
    soft: bool

    @property
    def gamma(self) -> int:
        """Draft positions."""
        return len(self.positions)

    @classmethod
    def of(cls, sketch: LogitSketch) -> LogitCells:
        """Every row counts once."""
        return cls.weighted([sketch], [1.0])

    @classmethod
    def weighted(cls, sketches: Iterable[LogitSketch], weights: Iterable[float]) -> LogitCells:
        """Rows of each sketch with its weight, as from :func:`forgetting_weights`.

        Raises:
            ConfigurationError: other numbers of sketches and weights, or a weight that is
                negative or not finite.
            InvalidInputError: no sketches, or sketches of different γ or scale.
        """
        buckets = _by_weight(list(sketches), list(weights))
        first = next(iter(buckets.values()))
        unit = 2.0**first.scale_exponent
        positions = tuple(_position(buckets, index, unit) for index in range(first.gamma))
        return cls(positions, any(sketch.soft for sketch in buckets.values()))


def _by_weight(sketches: list[LogitSketch], weights: list[float]) -> dict[float, LogitSketch]:
    """One exact sketch per weight, by ascending weight: then no sum depends on the order given."""
    if len(sketches) != len(weights):
        raise ConfigurationError("weights", len(weights), f"give {len(sketches)}, one per sketch")
    if not sketches:
        raise InvalidInputError("sketches", 0, "give at least one sketch")
    grouped: dict[float, list[LogitSketch]] = {}
    for sketch, weight in zip(sketches, weights, strict=True):
        if not 0.0 <= weight < float("inf"):
            raise ConfigurationError("weights", weight, "give finite weights >= 0")
        grouped.setdefault(float(weight), []).append(sketch)
    merged = {weight: LogitSketch.merged(grouped[weight]) for weight in sorted(grouped)}
    LogitSketch.merged(merged.values())  # refuses different shapes
    return merged


def _position(buckets: dict[float, LogitSketch], index: int, unit: float) -> PositionCells:
    weights = np.array(list(buckets))[:, None]
    count = np.array([sketch.count[index] for sketch in buckets.values()], dtype=np.float64)
    logit = np.array([sketch.sum_z[index] for sketch in buckets.values()]) * (unit / LOGIT_UNIT)
    label = np.array([sketch.sum_y[index] for sketch in buckets.values()]) / LABEL_UNIT
    weight = (weights * count).sum(axis=0)
    held = np.flatnonzero(weight > 0.0)
    squares = weights * weights
    return PositionCells(
        logit=(weights * logit).sum(axis=0)[held] / weight[held],
        weight=weight[held],
        positive=(weights * label).sum(axis=0)[held],
        squared_weight=(squares * count).sum(axis=0)[held],
        squared_positive=(squares * label).sum(axis=0)[held],
        rows=int(count.sum()),
        unit=unit,
    )
