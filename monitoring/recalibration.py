"""A recalibration: fit on the stored window, judge on rows the fit did not see, propose or refuse.

What becomes of a job of kind ``recalibration``:

- nothing to fit on, or rows that cannot be trusted: refused, an event says what to mend;
- numbers that are not better than the champion's on held-out rows: refused, the champion stays;
- else a new revision, and the alias ``challenger`` on it. Publishing it is another decision.

A refusal is a result: it is stored with its reason and its evidence like a success. Everything that
a job leaves behind is written in one transaction, which first checks that the lease still holds: a
worker that lost it, or died, leaves nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final, Literal

from sqlalchemy import Connection

from calib.calibration import Calibration
from calib.data_quality import QualityFlag, quality_flags
from calib.errors import FitRefusedError
from calib.fit_status import MINIMUM_ROWS
from calib.label_consistency import check_label_consistency
from calib.records import AcceptanceRecords
from calib.statuses import Refusal, ServingStatus
from monitoring.held_out_rows import HeldOutRows, held_out_rows
from monitoring.recalibration_evidence import HeldOutComparison, code_versions
from monitoring.recalibration_options import RecalibrationOptions
from monitoring.reports.evaluation_report import judge
from monitoring.reports.fit_report import FitOptions, FitReport, fit_report
from monitoring.store.database import Database
from monitoring.store.drafters import Drafter, get
from monitoring.store.events import open_event, resolve
from monitoring.store.jobs import Job, check_fence, declare_reads, finish
from monitoring.store.revisions import Revision, add_revision, aliases, get_revision, set_challenger
from monitoring.windows import DEFAULT_WINDOW_ROWS, Window, window_of

__all__ = ["ACTOR", "Outcome", "recalibrate"]

ACTOR: Final = "worker"

_log = logging.getLogger(__name__)

# What each suspicion means for the person who can mend it.
_FLAG_REASONS: Final = {
    QualityFlag.LOOKS_LIKE_PROBABILITIES: (
        "every confidence logit of the window lies within [0, 1]: the engines seem to send "
        "probabilities; send the head's raw output"
    ),
    QualityFlag.FIRST_POSITION_ALWAYS_ACCEPTED: (
        "position 1 was accepted in every row: slot 0 seems to be the anchor, or acceptance is "
        "forced; send draft positions only"
    ),
}

# Refusals that say something about the measurement and not about the fit.
_DATA_FAULTS: Final = {
    str(Refusal.NO_ROWS),
    str(Refusal.LABEL_INCONSISTENT),
    *(str(flag) for flag in QualityFlag),
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a recalibration came to.

    Attributes:
        status: ``"succeeded"`` or ``"refused"``: the status of its job.
        result: plain JSON, stored with the job.
        revision: number of the new revision; None where refused.
    """

    status: Literal["succeeded", "refused"]
    result: Mapping[str, Any]
    revision: int | None = None


@dataclass(frozen=True, slots=True)
class _Fit:
    """A fit that may be proposed, or the reason why not."""

    refusal: str | None
    reason: str
    calibration: Calibration | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)
    summary: tuple[str, ...] = ()


def recalibrate(
    database: Database, job: Job, *, default_rows: int = DEFAULT_WINDOW_ROWS
) -> Outcome:
    """Do one job of kind ``recalibration`` and finish it.

    Args:
        database: holds telemetry, champion and job.
        job: leased by the caller; its options are those of
            :class:`monitoring.recalibration_options.RecalibrationOptions`.
        default_rows: rows of the window where the job names none.

    Raises:
        ConfigurationError: options that no recalibration has.
        LeaseLostError: another worker has the job; nothing was written.
        StoreError: the database failed; nothing was written, except where the error says that
            this is unknown.
    """
    options = RecalibrationOptions.from_mapping(job.options)
    with database.read() as connection:
        drafter = get(connection, job.drafter)
        current = aliases(connection, job.drafter)
        champion = get_revision(connection, job.drafter, current.champion)
    window = window_of(database, job.drafter, rows=options.rows or default_rows)
    _release_batches(database, job, window)
    found = _fit(window.records, options, drafter, champion)
    result = _result(job, options, window, found)
    if found.calibration is None:
        return database.run(lambda connection: _refuse(connection, database, job, found, result))
    calibration = replace(
        found.calibration, evidence={**found.calibration.evidence, **_evidence(window, found)}
    )
    return database.run(lambda connection: _propose(connection, database, job, calibration, result))


def _release_batches(database: Database, job: Job, window: Window) -> None:
    """Let retention go on: everything this job reads is in memory by now."""
    if window.last_batch is not None:
        beyond = window.last_batch + 1
        database.run(lambda connection: declare_reads(connection, database, job, beyond))


def _fit(
    records: AcceptanceRecords,
    options: RecalibrationOptions,
    drafter: Drafter,
    champion: Revision,
) -> _Fit:
    """Fit and judge; data that support no fit become a refusal."""
    minimum = options.minimum_rows or MINIMUM_ROWS
    try:
        usable = _trusted(records, minimum)
        rows = held_out_rows(usable, share=options.evaluation_share)
        report = fit_report(
            rows.fit,
            FitOptions(method=options.method, minimum_rows=minimum),
            evaluate_on=rows.judged,
            key=drafter.key,
            fitted_at=datetime.now(UTC).isoformat(timespec="seconds"),
        )
    except FitRefusedError as error:
        return _Fit(error.status, error.reason)
    return _judged(report, rows, champion)


def _trusted(records: AcceptanceRecords, minimum: int) -> AcceptanceRecords:
    """The rows that may enter a fit.

    Raises:
        FitRefusedError: there are none or too few, or something about them is wrong.
    """
    usable = records.fitting_rows()
    if len(usable) == 0:
        excluded = {name: count for name, count in records.exclusion_counts().items() if count}
        held = f" excluded: {excluded};" if excluded else ""
        raise FitRefusedError(
            Refusal.NO_ROWS,
            f"none of {len(records)} stored rows may enter a fit;{held} check that engines send "
            "telemetry and that it is not rejected",
        )
    for flag in quality_flags(usable):
        raise FitRefusedError(str(flag), _FLAG_REASONS[flag])
    check_label_consistency(usable).require()
    if len(usable) < minimum:
        raise FitRefusedError(
            ServingStatus.INSUFFICIENT,
            f"{len(usable)} usable rows; at least {minimum} are needed to publish a position",
        )
    return usable


def _judged(report: FitReport, rows: HeldOutRows, champion: Revision) -> _Fit:
    """Compare with the champion on the same held-out rows."""
    overall = report.evaluation.overall
    if champion.calibration.digest == report.calibration.digest:
        before = overall.calibrated
    elif _is_identity(champion.calibration):
        before = overall.raw
    else:
        before = judge(rows.judged, champion.calibration, report.options.n_bins)
    comparison = HeldOutComparison(champion.number, before, overall.calibrated, rows)
    evidence = {"held_out": comparison.to_dict(), "fit": report.calibration.evidence}
    summary = tuple(comparison.sentences())
    verdict = comparison.verdict
    if report.calibration.status is ServingStatus.INSUFFICIENT or not verdict.replace:
        insufficient = report.calibration.status is ServingStatus.INSUFFICIENT
        word = ServingStatus.INSUFFICIENT if insufficient else Refusal.NOT_BETTER
        reason = verdict.reason
        if _is_identity(report.calibration):
            reason = f"no position has a number of its own{_first_unfit(report.calibration)}"
        return _Fit(str(word), reason, None, evidence, summary)
    if report.refusal is not None:  # better than the champion, yet worse than raw confidence
        reason = f"{report.refusal}; roll back to identity, revision 0, instead"
        return _Fit(str(Refusal.NOT_BETTER), reason, None, evidence, summary)
    return _Fit(None, verdict.reason, report.calibration, evidence, summary)


def _first_unfit(calibration: Calibration) -> str:
    """Why the first position without a number has none, to be added to a refusal."""
    for fit in calibration.evidence.get("positions", ()):
        if fit["reason"] is not None:
            return f". Position {fit['position']}: {fit['reason']}"
    return ""


def _is_identity(calibration: Calibration) -> bool:
    return calibration.temperatures == Calibration.identity(calibration.gamma).temperatures


def _evidence(window: Window, found: _Fit) -> dict[str, Any]:
    """What a published revision shows beside the evidence of its estimator."""
    return {
        "held_out": found.evidence["held_out"],
        "window": window.to_dict(),
        "versions": code_versions(),
    }


def _result(job: Job, options: RecalibrationOptions, window: Window, found: _Fit) -> dict[str, Any]:
    return {
        "refusal": found.refusal,
        "reason": found.reason,
        "summary": list(found.summary),
        "method": options.method,
        "window": window.to_dict(),
        "evidence": found.evidence,
        "versions": code_versions(),
        "job": job.id,
    }


def _propose(
    connection: Connection,
    database: Database,
    job: Job,
    calibration: Calibration,
    result: Mapping[str, Any],
) -> Outcome:
    """Everything a success leaves behind, in one transaction."""
    check_fence(connection, database, job)
    provenance = {
        "kind": "recalibration",
        "job": job.id,
        "options": dict(job.options),
        "window": result["window"],
        "versions": result["versions"],
    }
    revision = add_revision(
        connection, job.drafter, calibration, provenance=provenance, actor=ACTOR
    )
    set_challenger(connection, job.drafter, revision.number, actor=ACTOR)
    done = {**result, "revision": revision.number, "digest": calibration.digest}
    _settle_events(connection, job, keep=None)
    open_event(
        connection,
        "challenger",
        "info",
        f"Revision {revision.number} is the challenger of {job.drafter}",
        drafter=job.drafter,
        details={"revision": revision.number, "job": job.id, "reason": result["reason"]},
    )
    finish(connection, job, "succeeded", done, None)
    _log.info("revision %d of %s proposed: %s", revision.number, job.drafter, result["reason"])
    return Outcome("succeeded", done, revision.number)


def _refuse(
    connection: Connection,
    database: Database,
    job: Job,
    found: _Fit,
    result: Mapping[str, Any],
) -> Outcome:
    """Everything a refusal leaves behind, in one transaction."""
    check_fence(connection, database, job)
    kind = "data_quality" if found.refusal in _DATA_FAULTS else "recalibration_refused"
    _settle_events(connection, job, keep=kind)
    open_event(
        connection,
        kind,
        "warning" if kind == "data_quality" else "info",
        f"Recalibration of {job.drafter} refused: {str(found.refusal).replace('_', ' ')}",
        drafter=job.drafter,
        details={"refusal": found.refusal, "reason": found.reason, "job": job.id},
        dedup_key=_event_key(job.drafter, kind),
    )
    finish(connection, job, "refused", result, None)
    _log.warning("recalibration of %s refused (%s): %s", job.drafter, found.refusal, found.reason)
    return Outcome("refused", result)


def _settle_events(connection: Connection, job: Job, *, keep: str | None) -> None:
    """Close what this job has answered: a fit that ran has met no data fault."""
    for kind in ("data_quality", "recalibration_refused"):
        if kind != keep:
            resolve(connection, _event_key(job.drafter, kind))


def _event_key(drafter: str, kind: str) -> str:
    return f"{kind}/{drafter}"
