"""Immutable calibrations of a drafter, numbered from 0 (identity), and the aliases on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, Row, func, insert, select

from calib.calibration import Calibration
from calib.errors import CalibrationValueError
from monitoring.store import audit, tables, tracking_outbox
from monitoring.store.database import current_time
from monitoring.store.drafter_rows import Aliases, Drafter, change, lock, state_of
from monitoring.store.errors import ConflictError, NotFoundError
from monitoring.store.fields import checked_text, clamped, json_text, read_json, read_optional_json

__all__ = [
    "Aliases",
    "Revision",
    "add_revision",
    "aliases",
    "get_revision",
    "list_revisions",
    "set_challenger",
]


@dataclass(frozen=True)
class Revision:
    """One calibration as it was made. Nothing changes it afterwards.

    Attributes:
        drafter: name of the drafter.
        number: 0 is identity; grows by one.
        calibration: numbers, statuses and evidence.
        segments: numbers by segment as plain JSON, or None.
        provenance: where the numbers come from, as plain JSON.
        created_at: seconds since the epoch.
        created_by: token name, ``"worker"`` or ``"anonymous"``.
    """

    drafter: str
    number: int
    calibration: Calibration
    segments: Mapping[str, Any] | None
    provenance: Mapping[str, Any]
    created_at: float
    created_by: str

    @property
    def method(self) -> str:
        """What made the numbers: a recalibration's method, or that of the calibration.

        Survival fits are projected by STS, so their calibration says ``sts``.
        """
        return str(self.provenance.get("method") or self.calibration.method)


def add_revision(
    connection: Connection,
    drafter: str,
    calibration: Calibration,
    *,
    segments: Mapping[str, Any] | None = None,
    provenance: Mapping[str, Any],
    actor: str,
    request_id: str | None = None,
) -> Revision:
    """Store a calibration under the next number; equal numbers make a new revision all the same.

    A calibration without a key gets the drafter's.

    Raises:
        NotFoundError: no such drafter.
        ConflictError: the calibration is for another key.
        CalibrationValueError: the calibration is for another block size.
    """
    state = lock(connection, drafter)
    revision = _insert(
        connection,
        state.drafter,
        _keyed(calibration, state.drafter),
        segments=segments,
        provenance=provenance,
        actor=actor,
    )
    details = {"revision": revision.number, "digest": revision.calibration.digest}
    audit.record(connection, actor, "add_revision", drafter, details, request_id)
    return revision


def get_revision(connection: Connection, drafter: str, number: int) -> Revision:
    """The revision with this number.

    Raises:
        NotFoundError: no such drafter or revision.
    """
    state_of(connection, drafter)
    columns = tables.revisions.c
    query = select(tables.revisions).where(
        columns.drafter == drafter, columns.number == clamped(number, 31)
    )
    row = connection.execute(query).one_or_none()
    if row is None:
        raise NotFoundError("revision", f"{drafter}/{number}")
    return _read(row)


def list_revisions(
    connection: Connection, drafter: str, *, before: int | None = None, limit: int = 100
) -> list[Revision]:
    """The newest revisions first.

    Args:
        connection: any connection of the store.
        drafter: name of the drafter.
        before: only smaller numbers: the last number of the page before.
        limit: at most this many.

    Raises:
        NotFoundError: no such drafter.
    """
    state_of(connection, drafter)
    columns = tables.revisions.c
    query = select(tables.revisions).where(columns.drafter == drafter)
    if before is not None:
        query = query.where(columns.number < clamped(before, 31))
    rows = connection.execute(query.order_by(columns.number.desc()).limit(clamped(limit)))
    return [_read(row) for row in rows]


def aliases(connection: Connection, drafter: str) -> Aliases:
    """What champion, challenger and previous point at.

    Raises:
        NotFoundError: no such drafter.
    """
    return state_of(connection, drafter).aliases


def set_challenger(
    connection: Connection,
    drafter: str,
    number: int | None,
    *,
    actor: str,
    expected_version: int | None = None,
    request_id: str | None = None,
) -> Drafter:
    """The drafter with this challenger in place of the one before; None clears it.

    Raises:
        NotFoundError: no such drafter or revision.
        PreconditionFailedError: the drafter has another version than expected.
        ConflictError: the revision is the champion already.
    """
    state = lock(connection, drafter, expected_version)
    if number is not None:
        get_revision(connection, drafter, number)
        if number == state.aliases.champion:
            raise ConflictError("revision", f"{drafter}/{number}", "it is the champion already")
    if number == state.aliases.challenger:
        return state.drafter
    changed = change(connection, state, challenger=number)
    tracking_outbox.record_aliases(connection, drafter, changed.aliases)
    details = {"challenger": number, "before": state.aliases.challenger}
    audit.record(connection, actor, "set_challenger", drafter, details, request_id)
    return changed.drafter


def _keyed(calibration: Calibration, drafter: Drafter) -> Calibration:
    if calibration.gamma != drafter.gamma:
        raise CalibrationValueError(
            "gamma", calibration.gamma, f"drafter {drafter.name!r} has gamma {drafter.gamma}"
        )
    if calibration.key is None:
        return replace(calibration, key=drafter.key)
    if calibration.key != drafter.key:
        raise ConflictError(
            "drafter", drafter.name, "the calibration is for another key; register another drafter"
        )
    return calibration


def _insert(
    connection: Connection,
    drafter: Drafter,
    calibration: Calibration,
    *,
    segments: Mapping[str, Any] | None,
    provenance: Mapping[str, Any],
    actor: str,
) -> Revision:
    columns = tables.revisions.c
    newest = select(func.max(columns.number)).where(columns.drafter == drafter.name)
    last: int | None = connection.execute(newest).scalar()
    number = 0 if last is None else last + 1
    values = {
        "drafter": drafter.name,
        "number": number,
        "digest": calibration.digest,
        "created_at": current_time(connection),
        "created_by": checked_text("actor", actor),
        "segments": None if segments is None else json_text(segments),
        "provenance": json_text(provenance),
        "calibration": calibration.to_json(),
    }
    connection.execute(insert(tables.revisions).values(values))
    tracking_outbox.record(connection, drafter.name, "revision", {"revision": number})
    return get_revision(connection, drafter.name, number)


def insert_identity(connection: Connection, drafter: Drafter, *, actor: str) -> Revision:
    """Revision 0 of a drafter that is being registered."""
    identity = Calibration.identity(drafter.gamma, drafter.key)
    return _insert(
        connection,
        drafter,
        identity,
        segments=None,
        provenance={"origin": "registration"},
        actor=actor,
    )


def _read(row: Row[Any]) -> Revision:
    return Revision(
        drafter=row.drafter,
        number=row.number,
        calibration=Calibration.from_json(row.calibration),
        segments=read_optional_json(row.segments),
        provenance=read_json(row.provenance),
        created_at=row.created_at,
        created_by=row.created_by,
    )
