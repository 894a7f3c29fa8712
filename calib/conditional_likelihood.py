"""Temperatures and affine numbers by conditional likelihood, from mergeable sketches.

Each position minimises the penalised Bernoulli log loss of its observed conditional labels,
k <= min(n + 1, l). Verified lengths are decided before the labels by what was known then, so the
fit is right on trimmed telemetry, where Sequential Temperature Scaling on accepted lengths is as
bad as no calibration. A fit reads :class:`calib.logit_sketch.LogitSketch` only: its cost does not
depend on the number of rows.

A temperature is what any engine can apply, and every fit has one per position: its own optimum,
never 1/s of the affine form. The affine form σ(s z + b) is served where a position has the rows for
it, and pulled towards the temperature elsewhere.

Letters: N rows, g = gamma draft positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit

from calib.affine_fits import MINIMUM_AFFINE_ROWS, MINIMUM_CLASS_ROWS, AffineFit, AffineRules
from calib.calibration import Calibration, CalibrationKey
from calib.cell_fits import TemperatureNumbers, cell_ece, fit_temperature_cells
from calib.errors import ConfigurationError, FitRefusedError, RecordError
from calib.fit_status import GAP_TOLERANCE, MINIMUM_ROWS, FitEvidence, PositionFit, judge
from calib.labels import LabelKind
from calib.logit_sketch import LabelSource, LogitSketch
from calib.records import AcceptanceRecords
from calib.reliability import DEFAULT_BINS, check_bins
from calib.sketch_cells import LogitCells, PositionCells
from calib.squashed_logit import scale_exponent
from calib.statuses import PositionStatus, Refusal
from calib.temperature_estimator import (
    PUBLISHABLE_BOUNDS,
    TemperatureEstimator,
    checked_bounds,
    checked_count,
    checked_logits,
    checked_positive,
)

__all__ = ["RIDGE", "ConditionalLikelihood"]

Method = Literal["temperature", "affine"]

# Simulated heads, full and trimmed, 1k … 100k rows: 5 rows of pull never cost held-out error and
# save a quarter of it where a trimmed position has 20 labels; at 1,000 they move T by under 1 %.
RIDGE = 5.0
_PROBABILITY_ROWS = 100  # labels that must lie in [0, 1] before logits look like probabilities


class ConditionalLikelihood(TemperatureEstimator):
    """One temperature, and optionally slope and intercept, per position.

    ``position_statuses_`` speak of the temperatures, ``affine_statuses_`` of the affine form: a
    temperature that cannot close a gap does not keep slope and intercept from being served. Errors
    in ``ece_before_`` and ``ece_after_`` are of conditional confidences, read from cells.

    Args:
        method: ``"temperature"``, or ``"affine"`` for both forms.
        ridge: pull in rows of 1/T to 1 (or the parent); slope and intercept are pulled to the
            temperature fit 20 times as strongly. 0 is the plain likelihood of both.
        bounds: search bounds of temperatures; the default is what may be published.
        minimum_rows: effective rows a position needs before its temperature is published.
        minimum_affine_rows: the same for the affine form.
        minimum_class_rows: accepts, and rejects, the affine form needs.
        n_bins: equal-width bins of the reported errors.
        parent_temperatures: numbers served where a position has none of its own; 1 when None.
        gap_tolerance: error above the chance level that counts as ``temperature_cannot_fit``.
        allow_unit_interval: accept 100 or more logits that all lie in [0, 1].
        labels: what :meth:`fit_records` reads: ``"hard"`` acceptance, or ``"soft"`` labels.

    Attributes (after ``fit``, besides those of the base):
        affine_fits_, affine_statuses_: per position; empty for ``method="temperature"``.
        slopes_, intercepts_: [g] what :meth:`transform` applies in affine form.
        log_temperature_errors_: [g] standard errors of log T, infinite where unknown.
        confidence_errors_: [g] standard errors of c, root mean square over the fitted rows.

    Examples:
        >>> logits = np.full((100, 1), 3.0)
        >>> accepted = np.repeat([1, 0], [70, 30])
        >>> fit = ConditionalLikelihood(ridge=0, minimum_rows=100).fit(logits, accepted)
        >>> fit.temperatures_.round(4).tolist(), fit.position_statuses_[0].value
        ([3.5407], 'ok')
    """

    affine_fits_: tuple[AffineFit, ...]
    affine_statuses_: tuple[PositionStatus, ...]
    slopes_: NDArray[np.float64]
    intercepts_: NDArray[np.float64]
    log_temperature_errors_: NDArray[np.float64]
    confidence_errors_: NDArray[np.float64]

    _method = "temperature"

    def __init__(
        self,
        method: Method = "temperature",
        ridge: float = RIDGE,
        bounds: tuple[float, float] = PUBLISHABLE_BOUNDS,
        minimum_rows: int = MINIMUM_ROWS,
        minimum_affine_rows: int = MINIMUM_AFFINE_ROWS,
        minimum_class_rows: int = MINIMUM_CLASS_ROWS,
        n_bins: int = DEFAULT_BINS,
        parent_temperatures: Sequence[float] | None = None,
        gap_tolerance: float = GAP_TOLERANCE,
        allow_unit_interval: bool = False,
        labels: LabelSource = "hard",
    ) -> None:
        self.method = method
        self.ridge = ridge
        self.bounds = bounds
        self.minimum_rows = minimum_rows
        self.minimum_affine_rows = minimum_affine_rows
        self.minimum_class_rows = minimum_class_rows
        self.n_bins = n_bins
        self.parent_temperatures = parent_temperatures
        self.gap_tolerance = gap_tolerance
        self.allow_unit_interval = allow_unit_interval
        self.labels = labels

    def fit(
        self,
        X: ArrayLike,  # [N, g] raw confidence logits
        y: ArrayLike | None = None,  # [N] accepted lengths, or [N, g] conditional labels
        *,
        verified: ArrayLike | None = None,  # [N] verified lengths
    ) -> Self:
        """Fit from rows: sketch them, at a scale that suits their logits, and fit the sketch.

        Args:
            X: raw logits, cast to fp32.
            y: accepted lengths 0 … g, or conditional labels in [0, 1] that are NaN where
                unobserved.
            verified: how far each row was verified; fully when None. Only for accepted lengths.

        Raises:
            FitRefusedError: ``no_rows`` or ``looks_like_probabilities``.
            RecordError: arrays of wrong shape, type or range.
            ConfigurationError: a parameter outside its range.
        """
        logits = checked_logits(X)
        self._refuse_probabilities(logits)
        exponent = scale_exponent(logits)
        given = np.asarray(y)
        if given.ndim == 1:
            sketch = LogitSketch.from_lengths(logits, given, verified, scale_exponent=exponent)
        elif verified is not None:
            raise RecordError("verified", "given", "mark unobserved labels as NaN instead")
        else:
            sketch = LogitSketch.from_labels(logits, given, scale_exponent=exponent)
        return self.fit_sketch(sketch)

    def fit_records(self, records: AcceptanceRecords) -> Self:
        """Fit on the observed labels of the usable rows of telemetry.

        Raises:
            FitRefusedError: ``no_rows`` or ``looks_like_probabilities``.
            RecordError: ``labels="soft"`` on records without soft labels.
        """
        return self.fit_sketch(LogitSketch.from_records(records, labels=self.labels))

    def fit_sketch(self, sketch: LogitSketch | LogitCells) -> Self:
        """Fit on a sketch, or on weighted cells of several.

        Raises:
            FitRefusedError: ``no_rows`` or ``looks_like_probabilities``.
            ConfigurationError: a parameter outside its range.
        """
        self._check_parameters()
        cells = LogitCells.of(sketch) if isinstance(sketch, LogitSketch) else sketch
        self._refuse_cells(cells)
        parents = self._parent(cells.gamma)
        found = [
            self._fit_position(index, position, parent)
            for index, (position, parent) in enumerate(zip(cells.positions, parents, strict=True))
        ]
        self._store(
            [fit for fit, _ in found],
            str(LabelKind.SOFT_FULL if cells.soft else LabelKind.HARD),
        )
        numbers = [entry for _, entry in found]
        self._store_errors(numbers)
        self._store_affine(cells, [None if entry is None else entry.loss for entry in numbers])
        return self

    def calibration(
        self, key: CalibrationKey | None = None, *, fitted_at: str | None = None
    ) -> Calibration:
        """What may be published; see the base class.

        With ``method="affine"`` and at least one position that supports it, the calibration also
        carries slopes and intercepts: of a position's own fit, or (1/T, 0) of the temperature that
        is served there.

        Raises:
            NotFittedError: before ``fit``.
            CalibrationValueError: a fitted number outside [0.05, 20], possible only when the
                search was given wider bounds.
        """
        base = super().calibration(key, fitted_at=fitted_at)
        if not any(status is PositionStatus.OK for status in self.affine_statuses_):
            return base
        slopes, intercepts = self._affine_served(base.temperatures)
        return replace(base, slopes=slopes, intercepts=intercepts, method="affine")

    def transform(self, X: ArrayLike) -> NDArray[np.float32]:
        """Conditional confidences, fp32 [N, g]: σ(s z + b) in affine form, else σ(z / T).

        Raises:
            NotFittedError: before ``fit``.
            RecordError: logits of another width or not finite.
        """
        self._require_fit()
        if not self.affine_statuses_:
            return super().transform(X)
        logits = checked_logits(X)
        if logits.shape[1] != self.n_features_in_:
            raise RecordError("confidence_logits", logits.shape, f"gamma is {self.n_features_in_}")
        return np.asarray(expit(logits * self.slopes_ + self.intercepts_), dtype=np.float32)

    def _check_parameters(self) -> None:
        if self.method not in ("temperature", "affine"):
            raise ConfigurationError("method", self.method, "give 'temperature' or 'affine'")
        checked_bounds(self.bounds)
        checked_positive("ridge", self.ridge)
        checked_positive("gap_tolerance", self.gap_tolerance)
        for name in ("minimum_rows", "minimum_affine_rows", "minimum_class_rows"):
            checked_count(name, getattr(self, name), 0)
        check_bins(self.n_bins)

    def _refuse_cells(self, cells: LogitCells) -> None:
        filled = [position for position in cells.positions if position.total > 0.0]
        if not filled:
            raise FitRefusedError(Refusal.NO_ROWS, "no row has an observed label")
        inside = all(p.logit.min() >= 0.0 and p.logit.max() <= 1.0 for p in filled)
        rows = sum(position.rows for position in filled)
        if inside and rows >= _PROBABILITY_ROWS and not self.allow_unit_interval:
            raise FitRefusedError(
                Refusal.LOOKS_LIKE_PROBABILITIES,
                f"all {rows} values lie in [0, 1]; send raw confidence logits, or set "
                "allow_unit_interval=True if these are logits",
            )

    def _fit_position(
        self, index: int, cells: PositionCells, parent: float
    ) -> tuple[PositionFit, TemperatureNumbers | None]:
        numbers = None
        evidence = FitEvidence(int(cells.effective_rows), one_class=cells.one_class)
        if not cells.one_class:
            numbers = fit_temperature_cells(
                cells, bounds=checked_bounds(self.bounds), ridge=float(self.ridge), center=parent
            )
            evidence = self._evidence_of(cells, numbers)
        verdict = judge(evidence, minimum_rows=self.minimum_rows, gap_tolerance=self.gap_tolerance)

        def after(temperature: float) -> float | None:
            known = temperature == evidence.temperature and evidence.at_bound is None
            return evidence.residual if known else self._error(cells, temperature)

        errors = (partial(self._error, cells), after)
        return PositionFit.concluded(index, evidence, verdict, parent, errors), numbers

    def _error(self, cells: PositionCells, temperature: float) -> float | None:
        if cells.total <= 0.0:
            return None
        return cell_ece(cells, expit(cells.logit / temperature), self.n_bins)[0]

    def _evidence_of(self, cells: PositionCells, numbers: TemperatureNumbers) -> FitEvidence:
        residual, null_level = cell_ece(
            cells, expit(cells.logit / numbers.temperature), self.n_bins
        )
        if numbers.at_bound is not None:
            # What remains when T goes to 0 (each logit to its sign) or to infinity.
            sign = np.sign(cells.logit) if numbers.at_bound == "lower" else np.zeros(1)
            limit = np.broadcast_to(0.5 + 0.5 * sign, cells.logit.shape)
            residual = min(residual, cell_ece(cells, limit, self.n_bins)[0])
        return FitEvidence(
            rows=int(cells.effective_rows),
            one_class=False,
            temperature=numbers.temperature,
            at_bound=numbers.at_bound,
            residual=residual,
            null_level=null_level,
        )

    def _store_errors(self, numbers: Sequence[TemperatureNumbers | None]) -> None:
        self.log_temperature_errors_ = np.array(
            [np.inf if entry is None else entry.log_error for entry in numbers]
        )
        self.confidence_errors_ = np.array(
            [np.inf if entry is None else entry.confidence_error for entry in numbers]
        )

    def _store_affine(self, cells: LogitCells, losses: Sequence[float | None]) -> None:
        self.affine_fits_ = ()
        if self.method == "affine":
            rules = AffineRules(
                ridge=float(self.ridge),
                minimum_rows=self.minimum_affine_rows,
                minimum_class_rows=self.minimum_class_rows,
                n_bins=self.n_bins,
                gap_tolerance=self.gap_tolerance,
            )
            self.affine_fits_ = tuple(
                rules.fit(index + 1, position, float(temperature), loss)
                for index, (position, temperature, loss) in enumerate(
                    zip(cells.positions, self.temperatures_, losses, strict=True)
                )
            )
            for index, fit in enumerate(self.affine_fits_):
                if fit.status is PositionStatus.OK and fit.confidence_error is not None:
                    self.confidence_errors_[index] = fit.confidence_error
        self.affine_statuses_ = tuple(fit.status for fit in self.affine_fits_)
        slopes = [fit.slope for fit in self.affine_fits_] or [None] * cells.gamma
        intercepts = [fit.intercept for fit in self.affine_fits_] or [None] * cells.gamma
        self.slopes_ = np.array(
            [1.0 / t if s is None else s for s, t in zip(slopes, self.temperatures_, strict=True)]
        )
        self.intercepts_ = np.array([0.0 if b is None else b for b in intercepts])

    def _affine_served(
        self, temperatures: Sequence[float]
    ) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Slopes and intercepts to publish beside these temperatures."""
        served = []
        for fit, temperature in zip(self.affine_fits_, temperatures, strict=True):
            own = fit.status is PositionStatus.OK
            if own and fit.slope is not None and fit.intercept is not None:
                served.append((fit.slope, fit.intercept))
            else:
                served.append((1.0 / temperature, 0.0))
        return tuple(slope for slope, _ in served), tuple(intercept for _, intercept in served)

    def _evidence(self) -> dict[str, Any]:
        evidence = super()._evidence()
        evidence["log_temperature_errors"] = [_finite(e) for e in self.log_temperature_errors_]
        evidence["confidence_errors"] = [_finite(e) for e in self.confidence_errors_]
        evidence["affine"] = [fit.to_dict() for fit in self.affine_fits_]
        return evidence


def _finite(value: float) -> float | None:
    """A number for JSON: None where it is infinite or NaN."""
    return float(value) if np.isfinite(value) else None
