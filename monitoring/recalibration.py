"""A recalibration: fit on the stored window, judge on rows the fit did not see, propose or refuse.

What becomes of a job of kind ``recalibration``:

- nothing to fit on, or rows that cannot be trusted: refused, an event says what to mend;
- numbers that are not better than the champion's on held-out rows: refused, the champion stays;
- else a new revision, and the alias ``challenger`` on it. Publishing it is another decision, unless
  the job says ``promote: "guard"``: then the held-out comparison was that decision.

With ``source: "sketches"`` the fit reads what the closed loop has counted by hour instead of rows,
and nothing is held out: a proposal, and the gate judges it.

The window is frozen with the job: its first and last batch, its rows and the digest of their
content stand in the revision's provenance, and a job that names them fits the same numbers again.

A refusal is a result: it is stored with its reason and its evidence like a success. Everything that
a job leaves behind is written in one transaction, which first checks that the lease still holds: a
worker that lost it, or died, leaves nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, Literal

from sqlalchemy import Connection

from calib.calibration_key import CalibrationKey
from calib.data_quality import QualityFlag
from calib.statuses import Refusal
from monitoring.challenger_fit import ChallengerFit, Champion, fit_challenger
from monitoring.hour_sketches import HourSketches
from monitoring.monitor_state_bytes import state_from_bytes
from monitoring.published_document import document_maker
from monitoring.recalibration_evidence import code_versions
from monitoring.recalibration_options import RecalibrationOptions
from monitoring.revision_model import MODEL
from monitoring.served_numbers import ServedNumbers
from monitoring.sketch_fit import fit_sketches
from monitoring.sketch_rows import SketchRows
from monitoring.store import monitor_states
from monitoring.store.database import Database
from monitoring.store.drafters import get
from monitoring.store.events import EventKind, open_event, resolve
from monitoring.store.jobs import Job, check_fence, declare_reads, finish
from monitoring.store.publications import publish
from monitoring.store.revisions import Revision, add_revision, aliases, get_revision, set_challenger
from monitoring.windows import DEFAULT_WINDOW_ROWS, window_of

__all__ = ["ACTOR", "Outcome", "recalibrate"]

ACTOR: Final = "worker"

_log = logging.getLogger(__name__)

# Evidence of the fit that goes on with the numbers.
_SHOWN: Final = ("held_out", "sketches")

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
        publication: number of its publication; None where it was not published.
    """

    status: Literal["succeeded", "refused"]
    result: Mapping[str, Any]
    revision: int | None = None
    publication: int | None = None


def recalibrate(
    database: Database,
    job: Job,
    *,
    default_rows: int = DEFAULT_WINDOW_ROWS,
    valid_for_seconds: float | None = None,
) -> Outcome:
    """Do one job of kind ``recalibration`` and finish it.

    Args:
        database: holds telemetry, champion and job.
        job: leased by the caller; its options are those of
            :class:`monitoring.recalibration_options.RecalibrationOptions`.
        default_rows: rows of the window where the job names none.
        valid_for_seconds: how long clients may call a publication fresh; None: without end.

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
    fit_it = partial(
        _from_rows if options.source == "rows" else _from_sketches, database, job, options
    )
    found, window = fit_it(
        default_rows,
        champion=Champion(champion.number, ServedNumbers.of(champion)),
        key=drafter.key,
        fitted_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    result = _result(job, options, window, found)
    if found.calibration is None:
        return database.run(lambda connection: _refuse(connection, database, job, found, result))
    proposal = _Proposal(database, job, options, found, champion, result, valid_for_seconds)
    return database.run(proposal.commit)


def _from_rows(
    database: Database,
    job: Job,
    options: RecalibrationOptions,
    default_rows: int,
    *,
    champion: Champion,
    key: CalibrationKey,
    fitted_at: str,
) -> tuple[ChallengerFit, dict[str, Any]]:
    """The fit on rows, as the job froze them or as they are stored now, and its window."""
    ends = options.window
    first = None if ends is None else ends.from_batch
    window = window_of(
        database,
        job.drafter,
        rows=options.rows or default_rows,
        after_batch=None if first is None else first - 1,
        through_batch=None if ends is None else ends.through_batch,
    )
    if window.last_batch is not None:
        _release_batches(database, job, window.last_batch)
    found = fit_challenger(window.records, options, champion=champion, key=key, fitted_at=fitted_at)
    return found, window.to_dict()


def _from_sketches(
    database: Database,
    job: Job,
    options: RecalibrationOptions,
    _: int,
    *,
    champion: Champion,
    key: CalibrationKey,
    fitted_at: str,
) -> tuple[ChallengerFit, dict[str, Any]]:
    """The fit on what the closed loop has counted so far, and its window."""
    with database.read() as connection:
        row = monitor_states.load(connection, job.drafter)
    last = 0 if row is None else row.consumed_through
    _release_batches(database, job, last)
    gamma = champion.served.calibration.gamma
    source = SketchRows.of(
        HourSketches() if row is None else state_from_bytes(row.state).sketches,
        gamma,
        hours=options.hours,
        half_life_hours=options.half_life_hours,
        from_batch=(options.window.from_batch if options.window else None) or 0,
    )
    found = fit_sketches(source, options, champion=champion, key=key, fitted_at=fitted_at)
    if row is None:
        reason = "the closed loop has counted no row of this drafter: start it, or fit on rows"
        found = replace(found, reason=reason)
    return found, source.window(last)


def _release_batches(database: Database, job: Job, last: int) -> None:
    """Let retention go on: everything this job reads is in memory by now."""
    database.run(lambda connection: declare_reads(connection, database, job, last + 1))


def _result(
    job: Job, options: RecalibrationOptions, window: Mapping[str, Any], found: ChallengerFit
) -> dict[str, Any]:
    return {
        "refusal": found.refusal,
        "reason": found.reason,
        "summary": list(found.summary),
        "method": found.method or options.method,
        "asked_method": options.method,
        "window": dict(window),
        "evidence": found.evidence,
        "versions": code_versions(),
        "job": job.id,
    }


@dataclass(frozen=True, slots=True)
class _Proposal:
    """Everything a success leaves behind, in one transaction."""

    database: Database
    job: Job
    options: RecalibrationOptions
    found: ChallengerFit
    champion: Revision
    result: Mapping[str, Any]
    valid_for_seconds: float | None

    def commit(self, connection: Connection) -> Outcome:
        """Store the revision, point the alias at it or publish it, finish the job."""
        job = self.job
        check_fence(connection, self.database, job)
        revision = self._revision(connection)
        set_challenger(connection, job.drafter, revision.number, actor=ACTOR)
        publication = self._published(connection, revision)
        done = {
            **self.result,
            "revision": revision.number,
            "digest": revision.calibration.digest,
            "publication": publication,
        }
        _settle_events(connection, job, keep=None)
        if publication is None:
            open_event(
                connection,
                "challenger",
                "info",
                f"Revision {revision.number} is the challenger of {job.drafter}",
                drafter=job.drafter,
                details={
                    "revision": revision.number,
                    "job": job.id,
                    "reason": self.result["reason"],
                },
            )
        finish(connection, job, "succeeded", done, None)
        words = "revision %d of %s proposed: %s"
        _log.info(words, revision.number, job.drafter, self.result["reason"])
        return Outcome("succeeded", done, revision.number, publication)

    def _revision(self, connection: Connection) -> Revision:
        found, result = self.found, self.result
        if found.calibration is None:  # never: a refusal proposes nothing
            raise LookupError("a refused fit has no numbers")
        shown = {
            **{name: found.evidence[name] for name in _SHOWN if name in found.evidence},
            "method": found.method,
            "window": result["window"],
            "versions": result["versions"],
        }
        calibration = replace(found.calibration, evidence={**found.calibration.evidence, **shown})
        provenance = {
            "kind": "recalibration",
            "job": self.job.id,
            "options": dict(self.job.options),
            "reason": self.options.reason,
            "method": found.method,
            "champion": self.champion.number,
            "window": result["window"],
            "source": self.options.source,
            "sketches": found.evidence.get("sketches"),
            "versions": result["versions"],
            MODEL: found.model,
        }
        return add_revision(
            connection,
            self.job.drafter,
            calibration,
            segments=found.segments,
            provenance=provenance,
            actor=ACTOR,
        )

    def _published(self, connection: Connection, revision: Revision) -> int | None:
        """Publish what the guard let through, where the job wants it and nobody was faster."""
        current = aliases(connection, self.job.drafter).champion
        if self.options.promote != "guard" or current != self.champion.number:
            return None
        publication = publish(
            connection,
            self.job.drafter,
            revision.number,
            expected_version=None,
            actor=ACTOR,
            reason=f"held-out guard: {self.result['reason']}",
            document=document_maker(self.valid_for_seconds),
            valid_for_seconds=self.valid_for_seconds,
        )
        return publication.number


def _refuse(
    connection: Connection,
    database: Database,
    job: Job,
    found: ChallengerFit,
    result: Mapping[str, Any],
) -> Outcome:
    """Everything a refusal leaves behind, in one transaction."""
    check_fence(connection, database, job)
    faulty = found.refusal in _DATA_FAULTS
    kind: EventKind = "data_quality" if faulty else "recalibration_refused"
    _settle_events(connection, job, keep=kind)
    open_event(
        connection,
        kind,
        "warning" if faulty else "info",
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
