"""Sequential Temperature Scaling (STS, paper §3.2.1): one temperature per position, left to right.

For k = 1 … g the temperature T_k minimises the binned calibration error of
a_{k-1}·sigma(z_k / T_k) against the survival label [n >= k], with T_1 … T_{k-1} fixed.

**The trap.** STS fits survival, and survival was observed only where position k was verified. A row
may inform position k only if its verified length is at least k; a trimmed position read as a
rejection makes the fit as bad as no calibration. Even then the rows that reached position k are
fair only when load decided how far to verify: where the scheduler read this block's own logits,
the rows with l >= k were picked by the confidences that are being calibrated. Give STS fully
verified rows; on trimmed telemetry use :mod:`calib.conditional_temperature`, which is right there.

Letters: N rows, g = gamma draft positions; arrays use index 0 for position 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib.errors import ConfigurationError, FitRefusedError, RecordError
from calib.fit_status import (
    GAP_TOLERANCE,
    MINIMUM_ROWS,
    Bound,
    FitEvidence,
    PositionFit,
    judge,
)
from calib.labels import LabelKind
from calib.records import AcceptanceRecords
from calib.reliability import DEFAULT_BINS, check_bins
from calib.statuses import Refusal
from calib.sts_parity import fit_sts_parity, parity_grid
from calib.sts_rows import SurvivalWalk, survival_targets
from calib.sts_search import SurvivalObjective, search_temperature
from calib.temperature_estimator import (
    PUBLISHABLE_BOUNDS,
    TemperatureEstimator,
    checked_bounds,
    checked_count,
    checked_logits,
    checked_positive,
)

__all__ = ["SequentialTemperatureScaling"]

Mode = Literal["default", "parity"]
Labels = NDArray[np.uint8] | NDArray[np.float64]


class SequentialTemperatureScaling(TemperatureEstimator):
    """One temperature per position by Sequential Temperature Scaling.

    In ``mode="default"`` the search covers ``bounds``, is refined around its optimum and breaks
    ties towards 1. A position whose data give no number (one class, an optimum at a bound, a gap
    that no temperature closes) gets a status, and later positions are fitted on top of what is
    served there: the parent's number or 1. Too few rows never change a number; they keep
    :meth:`calibration` from publishing it. The result is the same to the last bit for any order of
    the rows.

    In ``mode="parity"`` the numbers are those of SGLang's fitter (:mod:`calib.sts_parity`), and
    positions are given statuses.

    In both modes :meth:`calibration` publishes only what precedes the first position that is not
    ok. Every later number was chosen to mend the product up to there, whose gap no temperature
    closed: it bends its own position to hide an earlier one's fault.

    Args:
        mode: ``"default"`` or ``"parity"``.
        n_bins: equal-width bins of the objective.
        minimum_rows: rows that must inform a position before its number is published.
        bounds: search bounds of default mode; the default is what may be published.
        refinements: halvings of the 12 % grid step in default mode; 7 end at 0.09 %.
        parent_temperatures: numbers served where a position has none of its own; 1 when None.
        gap_tolerance: error above the chance level that counts as ``temperature_cannot_fit``.
        allow_unit_interval: accept 100 or more logits that all lie in [0, 1].
        histogram: parity mode by histogram estimates: cheaper, within one grid step.

    Examples:
        >>> logits = np.full((100, 1), 3.0)
        >>> accepted = np.repeat([1, 0], [70, 30])
        >>> scaling = SequentialTemperatureScaling(minimum_rows=100).fit(logits, accepted)
        >>> scaling.temperatures_.round(2).tolist(), scaling.position_statuses_[0].value
        ([3.54], 'ok')
    """

    _method = "sts"

    def __init__(
        self,
        mode: Mode = "default",
        n_bins: int = DEFAULT_BINS,
        minimum_rows: int = MINIMUM_ROWS,
        bounds: tuple[float, float] = PUBLISHABLE_BOUNDS,
        refinements: int = 7,
        parent_temperatures: Sequence[float] | None = None,
        gap_tolerance: float = GAP_TOLERANCE,
        allow_unit_interval: bool = False,
        histogram: bool = False,
    ) -> None:
        self.mode = mode
        self.n_bins = n_bins
        self.minimum_rows = minimum_rows
        self.bounds = bounds
        self.refinements = refinements
        self.parent_temperatures = parent_temperatures
        self.gap_tolerance = gap_tolerance
        self.allow_unit_interval = allow_unit_interval
        self.histogram = histogram

    def fit(
        self,
        X: ArrayLike,  # [N, g] raw confidence logits
        y: ArrayLike | None = None,  # [N] accepted lengths, or [N, g] survival labels
        *,
        verified: ArrayLike | None = None,  # [N] verified lengths
    ) -> Self:
        """Fit one temperature per position.

        Args:
            X: raw logits, cast to fp32 in default mode.
            y: accepted lengths 0 … g, or survival labels [n >= k] in {0, 1}, or soft survival
                labels in [0, 1]. Labels may be NaN from the first unverified position on.
            verified: how far each row was verified; fully when None. Default mode uses a row for
                position k only if its length is at least k; parity mode keeps only rows of length
                g, because SGLang's fitter knows no others.

        Raises:
            FitRefusedError: ``no_rows``, or ``looks_like_probabilities``.
            RecordError: arrays of wrong shape, type or range.
            ConfigurationError: a parameter outside its range.
        """
        self._check_parameters()
        logits = checked_logits(X)
        self._refuse_probabilities(logits)
        lengths, labels = survival_targets(y, verified, *logits.shape)
        hard = labels.dtype == np.uint8
        kind = LabelKind.HARD if hard else LabelKind.SOFT_FULL
        if self.mode == "parity":
            return self._store(self._fit_parity(logits, labels, lengths), str(kind))
        values = logits.astype(np.float32, copy=False)
        return self._store(self._fit_default(values, labels, lengths), str(kind))

    def fit_records(self, records: AcceptanceRecords) -> Self:
        """Fit on the usable rows of telemetry, with their verified lengths.

        Raises:
            FitRefusedError: ``no_rows`` or ``looks_like_probabilities``.
        """
        rows = records.fitting_rows()
        return self.fit(rows.confidence_logits, rows.accepted, verified=rows.verified)

    def score(
        self,
        X: ArrayLike,  # [N, g] raw confidence logits
        y: ArrayLike | None = None,  # as in ``fit``
        *,
        verified: ArrayLike | None = None,
    ) -> float:
        """Minus the survival ECE with ``temperatures_``, averaged over positions with rows.

        In [-1, 0]; greater is better. The plug-in ECE is biased upwards at small N.

        Raises:
            NotFittedError: before ``fit``.
            RecordError: arrays of wrong shape, type or range.
        """
        self._require_fit()
        logits = checked_logits(X).astype(np.float32, copy=False)
        if logits.shape[1] != self.n_features_in_:
            raise RecordError("confidence_logits", logits.shape, f"gamma is {self.n_features_in_}")
        lengths, labels = survival_targets(y, verified, *logits.shape)
        errors = []
        walk = SurvivalWalk(logits, labels, lengths, check_bins(self.n_bins))
        for position, temperature in enumerate(self.temperatures_.tolist()):
            objective, _ = walk.objectives(position)
            if objective.rows:
                errors.append(objective.ece(temperature))
            walk.continue_with(temperature)
        if not errors:
            raise FitRefusedError(Refusal.NO_ROWS, "no row informs any position")
        return -float(np.mean(errors))

    def _check_parameters(self) -> None:
        if self.mode not in ("default", "parity"):
            raise ConfigurationError("mode", self.mode, "give 'default' or 'parity'")
        if self.histogram and self.mode != "parity":
            raise ConfigurationError("histogram", True, "is an option of mode='parity'")
        check_bins(self.n_bins)
        checked_count("minimum_rows", self.minimum_rows, 0)
        checked_count("refinements", self.refinements, 0)
        checked_positive("gap_tolerance", self.gap_tolerance)
        checked_bounds(self.bounds)

    def _fit_default(
        self, logits: NDArray[np.float32], labels: Labels, lengths: NDArray[Any] | None
    ) -> list[PositionFit]:
        walk = SurvivalWalk(logits, labels, lengths, self.n_bins)
        fits = []
        for position, fallback in enumerate(self._parent(logits.shape[1])):
            fits.append(self._fit_position(position, *walk.objectives(position), fallback))
            walk.continue_with(fits[-1].continued_with)
        return fits

    def _fit_position(
        self,
        position: int,
        objective: SurvivalObjective,
        uncalibrated: SurvivalObjective,
        fallback: float,
    ) -> PositionFit:
        evidence = FitEvidence(objective.rows, objective.one_class)
        if not objective.one_class:
            found = search_temperature(objective, checked_bounds(self.bounds), self.refinements)
            evidence = objective.evidence_of(found.temperature, found.at_bound)
        verdict = judge(evidence, minimum_rows=self.minimum_rows, gap_tolerance=self.gap_tolerance)
        errors = (uncalibrated.ece_or_none, objective.ece_or_none)
        return PositionFit.concluded(position, evidence, verdict, fallback, errors)

    def _fit_parity(
        self, logits: NDArray[np.floating], labels: Labels, lengths: NDArray[Any] | None
    ) -> list[PositionFit]:
        if lengths is not None:
            full = lengths == logits.shape[1]
            logits, labels = logits[full], labels[full]
            if not full.any():
                raise FitRefusedError(Refusal.NO_ROWS, "no row was verified to the last position")
        result = fit_sts_parity(logits, labels, n_bins=self.n_bins, histogram=self.histogram)
        before = result.ece_before or (None,) * logits.shape[1]
        return [
            self._parity_position(
                index, labels[:, index], temperature, before[index], result.ece_after[index]
            )
            for index, temperature in enumerate(result.temperatures)
        ]

    def _parity_position(
        self,
        position: int,
        labels: Labels,
        temperature: float,
        ece_before: float | None,
        ece_after: float,
    ) -> PositionFit:
        grid = parity_grid()
        at_bound: Bound | None = "lower" if temperature == grid[0] else None
        at_bound = "upper" if temperature == grid[-1] else at_bound
        same = labels.min() == labels.max() and labels.min() in (0, 1)
        evidence = FitEvidence(len(labels), bool(same), temperature, at_bound)
        status, reason = judge(evidence, minimum_rows=self.minimum_rows)
        return PositionFit(
            position=position + 1,
            rows=len(labels),
            status=status,
            temperature=temperature,
            continued_with=temperature,
            ece_before=ece_before,
            ece_after=ece_after,
            residual=None,
            null_level=None,
            reason=reason,
        )

    def _published(self) -> list[bool]:
        published = super()._published()
        if False in published:
            first = published.index(False)
            published[first:] = [False] * (len(published) - first)
        return published
