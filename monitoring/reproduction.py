"""A recalibration made again from what its revision says about itself.

The frozen window, the options and the champion of the time stand in the provenance. Equal rows
through equal code give equal numbers; where they do not, this says which of the two has changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from calib.canonical_json import canonical_json
from calib.records import AcceptanceRecords
from monitoring.challenger_fit import ChallengerFit, Champion, fit_challenger
from monitoring.recalibration_evidence import code_versions
from monitoring.recalibration_options import MOST_ROWS, RecalibrationOptions
from monitoring.served_numbers import ServedNumbers
from monitoring.store.database import Database
from monitoring.store.drafters import Drafter, get
from monitoring.store.revisions import Revision, get_revision
from monitoring.windows import records_digest, window_of

__all__ = ["Reproduction", "reproduce"]

Outcome = Literal["equal", "differs", "window_gone", "no_fit"]

_NUMBERS: Final = ("temperatures", "slopes", "intercepts")


@dataclass(frozen=True, slots=True)
class Reproduction:
    """What making it again came to.

    Attributes:
        drafter: whose.
        revision: its number.
        outcome: ``"equal"``: the same rows gave the same numbers; ``"differs"``: they gave others;
            ``"window_gone"``: the rows are not stored any more, or not all; ``"no_fit"``: the
            revision was not made by a recalibration.
        reason: the outcome in a sentence.
        digest: of the stored numbers.
        digest_again: of the numbers made again; None where none were.
        window_digest: of the rows of the fit, as stored with it; None where it was not kept.
        window_digest_again: of the rows as they are stored now; None where there are none.
        numbers: temperatures, slopes and intercepts, stored and again, where they differ.
        versions: of the code then and now, where they differ.
    """

    drafter: str
    revision: int
    outcome: Outcome
    reason: str
    digest: str
    digest_again: str | None = None
    window_digest: str | None = None
    window_digest_again: str | None = None
    numbers: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, Any] = field(default_factory=dict)


def reproduce(database: Database, drafter: str, number: int) -> Reproduction:
    """Fit the frozen window of a revision again and compare; nothing is stored.

    Args:
        database: holds the revision and, for as long as retention keeps it, its window.
        drafter: whose.
        number: of the revision.

    Raises:
        NotFoundError: no such drafter or revision.
        FormatError: a stored batch that cannot be read.
        StoreError: the database failed.
    """
    with database.read() as connection:
        owner = get(connection, drafter)
        revision = get_revision(connection, drafter, number)
    window = revision.provenance.get("window")
    if not isinstance(window, Mapping) or not window.get("rows"):
        origin = revision.provenance.get("kind") or revision.provenance.get("origin") or "by hand"
        reason = f"no recalibration made this revision ({origin}): there is no fit to repeat"
        return _no_numbers(revision, "no_fit", reason)
    if revision.provenance.get("source") == "sketches":
        reason = "it was fitted on sketches by hour, which are not kept as they were then"
        return _no_numbers(revision, "window_gone", reason, str(window.get("digest")))
    wanted = str(window["digest"]) if window.get("digest") else None
    records = _frozen(database, drafter, window)
    found = records_digest(records) if len(records) else None
    if len(records) != window["rows"] or wanted not in (None, found):
        reason = (
            f"the window is no longer kept: {len(records):,} of {window['rows']:,} rows of batches "
            f"{window['first_batch']} to {window['last_batch']} are stored; retention removes "
            "the oldest telemetry (settings retention_days and retention_bytes)"
        )
        return _no_numbers(revision, "window_gone", reason, wanted, found)
    again = _fit(database, owner, revision, records)
    return _compared(revision, again, wanted, found)


def _frozen(database: Database, drafter: str, window: Mapping[str, Any]) -> AcceptanceRecords:
    """The rows of the window, as far as they are stored: its newest, as they were chosen then."""
    first, last = int(window["first_batch"]), int(window["last_batch"])
    # All rows of these batches: what was dropped as a duplicate or as too old counts there.
    stored = window_of(
        database, drafter, rows=MOST_ROWS, after_batch=first - 1, through_batch=last
    ).records
    return stored.select(slice(max(0, len(stored) - int(window["rows"])), None))


def _fit(
    database: Database, drafter: Drafter, revision: Revision, records: AcceptanceRecords
) -> ChallengerFit:
    provenance = revision.provenance
    before = provenance.get("champion")
    if before is None:
        before = revision.calibration.evidence.get("held_out", {}).get("champion", 0)
    with database.read() as connection:
        champion = get_revision(connection, drafter.name, int(before))
    return fit_challenger(
        records,
        RecalibrationOptions.from_mapping(provenance.get("options") or {}),
        champion=Champion(champion.number, ServedNumbers.of(champion)),
        key=drafter.key,
        fitted_at=revision.calibration.fitted_at,
    )


def _compared(
    revision: Revision, again: ChallengerFit, wanted: str | None, found: str | None
) -> Reproduction:
    then = revision.provenance.get("versions") or {}
    versions = {
        name: {"then": then.get(name), "now": now}
        for name, now in code_versions().items()
        if then.get(name) != now
    }
    stored, made = revision.calibration, again.calibration
    numbers = {}
    if made is not None:
        numbers = {
            name: {"stored": getattr(stored, name), "again": getattr(made, name)}
            for name in _NUMBERS
            if getattr(stored, name) != getattr(made, name)
        }
    same_segments = _canonical(revision.segments) == _canonical(again.segments)
    if made is not None and made.digest == stored.digest and same_segments:
        outcome: Outcome = "equal"
        reason = "the same rows gave the same numbers, digit for digit"
    else:
        outcome = "differs"
        what = "the numbers of segments" if made is not None and not numbers else "other numbers"
        reason = f"the same rows gave {what}" if made is not None else _refused(again)
        names = ", ".join(sorted(versions)) or "the code itself: its version is the same"
        reason += f"; what has changed since is {names}"
    return Reproduction(
        drafter=revision.drafter,
        revision=revision.number,
        outcome=outcome,
        reason=reason,
        digest=stored.digest,
        digest_again=None if made is None else made.digest,
        window_digest=wanted,
        window_digest_again=found,
        numbers=numbers,
        versions=versions,
    )


def _refused(again: ChallengerFit) -> str:
    return f"the fit is refused now ({again.refusal}: {again.reason})"


def _canonical(value: Mapping[str, Any] | None) -> bytes | None:
    return None if value is None else canonical_json(dict(value))


def _no_numbers(
    revision: Revision,
    outcome: Outcome,
    reason: str,
    wanted: str | None = None,
    found: str | None = None,
) -> Reproduction:
    return Reproduction(
        revision.drafter,
        revision.number,
        outcome,
        reason,
        revision.calibration.digest,
        window_digest=wanted,
        window_digest_again=found,
    )
