"""A challenger from a window of rows: fit, judge on rows the fit did not see, propose or refuse.

The whole recalibration but for the database: the worker's job stores what comes out, ``replay``
uses it as it is. :func:`fit_challenger` is a function of its arguments alone; nothing is drawn, no
clock is read. What is done::

    rows that may be trusted (else refused, with the reason)
      -> fit | judged            apart by prompt, request or order (monitoring.held_out_rows)
      -> served numbers + models by the method asked for (monitoring.recalibration_methods)
      -> affine form and segments dropped where the judged rows speak against them
      -> compared with the champion on the judged rows: proposed, or refused

Models (conditional and survival, by segment) come back as plain JSON in ``model``: it becomes
``provenance["model"]`` of the revision, read again by
:class:`monitoring.revision_model.RevisionModel`. ``segments`` becomes ``Revision.segments``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from calib.calibration import FORMS, Calibration, Form
from calib.calibration_key import CalibrationKey
from calib.errors import FitRefusedError
from calib.fit_status import MINIMUM_ROWS
from calib.held_out_guard import improves_survival
from calib.records import AcceptanceRecords
from calib.reliability import DEFAULT_BINS
from calib.statuses import PositionStatus, Refusal, ServingStatus
from monitoring.held_out_rows import HeldOutRows, held_out_rows
from monitoring.recalibration_choice import choose_method, loss_difference, rounded, row_losses
from monitoring.recalibration_evidence import HeldOutComparison
from monitoring.recalibration_methods import (
    MethodFit,
    MethodRules,
    fit_pool,
    with_segments,
    with_temperatures,
    without_affine,
    without_segments,
)
from monitoring.recalibration_options import RecalibrationMethod, RecalibrationOptions
from monitoring.recalibration_rows import FitRows, trusted_rows
from monitoring.reports.evaluation_report import Judgement, judge
from monitoring.served_numbers import ServedNumbers

__all__ = [
    "ChallengerFit",
    "Champion",
    "affine_alone",
    "clearly_gains",
    "confirmed",
    "fit_challenger",
    "is_identity",
    "no_numbers",
    "same_numbers",
]


@dataclass(frozen=True, eq=False, slots=True)
class Champion:
    """What is served now, for the comparison.

    Attributes:
        number: of its revision.
        served: its numbers.
    """

    number: int
    served: ServedNumbers

    @classmethod
    def identity(cls, gamma: int) -> Champion:
        """Revision 0: all ones."""
        return cls(0, ServedNumbers(Calibration.identity(gamma)))


@dataclass(frozen=True, slots=True)
class ChallengerFit:
    """What a fit came to. A refusal is a result.

    Attributes:
        refusal: word of the refusal; None where the numbers may be proposed.
        reason: the numbers behind it, in a sentence.
        method: what was asked for; after ``"auto"`` what was chosen. None where nothing was fitted.
        calibration: what to store; None where refused.
        segments: plain JSON of the segment table to store with it, or None.
        model: plain JSON for ``provenance["model"]``; None where refused.
        evidence: plain JSON: comparison on held-out rows, choice of the method, rows, forms.
        summary: what changed, in sentences.
    """

    refusal: str | None
    reason: str
    method: RecalibrationMethod | None = None
    calibration: Calibration | None = None
    segments: Mapping[str, Any] | None = None
    model: Mapping[str, Any] | None = None
    evidence: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    summary: tuple[str, ...] = ()


def fit_challenger(
    records: AcceptanceRecords,
    options: RecalibrationOptions | None = None,
    *,
    champion: Champion | None = None,
    key: CalibrationKey | None = None,
    fitted_at: str | None = None,
) -> ChallengerFit:
    """Fit on a window and compare with the champion; never raises for what the data are like.

    Args:
        records: the frozen window, rows that no fit may use included, without duplicates.
        options: method, minimum rows, share of judged rows and of one tenant; its ``rows``,
            ``window``, ``reason`` and ``promote`` are the caller's. Defaults when None.
        champion: what is served now; identity when None.
        key: calibration key of the drafter.
        fitted_at: ISO 8601 time to store; None stores none.

    Raises:
        RecordError: a champion of another γ.
    """
    asked = options or RecalibrationOptions()
    current = champion or Champion.identity(records.gamma)
    minimum = asked.minimum_rows or MINIMUM_ROWS
    try:
        usable = trusted_rows(records, minimum)
        rows = held_out_rows(usable, share=asked.evaluation_share)
        parent = _parent(current.served.calibration, rows.fit)
        rules = MethodRules(minimum, parent, key=key, fitted_at=fitted_at)
        method, fitted, evidence = _fitted(rows, asked, rules)
    except FitRefusedError as error:
        return ChallengerFit(str(error.status), error.reason)
    kept, forms = confirmed(fitted, rows.judged)
    evidence["forms"] = forms
    return _judged(method, kept, rows, current, evidence)


def _parent(champion: Calibration, records: AcceptanceRecords) -> tuple[float, ...] | None:
    """Temperatures that a position without a number of its own keeps: the champion's.

    None, raw confidence, where these rows say that the champion is worse than that.
    """
    if is_identity(champion):
        return None
    served = row_losses(records, champion.survival(records.confidence_logits))
    identity = Calibration.identity(champion.gamma)
    raw = row_losses(records, identity.survival(records.confidence_logits))
    return champion.temperatures if served.mean <= raw.mean else None


def _fitted(
    rows: HeldOutRows, asked: RecalibrationOptions, rules: MethodRules
) -> tuple[RecalibrationMethod, MethodFit, dict[str, Any]]:
    """The fit of the method asked for, and what it rests on."""
    weighted = FitRows.of(rows.fit, asked.largest_tenant_share)
    evidence: dict[str, Any] = {"rows": weighted.describe()}
    if asked.method == "auto":
        choice = choose_method(rows.fit, asked.largest_tenant_share, rules)
        evidence["choice"] = choice.evidence
        fitted = fit_pool(choice.method, weighted, rules)
        if choice.segments:
            return "segments", with_segments(fitted, weighted, rules), evidence
        return choice.method, fitted, evidence
    if asked.method == "segments":
        fitted = with_segments(fit_pool("survival", weighted, rules), weighted, rules)
        return "segments", fitted, evidence
    return asked.method, fit_pool(asked.method, weighted, rules), evidence


def confirmed(fitted: MethodFit, judged: AcceptanceRecords) -> tuple[MethodFit, dict[str, Any]]:
    """The fit without the parts that raise the log loss of the judged rows, and their losses.

    Args:
        fitted: on other rows.
        judged: usable rows.
    """
    served = ServedNumbers(fitted.calibration)
    losses = {"temperatures": row_losses(judged, served.survival(judged)).mean}
    kept = fitted
    if fitted.calibration.slopes is not None:
        losses["affine"] = row_losses(judged, served.survival(judged, "affine")).mean
        if not losses["affine"] <= losses["temperatures"]:
            kept = without_affine(kept)
    if kept.table is not None:
        segmented = ServedNumbers(kept.calibration, kept.table)
        # In each form that is left: an engine applies one, and has nothing of the other's gain.
        for form in FORMS if kept.calibration.slopes is not None else FORMS[:1]:
            name = f"{form} by segment"
            losses[name] = row_losses(judged, segmented.survival(judged, form)).mean
            if not losses[name] <= losses[form]:
                kept = without_segments(kept)
    forms: dict[str, Any] = {
        "survival_log_loss": {name: rounded(loss) for name, loss in losses.items()},
        "affine": kept.calibration.slopes is not None,
        "segments": None if kept.table is None else len(kept.table.segments) - 1,
        **fitted.segments,
    }
    return kept, forms


def affine_alone(fitted: MethodFit, before: ServedNumbers) -> MethodFit | None:
    """Slopes and intercepts of a fit beside the temperatures served before; None where it may not.

    For fits whose temperatures are refused. σ(z/T) turns about one half, so of a head whose logits
    lie around zero no temperature mends the mean, and slope and intercept do. Engines that apply
    temperatures alone are served what they were: nothing of this can harm them.

    None where the fit has segments, or a temperature fits and another one was served before.

    Args:
        fitted: on other rows than it is judged on, confirmed.
        before: what is served now.
    """
    old = before.calibration
    own = PositionStatus.OK in fitted.calibration.position_statuses
    if own and old.temperatures != Calibration.identity(old.gamma).temperatures:
        return None
    return with_temperatures(fitted, old.temperatures, before.table)


def clearly_gains(alone: MethodFit, judged: AcceptanceRecords, before: ServedNumbers) -> bool:
    """Whether slopes and intercepts lower the log loss of rows by over two standard errors.

    A fit that was refused once needs a clear case.
    """
    mine, theirs = (
        row_losses(judged, each.survival(judged, "affine"))
        for each in (ServedNumbers(alone.calibration, alone.table), before)
    )
    loss, error = loss_difference(mine, theirs, judged)
    return loss < -2.0 * error


def _judged(
    method: RecalibrationMethod,
    fitted: MethodFit,
    rows: HeldOutRows,
    champion: Champion,
    evidence: Mapping[str, Any],
) -> ChallengerFit:
    """Compare with the champion on the same held-out rows."""
    comparison = _compared(fitted, rows, champion)
    insufficient = fitted.calibration.status is ServingStatus.INSUFFICIENT
    refused = insufficient or not comparison.verdict.replace
    alone = affine_alone(fitted, champion.served) if refused else None
    if alone is not None and clearly_gains(alone, rows.judged, champion.served):
        shown = _compared(alone, rows, champion, "affine")
        if shown.verdict.replace:
            fitted, comparison, insufficient = alone, shown, False
    new = ServedNumbers(fitted.calibration, fitted.table)
    found = {**evidence, "fit": fitted.calibration.evidence, "held_out": comparison.to_dict()}
    summary = tuple(comparison.sentences())
    verdict = comparison.verdict
    if insufficient or not verdict.replace:
        word = ServingStatus.INSUFFICIENT if insufficient else Refusal.NOT_BETTER
        reason = verdict.reason
        if insufficient or is_identity(fitted.calibration):
            reason = no_numbers(fitted.calibration, slopes_tried=alone is not None)
        return ChallengerFit(str(word), reason, method, evidence=found, summary=summary)
    worse = _worse_than_raw(comparison.after, rows, champion)
    if worse is not None:
        worse = f"{worse}; roll back to identity, revision 0, instead"
    worse = worse or _affine_loses(new, champion.served, rows)
    if worse is not None:
        word = Refusal.NOT_BETTER
        return ChallengerFit(str(word), worse, method, evidence=found, summary=summary)
    return ChallengerFit(
        refusal=None,
        reason=verdict.reason,
        method=method,
        calibration=fitted.calibration,
        segments=None if fitted.table is None else fitted.table.to_dict(),
        model=fitted.model.to_dict(),
        evidence=found,
        summary=summary,
    )


def _compared(
    fitted: MethodFit, rows: HeldOutRows, champion: Champion, form: Form = "temperatures"
) -> HeldOutComparison:
    new = ServedNumbers(fitted.calibration, fitted.table)
    after = _judgement(new, rows, form)
    same = same_numbers(new, champion.served)
    before = after if same else _judgement(champion.served, rows, form)
    return HeldOutComparison(champion.number, before, after, rows, form)


def _judgement(served: ServedNumbers, rows: HeldOutRows, form: Form) -> Judgement:
    if served.table is None and form == "temperatures":  # log odds reach further than fp32 c
        return judge(rows.judged, served.calibration, DEFAULT_BINS)
    return judge(rows.judged, served.on(rows.judged, form), DEFAULT_BINS)


def _worse_than_raw(after: Judgement, rows: HeldOutRows, champion: Champion) -> str | None:
    """Why raw confidence would serve better than the new numbers; None where it would not."""
    if is_identity(champion.served.calibration):
        return None  # has been compared already
    raw = judge(rows.judged, Calibration.identity(rows.judged.gamma), DEFAULT_BINS)
    verdict = improves_survival(raw.report, after.report)
    return None if verdict is None or verdict.replace else verdict.reason


def _affine_loses(new: ServedNumbers, old: ServedNumbers, rows: HeldOutRows) -> str | None:
    """Why engines that apply slopes and intercepts would rather keep the champion's; or None.

    Only a champion with an affine form can be lost by it: otherwise both forms of the new numbers
    were compared with temperatures already.
    """
    if old.calibration.slopes is None:
        return None
    judged = rows.judged
    mine, theirs = (row_losses(judged, each.survival(judged, "affine")) for each in (new, old))
    loss, error = loss_difference(mine, theirs, judged)
    if not loss > error:
        return None
    served = "affine form" if new.calibration.slopes is not None else "temperatures, its only form,"
    return (
        f"its {served} would serve engines that apply slopes and intercepts worse than the "
        f"champion's: {loss:.4f} nats a label more (standard error {error:.4f})"
    )


def same_numbers(one: ServedNumbers, other: ServedNumbers) -> bool:
    """Whether engines would apply the very same numbers; keys and evidence play no part."""
    pairs = [
        (one.calibration.temperatures, other.calibration.temperatures),
        (one.calibration.slopes, other.calibration.slopes),
        (one.calibration.intercepts, other.calibration.intercepts),
        (
            None if one.table is None else one.table.digest,
            None if other.table is None else other.table.digest,
        ),
    ]
    return all(mine == theirs for mine, theirs in pairs)


def no_numbers(calibration: Calibration, *, slopes_tried: bool = False) -> str:
    """That no position could be fitted, and why, for a refusal; without the full stop.

    Args:
        calibration: that is refused.
        slopes_tried: whether its slopes and intercepts were tried alone.
    """
    reason = "no position has a number of its own"
    for kind, words in (("positions", "Position"), ("affine", "Slope and intercept of position")):
        faults = [fit for fit in calibration.evidence.get(kind, ()) if fit["reason"] is not None]
        if kind == "affine" and calibration.slopes is not None:
            if slopes_tried:
                reason += ". Slopes and intercepts are not clearly better on held-out rows either"
        elif faults and faults[0]["reason"].rstrip(".") not in reason:
            reason += f". {words} {faults[0]['position']}: {faults[0]['reason'].rstrip('.')}"
    return reason


def is_identity(calibration: Calibration) -> bool:
    """Whether raw confidence is served."""
    identity = Calibration.identity(calibration.gamma)
    return calibration.temperatures == identity.temperatures and calibration.slopes is None
