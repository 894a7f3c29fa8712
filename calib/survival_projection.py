"""What an engine can apply of a survival model: temperatures, or slopes and intercepts.

Position by position, earlier numbers fixed, the factor σ(·) of a_k = a_{k-1}·σ(·) is fitted so that
a_k matches a survival target on *all* rows. With the target S of
:class:`calib.survival_model.SurvivalModel`, which needs no labels, nothing is censored: that is
Sequential Temperature Scaling (paper §3.2.1) with imputed survival. With the hard labels of fully
verified rows as target it is plain Sequential Temperature Scaling.

Both forms minimise the binned calibration error, as the paper does. The affine form starts from its
log loss, and keeps to that optimum where labels are hard: a search in two dimensions would fit
their noise. A factor is at most 1: it can lower what earlier positions left, never raise it. Where
that leaves a gap, the position has a status instead of a number. So it has where the error of an
imputed survival falls but its log loss rises above that of the parent's number: there the best
temperature mends the mean by flattening every logit, and with them the ranking that the scheduler
lives on.

Letters: N rows, g = gamma draft positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit

from calib.affine_fits import AffineFit
from calib.calibration import Calibration, CalibrationKey
from calib.calibration_values import LARGEST_SCALE, SMALLEST_SCALE, checked_scales
from calib.canonical_json import round_significant
from calib.errors import RecordError
from calib.fit_status import GAP_TOLERANCE, MINIMUM_ROWS, FitEvidence, PositionFit, judge
from calib.labels import LabelKind
from calib.reliability import DEFAULT_BINS, check_bins
from calib.statuses import PositionStatus
from calib.sts_search import SurvivalObjective, search_temperature
from calib.temperature_estimator import (
    PUBLISHABLE_BOUNDS,
    checked_bounds,
    checked_count,
    checked_logits,
)

__all__ = ["ProjectionRules", "SurvivalProjection", "project_survival"]

Floats = NDArray[np.float64]

_MAX_STEPS = 50
_GAIN = 1e-10  # nats a row; smaller gains change no published digit
_CLIP = 1e-12
_PATTERN_STEPS = (0.2, 0.1, 0.05, 0.025, 0.0125, 0.00625)  # of log s and b
_PATTERN_ROUNDS = 6


@dataclass(frozen=True, slots=True)
class ProjectionRules:
    """Options of a projection.

    Attributes:
        bounds: search bounds of temperatures.
        refinements: halvings of the 12 % grid step.
        n_bins: equal-width bins of the error.
        minimum_rows: rows behind a position's target before its number is published.
        gap_tolerance: error above the chance level that counts as ``temperature_cannot_fit``.
        parent_temperatures: numbers served where a position has none of its own; 1 when None.
    """

    bounds: tuple[float, float] = PUBLISHABLE_BOUNDS
    refinements: int = 7
    n_bins: int = DEFAULT_BINS
    minimum_rows: int = MINIMUM_ROWS
    gap_tolerance: float = GAP_TOLERANCE
    parent_temperatures: Sequence[float] | None = None


@dataclass(frozen=True, slots=True)
class SurvivalProjection:
    """Served numbers of one survival target.

    Attributes:
        temperatures: per position; the parent's number (or 1) where the status is not ``ok`` for
            another reason than too few rows.
        position_fits: how each temperature went.
        slopes, intercepts: the affine form, fitted on its own products, (1/T, 0) where it has no
            number.
        affine_fits: how each affine fit went.
        imputed: whether the target was soft, as that of a model.
        parent: numbers that replace unpublished temperatures.
    """

    temperatures: tuple[float, ...]
    position_fits: tuple[PositionFit, ...]
    slopes: tuple[float, ...]
    intercepts: tuple[float, ...]
    affine_fits: tuple[AffineFit, ...]
    imputed: bool
    parent: tuple[float, ...]

    @property
    def position_statuses(self) -> tuple[PositionStatus, ...]:
        """How the temperature of each position went."""
        return tuple(fit.status for fit in self.position_fits)

    @property
    def affine_statuses(self) -> tuple[PositionStatus, ...]:
        """How the affine form of each position went."""
        return tuple(fit.status for fit in self.affine_fits)

    def calibration(
        self,
        key: CalibrationKey | None = None,
        *,
        fitted_at: str | None = None,
        evidence: dict[str, Any] | None = None,
    ) -> Calibration:
        """What may be published: temperatures, and the affine form of the leading ``ok`` positions.

        Affine factors rest on those before them, so from the first that is not ``ok`` on the affine
        form is (1/T, 0) of the served temperature; where that is the first position there is none.
        Method is ``sts``; ``evidence`` says whether its survival labels were imputed.

        Args:
            key: what the numbers are for.
            fitted_at: ISO 8601 time to store with them.
            evidence: more plain JSON to store with them.
        """
        ok = PositionStatus.OK
        served = [
            temperature if status is ok else fallback
            for temperature, status, fallback in zip(
                self.temperatures, self.position_statuses, self.parent, strict=True
            )
        ]
        calibration = Calibration.from_temperatures(
            served,
            gamma=len(served),
            key=key,
            method="sts",
            position_statuses=self.position_statuses,
            label_kind=str(LabelKind.HARD),
            evidence={
                "imputed_survival": self.imputed,
                "positions": [fit.to_dict() for fit in self.position_fits],
                "affine": [fit.to_dict() for fit in self.affine_fits],
                **(evidence or {}),
            },
            fitted_at=fitted_at,
        )
        leading = 0
        while leading < len(served) and self.affine_statuses[leading] is ok:
            leading += 1
        if not leading:
            return calibration
        slopes = [1.0 / temperature for temperature in served]
        intercepts = [0.0] * len(served)
        slopes[:leading], intercepts[:leading] = self.slopes[:leading], self.intercepts[:leading]
        return replace(calibration, slopes=tuple(slopes), intercepts=tuple(intercepts))


def project_survival(
    confidence_logits: ArrayLike,  # [N, g] raw, finite
    target: ArrayLike,  # [N, g] survival in [0, 1]
    *,
    evidence_rows: Sequence[int] | None = None,
    one_class: Sequence[bool] | None = None,
    rules: ProjectionRules | None = None,
) -> SurvivalProjection:
    """Fit temperatures and affine numbers sequentially to a survival target.

    About 20,000 rows are enough where the target is imputed: it has no label noise.

    Args:
        confidence_logits: raw logits of any rows, verified or not.
        target: S of a survival model, or hard labels of fully verified rows.
        evidence_rows: rows behind the target at each position, as ``SurvivalModel.rows``; N when
            None.
        one_class: positions at which every label behind an imputed target was the same: a model
            imputes its prior there, and no number comes of it. None for none.
        rules: options; defaults when None.

    Raises:
        FitRefusedError: no rows.
        RecordError: arrays of wrong shape or range.
        ConfigurationError: a rule outside its range.
    """
    options = _checked_rules(rules or ProjectionRules())
    logits = checked_logits(confidence_logits).astype(np.float32, copy=False)
    survival = _checked_target(target, logits.shape)
    rows, gamma = logits.shape
    behind = _each("evidence_rows", evidence_rows, rows, gamma)
    same = _each("one_class", one_class, False, gamma)
    parent = (1.0,) * gamma
    if options.parent_temperatures is not None:
        parent = checked_scales("parent_temperatures", options.parent_temperatures, gamma)
    imputed = bool(((survival != 0.0) & (survival != 1.0)).any())
    fits: list[PositionFit] = []
    affine: list[AffineFit] = []
    reached = np.ones(rows, dtype=np.float32)
    affine_reached = reached.astype(np.float64)
    curves = []
    for index in range(gamma):
        z, wanted = np.ascontiguousarray(logits[:, index]), survival[:, index].copy()
        objective = SurvivalObjective(reached, z, wanted, options.n_bins)
        evidence = FitEvidence(behind[index], objective.one_class or bool(same[index]))
        fits.append(_temperature(index, objective, evidence, imputed, parent[index], options))
        continued = fits[-1].continued_with
        reached = objective.survive(continued)
        found = _affine(
            index, affine_reached, z, wanted, evidence, imputed, 1.0 / continued, options
        )
        affine.append(found)
        slope = 1.0 / continued if found.slope is None else found.slope
        intercept = 0.0 if found.intercept is None else found.intercept
        curves.append((slope, intercept))
        affine_reached = affine_reached * expit(slope * z.astype(np.float64) + intercept)
    return SurvivalProjection(
        temperatures=tuple(fit.continued_with for fit in fits),
        position_fits=tuple(fits),
        slopes=tuple(slope for slope, _ in curves),
        intercepts=tuple(intercept for _, intercept in curves),
        affine_fits=tuple(affine),
        imputed=imputed,
        parent=parent,
    )


def _each(field: str, given: Sequence[int] | None, otherwise: int, gamma: int) -> list[int]:
    """One whole number, or truth value, per position."""
    values = [otherwise] * gamma if given is None else [int(value) for value in given]
    if len(values) != gamma:
        raise RecordError(field, len(values), f"give one value per position, {gamma}")
    return values


def _temperature(
    index: int,
    objective: SurvivalObjective,
    known: FitEvidence,
    imputed: bool,
    parent: float,
    options: ProjectionRules,
) -> PositionFit:
    evidence = known
    if not known.one_class:
        found = search_temperature(objective, options.bounds, options.refinements)
        # An imputed target has no label noise.
        evidence = objective.evidence_of(found.temperature, found.at_bound, label_noise=not imputed)
        evidence = replace(evidence, rows=known.rows)
    verdict = judge(
        evidence, minimum_rows=options.minimum_rows, gap_tolerance=options.gap_tolerance
    )
    usable = verdict[0] in (PositionStatus.OK, PositionStatus.INSUFFICIENT)
    if imputed and usable and evidence.temperature is not None:
        rises = objective.log_loss(evidence.temperature) - objective.log_loss(parent)
        if rises > _GAIN:
            verdict = (
                PositionStatus.TEMPERATURE_CANNOT_FIT,
                f"The best temperature, {evidence.temperature:g}, lowers the calibration error and "
                f"raises the log loss by {rises:.3g} nats over {parent:g}: it flattens the "
                "ranking.",
            )
    errors = (objective.ece_or_none,) * 2
    return PositionFit.concluded(index, evidence, verdict, parent, errors)


def _affine(
    index: int,
    reached: Floats,
    logits: NDArray[np.float32],
    target: Floats,
    known: FitEvidence,
    imputed: bool,
    slope: float,
    options: ProjectionRules,
) -> AffineFit:
    if known.one_class:
        status, reason = judge(known)
        return AffineFit(index + 1, known.rows, status, reason=reason)
    features = np.stack([logits.astype(np.float64), np.ones(len(logits))], axis=1)
    start = np.array([slope, 0.0])
    theta = _fit_factor(features, reached, target, start)
    if imputed:
        theta = _refine([theta, start], features, reached, target, options.n_bins)
    residual = _binned_error(reached * expit(features @ theta), target, options.n_bins)
    fitted = round_significant(float(theta[0]))
    at_bound = None
    if not SMALLEST_SCALE < fitted < LARGEST_SCALE:
        at_bound = "lower" if fitted <= SMALLEST_SCALE else "upper"
    # Labels of single rows scatter; what their mean leaves in 15 bins is far below this.
    evidence = FitEvidence(known.rows, False, None, None, residual)
    status, reason = judge(
        evidence, minimum_rows=options.minimum_rows, gap_tolerance=options.gap_tolerance
    )
    if status is PositionStatus.TEMPERATURE_CANNOT_FIT:
        reason = (
            f"Best residual {residual:.4f}: no factor of at most 1 on the survival before this "
            "position closes the gap."
        )
    elif at_bound is not None:
        status, reason = PositionStatus.AT_BOUND, f"The best slope, {fitted:g}, is out of bounds."
    usable = status in (PositionStatus.OK, PositionStatus.INSUFFICIENT)
    return AffineFit(
        position=index + 1,
        rows=known.rows,
        status=status,
        slope=fitted if usable else None,
        intercept=round_significant(float(theta[1])) if usable else None,
        reason=reason,
    )


def _fit_factor(features: Floats, reached: Floats, target: Floats, start: Floats) -> Floats:
    """θ that minimises the log loss of reached·σ(Xθ), by Fisher scoring with halved steps."""
    theta: Floats = start
    value = _loss(features @ theta, reached, target)
    for _ in range(_MAX_STEPS):
        factor = expit(features @ theta)
        predicted = np.clip(reached * factor, _CLIP, 1.0 - _CLIP)
        rise = reached * factor * (1.0 - factor)
        variance = predicted * (1.0 - predicted)
        score = features.T @ ((target - predicted) * rise / variance)
        information = features.T @ (features * (rise * rise / variance)[:, None])
        step: Floats = np.linalg.lstsq(information, score, rcond=1e-12)[0]
        size = 1.0
        while size > 1e-6:
            trial = theta + size * step
            found = _loss(features @ trial, reached, target)
            if found < value:
                break
            size *= 0.5
        else:
            return theta
        gain = value - found
        theta, value = trial, found
        if gain <= _GAIN * len(target):
            return theta
    return theta


def _refine(
    candidates: Sequence[Floats], features: Floats, reached: Floats, target: Floats, n_bins: int
) -> Floats:
    """The candidate with the smallest binned error, improved by a pattern search around it."""

    def error(theta: Floats) -> float:
        return _binned_error(reached * expit(features @ theta), target, n_bins)

    best = min(candidates, key=error)
    value = error(best)
    for step in _PATTERN_STEPS:
        for _ in range(_PATTERN_ROUNDS):
            before = value
            for stretch, shift in ((step, 0.0), (-step, 0.0), (0.0, step), (0.0, -step)):
                trial = np.array([best[0] * np.exp(stretch), best[1] + shift])
                found = error(trial)
                if found < value:
                    best, value = trial, found
            if value == before:
                break
    return best


def _loss(odds: Floats, reached: Floats, target: Floats) -> float:
    predicted = np.clip(reached * expit(odds), _CLIP, 1.0 - _CLIP)
    return -float(target @ np.log(predicted) + (1.0 - target) @ np.log1p(-predicted))


def _binned_error(predicted: Floats, target: Floats, n_bins: int) -> float:
    bins = np.minimum((predicted * n_bins).astype(np.intp), n_bins - 1)
    return float(np.abs(np.bincount(bins, predicted - target, n_bins)).sum()) / len(target)


def _checked_target(target: ArrayLike, shape: tuple[int, ...]) -> Floats:
    values = np.asarray(target)
    if values.shape != shape or values.dtype.kind not in "biuf":
        shown = (values.dtype.name, values.shape)
        raise RecordError("target", shown, f"give survivals of shape {shape}")
    survival = values.astype(np.float64)
    if not ((survival >= 0.0) & (survival <= 1.0)).all():
        wrong = survival[~((survival >= 0.0) & (survival <= 1.0))]
        raise RecordError("target", float(wrong[0]), "give survivals in [0, 1], none unknown")
    return survival


def _checked_rules(rules: ProjectionRules) -> ProjectionRules:
    checked_bounds(rules.bounds)
    check_bins(rules.n_bins)
    checked_count("refinements", rules.refinements, 0)
    checked_count("minimum_rows", rules.minimum_rows, 0)
    return rules
