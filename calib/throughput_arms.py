"""The ways to make confidences trustworthy that a throughput study compares, fitted on one log.

``raw`` is the head as it is; ``sts`` Sequential Temperature Scaling; ``temperature`` and ``affine``
the conditional likelihood; ``survival`` temperatures projected from the survival model; and
``segmented`` slopes and intercepts of every segment. All are fitted on the fit part, and judged on
rows of other prompts.

What they are compared with: ``oracle`` is the truth where it is known, as in simulations; on
telemetry it is the segmented form fitted on the very rows it is judged on, which flatters it.
``hindsight`` schedules with the outcomes themselves and shows how much no confidence could tell.

Letters: N judged rows, γ positions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib.calibration import Calibration, Form
from calib.conditional_likelihood import ConditionalLikelihood
from calib.errors import CalibrationError, FitRefusedError
from calib.pair_sketch import PairSketch
from calib.records import AcceptanceRecords
from calib.replay_outcomes import FullyVerified
from calib.segment_fitting import fit_segments
from calib.segment_model import SegmentModel
from calib.segment_projection import project_segments
from calib.segment_rescaling import rescale_segments
from calib.segment_serving import SegmentTable
from calib.segment_sketches import SegmentSketches
from calib.segment_tags import POOL
from calib.segmented_survival import segmented_survival
from calib.sequential_temperature_scaling import SequentialTemperatureScaling
from calib.statuses import Refusal
from calib.survival_model import SurvivalModel, fit_survival_model, pair_folds
from calib.survival_projection import ProjectionRules, project_survival

__all__ = ["FITTED_ARMS", "REFERENCES", "ThroughputArms", "fit_arms"]

Survival = NDArray[Any]

FITTED_ARMS: Final = ("raw", "sts", "temperature", "affine", "survival", "segmented")
REFERENCES: Final = ("oracle", "hindsight")

_PROJECTED_ROWS = 20_000  # the target has no label noise: more change no third digit
_SEGMENT_ROWS = 1000  # likewise, of each segment
_MOST_TRIMMED = 0.002  # share of rows that Sequential Temperature Scaling may do without


@dataclass(frozen=True, eq=False, slots=True)
class ThroughputArms:
    """Survivals of the judged rows by arm.

    Attributes:
        survival: by name, [N, γ]; fitted arms first, then the references.
        fitted_survival: the arms' survivals of the fit rows, for choices made there.
        missing: by name, why an arm is not there.
        baseline: [N, γ] survival of a model fitted on the fit part: what stands in for outcomes
            that were not verified.
        fit_baseline: the same of the fit rows.
        segments: what ``segmented`` serves; None where no row names a tag.
        truth_known: whether ``oracle`` is the truth.
    """

    survival: Mapping[str, Survival]
    fitted_survival: Mapping[str, Survival]
    missing: Mapping[str, str]
    baseline: Survival
    fit_baseline: Survival
    segments: SegmentTable | None = None
    truth_known: bool = False


@dataclass(slots=True)
class _Fits:
    """Everything fitted on one part."""

    records: AcceptanceRecords
    affine: ConditionalLikelihood
    model: SurvivalModel
    pooled: dict[str, Calibration] = field(default_factory=dict)
    segments: SegmentModel | None = None
    table: SegmentTable | None = None
    missing: dict[str, str] = field(default_factory=dict)


def fit_arms(
    fit: AcceptanceRecords,
    judged: AcceptanceRecords,
    *,
    truth: ArrayLike | None = None,
    extra: Mapping[str, Calibration] = MappingProxyType({}),
) -> ThroughputArms:
    """Fit every arm, and give the survivals it would have served the judged rows.

    An arm that cannot be fitted is left out with its reason.

    Args:
        fit: usable rows to fit on.
        judged: usable rows of other prompts.
        truth: exact survival of the judged rows, where a simulation knows it.
        extra: calibrations to judge beside them, by name.

    Raises:
        FitRefusedError: nothing can be fitted at all (``no_rows``).
    """
    fits = _fit_all(fit)
    survival: dict[str, Survival] = {}
    fitted: dict[str, Survival] = {}
    for name in FITTED_ARMS:
        if name not in fits.missing:
            survival[name] = _survival(fits, name, judged)
            fitted[name] = _survival(fits, name, fit)
    for name, calibration in extra.items():
        survival[name] = calibration.survival(judged.confidence_logits, form=_form(calibration))
    missing = dict(fits.missing)
    try:
        survival["oracle"] = _oracle(judged) if truth is None else np.asarray(truth)
    except CalibrationError as error:
        missing["oracle"] = str(error)
    if FullyVerified(judged).known.all():
        position = np.arange(judged.gamma)
        survival["hindsight"] = (position < judged.accepted[:, None]).astype(np.float64)
    else:
        missing["hindsight"] = "outcomes of trimmed rows are unknown"
    return ThroughputArms(
        MappingProxyType(survival),
        MappingProxyType(fitted),
        MappingProxyType(missing),
        _baseline(fits, judged),
        _baseline(fits, fit),
        fits.table,
        truth is not None,
    )


def _fit_all(records: AcceptanceRecords) -> _Fits:
    affine = ConditionalLikelihood("affine", minimum_rows=0).fit_records(records)
    fits = _Fits(records, affine, _survival_model(affine, records))
    fits.pooled["raw"] = Calibration.identity(records.gamma)
    fits.pooled["affine"] = affine.calibration()
    makers: dict[str, Callable[[_Fits], Calibration]] = {
        "sts": _sts,
        "temperature": _temperature,
        "survival": _projected,
    }
    for name, make in makers.items():
        try:
            fits.pooled[name] = make(fits)
        except CalibrationError as error:
            fits.missing[name] = str(error)
    try:
        fits.table = _segments(fits)
        if fits.table is None:
            fits.missing["segmented"] = "no row names a tag that tells segments apart"
    except CalibrationError as error:
        fits.missing["segmented"] = str(error)
    return fits


def _baseline(fits: _Fits, rows: AcceptanceRecords) -> Survival:
    """The most flexible model there is: a pooled one would favour pooled arms on trimmed rows."""
    if fits.segments is None:
        return fits.model.survival(rows.confidence_logits)
    return segmented_survival(fits.segments, fits.model, rows)


def _survival(fits: _Fits, name: str, rows: AcceptanceRecords) -> Survival:
    if name == "segmented" and fits.table is not None:
        return fits.table.survival(rows, "affine")
    calibration = fits.pooled[name]
    form: Form = _form(calibration) if name == "affine" else "temperatures"
    return calibration.survival(rows.confidence_logits, form=form)


def _form(calibration: Calibration) -> Form:
    return "temperatures" if calibration.slopes is None else "affine"


def _survival_model(affine: ConditionalLikelihood, records: AcceptanceRecords) -> SurvivalModel:
    pairs: list[PairSketch] = pair_folds(records) if records.gamma > 1 else []
    if not pairs:
        rows = tuple(fit.rows for fit in affine.position_fits_)
        slopes, shifts = affine.slopes_.tolist(), affine.intercepts_.tolist()
        return SurvivalModel(tuple(slopes), tuple(shifts), (), rows)
    return fit_survival_model(affine, pairs)


def _sts(fits: _Fits) -> Calibration:
    rows, trimmed = _verified(fits.records)
    if not len(rows):
        raise FitRefusedError(
            Refusal.TRIMMED_ROWS,
            f"{trimmed:.1%} of the rows were trimmed, and none was verified fully by load alone",
        )
    return SequentialTemperatureScaling(minimum_rows=0).fit_records(rows).calibration()


def _verified(records: AcceptanceRecords) -> tuple[AcceptanceRecords, float]:
    """Rows whose full verification no confidence has decided, and the share that was trimmed."""
    known = FullyVerified(records).known
    trimmed = 1.0 - float(known.mean())
    if trimmed > _MOST_TRIMMED:
        known = known & (records.propensity == 1.0)
    return records.select(known), trimmed


def _temperature(fits: _Fits) -> Calibration:
    fitted = ConditionalLikelihood("temperature", minimum_rows=0).fit_records(fits.records)
    return fitted.calibration()


def _projected(fits: _Fits) -> Calibration:
    logits = _thinned(fits.records).confidence_logits
    projection = project_survival(
        logits,
        fits.model.survival(logits),
        evidence_rows=fits.model.rows,
        rules=ProjectionRules(minimum_rows=0),
    )
    return projection.calibration()


def _segments(fits: _Fits) -> SegmentTable | None:
    fitted = fit_segments(SegmentSketches.from_records(fits.records))
    if set(fitted.segments) == {POOL}:
        return None
    fits.segments = fitted
    model = None if fits.model.is_product else fits.model
    # Segments carry the affine form only where the pool does.
    table = project_segments(
        fitted,
        _thinned(fits.records),
        fits.pooled["affine"],
        survival=model,
        sample_rows=_SEGMENT_ROWS,
    )
    return rescale_segments(table, _verified(fits.records)[0])[0]


def _oracle(judged: AcceptanceRecords) -> Survival:
    affine = ConditionalLikelihood("affine", minimum_rows=0).fit_records(judged)
    fits = _Fits(judged, affine, _survival_model(affine, judged))
    fits.pooled["affine"] = affine.calibration()
    fits.table = _segments(fits)
    if fits.table is None:
        return fits.model.survival(judged.confidence_logits)
    return fits.table.survival(judged, "affine")


def _thinned(records: AcceptanceRecords) -> AcceptanceRecords:
    if len(records) <= _PROJECTED_ROWS:
        return records
    step = -(-len(records) // _PROJECTED_ROWS)
    return records.select(np.arange(0, len(records), step))
