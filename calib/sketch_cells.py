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

__all__ = ["LogitCells", "forgetting_weights"]

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
class LogitCells:
    """Weighted sums of one or more sketches, ready to fit on; cells by ascending logit.

    A cell without rows has weight 0 and logit 0: it adds nothing to any sum over cells.

    Attributes:
        logit: [g, C] mean logit z of the cell.
        weight: [g, C] Σw.
        positive: [g, C] Σwy, between 0 and ``weight``.
        squared_weight: [g, C] Σw².
        squared_positive: [g, C] Σw²y.
        rows: [g] rows counted, whatever their weight.
        unit: power of two of the size of the logits, for arithmetic near 1.
        soft: whether any label is strictly between 0 and 1.
    """

    logit: Floats
    weight: Floats
    positive: Floats
    squared_weight: Floats
    squared_positive: Floats
    rows: NDArray[np.int64]
    unit: float
    soft: bool

    @property
    def gamma(self) -> int:
        """Draft positions."""
        return len(self.weight)

    @cached_property
    def total(self) -> Floats:
        """[g] Σw of each position."""
        return np.asarray(self.weight.sum(axis=1))

    @cached_property
    def effective_rows(self) -> Floats:
        """[g] (Σw)² / Σw²: the rows of weight 1 that would be as much evidence."""
        squares = self.squared_weight.sum(axis=1)
        rows = np.divide(self.total**2, squares, out=np.zeros(self.gamma), where=squares > 0.0)
        return np.asarray(rows)

    @cached_property
    def one_class(self) -> NDArray[np.bool_]:
        """[g] whether all labels are 0 or all are 1; True without rows."""
        accepted = self.positive.sum(axis=1)
        return np.asarray((accepted <= 0.0) | (accepted >= self.total))

    def take(self, chosen: NDArray[np.bool_]) -> LogitCells:
        """The positions of a mask [g]."""
        if chosen.all():
            return self
        return LogitCells(
            self.logit[chosen],
            self.weight[chosen],
            self.positive[chosen],
            self.squared_weight[chosen],
            self.squared_positive[chosen],
            self.rows[chosen],
            self.unit,
            self.soft,
        )

    def auc(self, index: int) -> float | None:
        """Area under the ROC curve of one position (from 0) in [0, 1]; None for one class.

        Rows of one cell are tied.
        """
        return area_under_curve(ScoreGroups(self.weight[index], self.positive[index]))

    def equal_mass_bins(self, index: int, n_bins: int = DEFAULT_BINS) -> NDArray[np.intp]:
        """[C] bin of each cell of one position (from 0): nearly equal weight, no cell cut.

        Raises:
            ConfigurationError: no whole number of bins.
        """
        return equal_mass_groups(self.weight[index], check_bins(n_bins))

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
        logit, weight, positive, squared_weight, squared_positive = np.zeros(
            (5, *first.count.shape)
        )
        for factor, sketch in buckets.items():
            accepted = sketch.sum_y / LABEL_UNIT
            logit += factor * (sketch.sum_z * (unit / LOGIT_UNIT))
            weight += factor * sketch.count
            positive += factor * accepted
            squared_weight += factor**2 * sketch.count
            squared_positive += factor**2 * accepted
        return cls(
            np.divide(logit, weight, out=np.zeros_like(logit), where=weight > 0.0),
            weight,
            positive,
            squared_weight,
            squared_positive,
            rows=np.sum([sketch.rows for sketch in buckets.values()], axis=0),
            unit=unit,
            soft=any(sketch.soft for sketch in buckets.values()),
        )


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
