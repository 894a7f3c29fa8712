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
from calib.observed_rows import ObservedRows
from calib.records import AcceptanceRecords
from calib.reliability import DEFAULT_BINS, check_bins
from calib.sketch_cells import LogitCells
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

Floats = NDArray[np.float64]
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
        rows = ObservedRows.of_targets(y, verified, logits.shape)
        exponent = scale_exponent(logits)
        return self.fit_sketch(LogitSketch.from_rows(logits, rows, scale_exponent=exponent))

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
        fitted = ~cells.one_class
        part = cells.take(fitted)
        parents = np.array(self._parent(cells.gamma))
        numbers = fit_temperature_cells(
            part,
            bounds=checked_bounds(self.bounds),
            ridge=float(self.ridge),
            center=parents[fitted],
        )
        evidence = self._evidence_of(cells, numbers)
        before, _ = self._errors(cells, np.ones(cells.gamma))
        fits = [
            self._concluded(cells, index, *known)
            for index, known in enumerate(
                zip(evidence, parents.tolist(), before.tolist(), strict=True)
            )
        ]
        self._store(fits, str(LabelKind.SOFT_FULL if cells.soft else LabelKind.HARD))
        self.log_temperature_errors_, self.confidence_errors_ = np.full((2, cells.gamma), np.inf)
        self.log_temperature_errors_[fitted] = numbers.log_error
        self.confidence_errors_[fitted] = numbers.confidence_error
        self._store_affine(cells, numbers)
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
        if not cells.total.any():
            raise FitRefusedError(Refusal.NO_ROWS, "no row has an observed label")
        inside = cells.logit.min() >= 0.0 and cells.logit.max() <= 1.0
        rows = int(cells.rows[cells.total > 0.0].sum())
        if inside and rows >= _PROBABILITY_ROWS and not self.allow_unit_interval:
            raise FitRefusedError(
                Refusal.LOOKS_LIKE_PROBABILITIES,
                f"all {rows} values lie in [0, 1]; send raw confidence logits, or set "
                "allow_unit_interval=True if these are logits",
            )

    def _evidence_of(self, cells: LogitCells, numbers: TemperatureNumbers) -> list[FitEvidence]:
        """What is known about each position; ``numbers`` are of those with two classes."""
        evidence = [
            FitEvidence(rows, one_class=True) for rows in cells.effective_rows.astype(int).tolist()
        ]
        fitted = ~cells.one_class
        part = cells.take(fitted)
        residual, null_level = self._errors(part, numbers.temperature)
        at_bound = np.array([bound is not None for bound in numbers.at_bound], dtype=np.bool_)
        if at_bound.any():
            # What remains when T goes to 0 (each logit to its sign) or to infinity.
            lower = np.array([bound == "lower" for bound in numbers.at_bound])
            limit = 0.5 + 0.5 * np.where(lower[:, None], np.sign(part.logit), 0.0)
            beyond = cell_ece(part, limit, self.n_bins)[0]
            residual = np.where(at_bound, np.minimum(residual, beyond), residual)
        for place, index in enumerate(np.flatnonzero(fitted).tolist()):
            evidence[index] = FitEvidence(
                rows=evidence[index].rows,
                one_class=False,
                temperature=float(numbers.temperature[place]),
                at_bound=numbers.at_bound[place],
                residual=float(residual[place]),
                null_level=float(null_level[place]),
            )
        return evidence

    def _concluded(
        self, cells: LogitCells, index: int, evidence: FitEvidence, parent: float, before: float
    ) -> PositionFit:
        def after(temperature: float) -> float | None:
            if temperature == evidence.temperature and evidence.at_bound is None:
                return evidence.residual
            alone = cells.take(np.arange(cells.gamma) == index)
            return known(float(self._errors(alone, np.array([temperature]))[0][0]))

        def known(error: float) -> float | None:
            return error if cells.total[index] > 0.0 else None

        verdict = judge(evidence, minimum_rows=self.minimum_rows, gap_tolerance=self.gap_tolerance)
        errors = (lambda _: known(before), after)
        return PositionFit.concluded(index, evidence, verdict, parent, errors)

    def _errors(self, cells: LogitCells, temperatures: Floats) -> tuple[Floats, Floats]:
        """[g] calibration error with these temperatures, and [g] its level by chance."""
        return cell_ece(cells, expit(cells.logit / temperatures[:, None]), self.n_bins)

    def _store_affine(self, cells: LogitCells, numbers: TemperatureNumbers) -> None:
        self.affine_fits_ = ()
        if self.method == "affine":
            rules = AffineRules(
                ridge=float(self.ridge),
                minimum_rows=self.minimum_affine_rows,
                minimum_class_rows=self.minimum_class_rows,
                n_bins=self.n_bins,
                gap_tolerance=self.gap_tolerance,
            )
            part = cells.take(~cells.one_class)
            losses = numbers.fit.loss(part.weight, part.positive)
            self.affine_fits_ = rules.fit(cells, self.temperatures_, losses)
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
