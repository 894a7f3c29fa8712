"""The row of a drafter: key, version, aliases and publication number, read and locked together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, select, update

from calib.calibration_key import CalibrationKey
from monitoring.store import tables
from monitoring.store.errors import NotFoundError, PreconditionFailedError
from monitoring.store.fields import is_slug, read_json

__all__ = ["Aliases", "Drafter", "DrafterState", "all_states", "change", "lock", "state_of"]


@dataclass(frozen=True)
class Drafter:
    """One registered combination of target, draft and rule.

    Attributes:
        name: slug ``[a-z0-9][a-z0-9._-]*``.
        gamma: block size.
        key: its calibration key; never changes.
        version: grows with every change of alias, publication or cost table; the token of
            compare-and-set.
        created_at: seconds since the epoch.
        exploration_changes: grows by one when the closed loop asks engines to explore more, and
            when it no longer does.
    """

    name: str
    gamma: int
    key: CalibrationKey
    version: int
    created_at: float
    exploration_changes: int = 0

    @property
    def explores_more(self) -> bool:
        """Whether engines are asked to explore more than without a warning."""
        return self.exploration_changes % 2 == 1


@dataclass(frozen=True)
class Aliases:
    """Revision numbers that names point at.

    Attributes:
        champion: what is served.
        challenger: what is being compared with it, or None.
        previous: the champion before this one, where a rollback leads; or None.
    """

    champion: int
    challenger: int | None
    previous: int | None


@dataclass(frozen=True)
class DrafterState:
    """A drafter with what may change about it.

    Attributes:
        drafter: the drafter.
        aliases: its aliases.
        publication: number of its newest publication.
    """

    drafter: Drafter
    aliases: Aliases
    publication: int


def state_of(connection: Connection, name: str) -> DrafterState:
    """The drafter called ``name``.

    Raises:
        NotFoundError: nobody registered it.
    """
    return _state(connection, name, lock=False)


def lock(connection: Connection, name: str, expected_version: int | None = None) -> DrafterState:
    """The drafter called ``name``, which nobody else can change before this transaction ends.

    Args:
        connection: a write transaction.
        name: the drafter's slug.
        expected_version: version the caller decided on; None for any.

    Raises:
        NotFoundError: nobody registered it.
        PreconditionFailedError: it has another version by now.
    """
    state = _state(connection, name, lock=True)
    if expected_version not in (None, state.drafter.version):
        raise PreconditionFailedError("drafter", name, expected_version, state.drafter.version)
    return state


def all_states(connection: Connection) -> list[DrafterState]:
    """Every drafter, by name."""
    rows = connection.execute(select(tables.drafters).order_by(tables.drafters.c.name))
    return [_read(row) for row in rows]


def change(connection: Connection, state: DrafterState, **values: Any) -> DrafterState:
    """The locked drafter with these columns changed and its version raised."""
    columns = tables.drafters.c
    statement = (
        update(tables.drafters)
        .where(columns.name == state.drafter.name)
        .values(version=columns.version + 1, **values)
    )
    connection.execute(statement)
    return state_of(connection, state.drafter.name)


def _state(connection: Connection, name: str, *, lock: bool) -> DrafterState:
    if not is_slug(name):
        raise NotFoundError("drafter", name)
    query = select(tables.drafters).where(tables.drafters.c.name == name)
    if lock:
        # On SQLite the transaction holds the only write lock already. On PostgreSQL this mode
        # lets telemetry, which refers to the row, pass.
        query = query.with_for_update(key_share=True)
    row = connection.execute(query).one_or_none()
    if row is None:
        raise NotFoundError("drafter", name)
    return _read(row)


def _read(row: Row[Any]) -> DrafterState:
    key = CalibrationKey.from_dict(read_json(row.key))
    return DrafterState(
        drafter=Drafter(
            row.name, row.gamma, key, row.version, row.created_at, row.exploration_changes
        ),
        aliases=Aliases(row.champion, row.challenger, row.previous),
        publication=row.publication,
    )
