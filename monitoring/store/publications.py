"""What was served, when, byte for byte: a counter per drafter that only grows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Final

from sqlalchemy import Connection, Row, func, insert, select, update

from monitoring.store import audit, events, tables, tracking_outbox
from monitoring.store.database import current_time
from monitoring.store.drafter_rows import Drafter, DrafterState, change, lock, state_of
from monitoring.store.errors import NotFoundError
from monitoring.store.fields import checked_text, clamped
from monitoring.store.revisions import Revision, get_revision

__all__ = [
    "CHANNEL",
    "DocumentOf",
    "Edition",
    "Publication",
    "current_publication",
    "editions",
    "get_publication",
    "publication_numbers",
    "publish",
    "raise_exploration",
]

CHANNEL: Final = "dspark_calib_publications"
"""PostgreSQL channel that carries the names of drafters with a new edition."""

DocumentOf = Callable[[int, Revision, Drafter, float], bytes]
"""Makes the served bytes from publication number, revision, drafter and time of publication."""


Edition = tuple[int, int]
"""Publication number and changes of exploration: orders whatever a drafter is served with."""


@dataclass(frozen=True)
class Publication:
    """One publication: the revision that was made champion and the bytes that are served for it.

    Attributes:
        drafter: name of the drafter.
        number: grows by one with every publication, rollbacks included.
        revision: number of the revision.
        published_at: seconds since the epoch.
        valid_until: when clients should call it stale, or None.
        document: canonical JSON for the full block size, pooled.
    """

    drafter: str
    number: int
    revision: int
    published_at: float
    valid_until: float | None
    document: bytes


def publish(
    connection: Connection,
    drafter: str,
    revision: int,
    *,
    expected_version: int | None,
    actor: str,
    reason: str,
    document: DocumentOf,
    request_id: str | None = None,
    valid_for_seconds: float | None = None,
) -> Publication:
    """Make a revision the champion; a rollback is the publication of ``previous``.

    The old champion becomes ``previous``; a promoted challenger is challenger no more, and another
    champion ends the exploration that a warning about the old one asked for. Counter, aliases,
    stored bytes, audit row and event are one transaction.

    Args:
        connection: a write transaction.
        drafter: name of the drafter.
        revision: number of the revision.
        expected_version: the drafter's version the caller decided on; None for any.
        actor: who asks.
        reason: why, for the audit row.
        document: makes the served bytes; called once, inside the transaction.
        request_id: request that asked for it.
        valid_for_seconds: how long clients may call it fresh; None without end. ``document`` has
            to use the same.

    Raises:
        NotFoundError: no such drafter or revision.
        PreconditionFailedError: the drafter has another version than expected.
    """
    state = lock(connection, drafter, expected_version)
    chosen = get_revision(connection, drafter, revision)
    published = append(
        connection,
        state,
        chosen,
        actor=actor,
        reason=reason,
        document=document,
        valid_for_seconds=valid_for_seconds,
    )
    details = {
        "publication": published.number,
        "revision": revision,
        "replaced": state.aliases.champion,
        "reason": reason,
    }
    audit.record(connection, actor, "publish", drafter, details, request_id)
    events.open_event(
        connection,
        "publication",
        "info",
        f"Revision {revision} of {drafter} is served as publication {published.number}",
        drafter=drafter,
        details=details,
    )
    return published


def current_publication(connection: Connection, drafter: str) -> Publication:
    """The newest publication.

    Raises:
        NotFoundError: no such drafter.
    """
    return get_publication(connection, drafter, state_of(connection, drafter).publication)


def get_publication(connection: Connection, drafter: str, number: int) -> Publication:
    """The publication with this number.

    Raises:
        NotFoundError: no such drafter or publication.
    """
    state_of(connection, drafter)
    columns = tables.publications.c
    query = select(tables.publications).where(
        columns.drafter == drafter, columns.number == clamped(number)
    )
    row = connection.execute(query).one_or_none()
    if row is None:
        raise NotFoundError("publication", f"{drafter}/{number}")
    return _read(row)


def publication_numbers(connection: Connection) -> dict[str, int]:
    """The newest publication number of every drafter; reads nothing else."""
    columns = tables.drafters.c
    rows = connection.execute(select(columns.name, columns.publication))
    return {row.name: row.publication for row in rows}


def editions(connection: Connection) -> dict[str, Edition]:
    """What every drafter is served with; reads nothing else."""
    columns = tables.drafters.c
    query = select(columns.name, columns.publication, columns.exploration_changes)
    rows = connection.execute(query)
    return {row.name: (row.publication, row.exploration_changes) for row in rows}


def raise_exploration(
    connection: Connection, drafter: str, raised: bool, *, publication: int
) -> bool:
    """Ask the drafter's engines to explore more, or no more than always.

    What is published stays as it is, and so does the drafter's version.

    Args:
        connection: the transaction of the state that this rests on.
        drafter: name of the drafter.
        raised: what is asked for from now on.
        publication: number of the publication the caller judged; another one ends it.

    Returns:
        Whether anything changed.
    """
    columns = tables.drafters.c
    statement = (
        update(tables.drafters)
        .where(
            columns.name == drafter,
            columns.publication == publication,
            columns.exploration_changes % 2 == (0 if raised else 1),
        )
        .values(exploration_changes=columns.exploration_changes + 1)
    )
    changed = connection.execute(statement).rowcount > 0
    if changed:
        _notify(connection, drafter)
    return changed


def append(
    connection: Connection,
    state: DrafterState,
    revision: Revision,
    *,
    actor: str,
    reason: str,
    document: DocumentOf,
    valid_for_seconds: float | None = None,
) -> Publication:
    """The next publication of a locked drafter, without audit row and event."""
    number = state.publication + 1
    changed = change(connection, state, publication=number, **_moved(state, revision.number))
    published_at = current_time(connection)
    until = None if valid_for_seconds is None else published_at + valid_for_seconds
    body = document(number, revision, changed.drafter, published_at)
    values = {
        "drafter": state.drafter.name,
        "number": number,
        "revision": revision.number,
        "published_at": published_at,
        "valid_until": until,
        "published_by": checked_text("actor", actor),
        "reason": checked_text("reason", reason),
        "document": body,
    }
    connection.execute(insert(tables.publications).values(values))
    told = {"publication": number, "revision": revision.number, "aliases": asdict(changed.aliases)}
    tracking_outbox.record(connection, state.drafter.name, "publication", told)
    _notify(connection, state.drafter.name)
    return get_publication(connection, state.drafter.name, number)


def _moved(state: DrafterState, revision: int) -> dict[str, int | None]:
    before, changes = state.aliases, state.drafter.exploration_changes
    again = revision == before.champion  # published once more: nothing to roll back to changes
    ends = state.drafter.explores_more and not again
    return {
        "champion": revision,
        "challenger": None if before.challenger == revision else before.challenger,
        "previous": before.previous if again else before.champion,
        "exploration_changes": changes + ends,
    }


def _notify(connection: Connection, drafter: str) -> None:
    if connection.dialect.name == "postgresql":  # delivered when the transaction commits
        connection.execute(select(func.pg_notify(CHANNEL, drafter)))


def _read(row: Row[Any]) -> Publication:
    return Publication(
        drafter=row.drafter,
        number=row.number,
        revision=row.revision,
        published_at=row.published_at,
        valid_until=row.valid_until,
        document=bytes(row.document),
    )
