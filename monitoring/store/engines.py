"""Who runs what: the last thing each engine said about itself."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Connection, select

from monitoring.store import tables
from monitoring.store.fields import checked_identifier, clamped
from monitoring.store.upserts import insert_for

__all__ = ["EngineRow", "EngineSighting", "list_engines", "record_sightings"]


@dataclass(frozen=True)
class EngineSighting:
    """What an engine said when it polled.

    Attributes:
        drafter: name of the drafter.
        engine: the engine's id.
        client_version: version of its client, or None.
        applied_publication: publication it runs on, or None.
        applied_revision: revision it runs on, or None.
        state: ``fresh``, ``stale`` or ``fallback``, or None.
        seen_at: seconds since the epoch.
    """

    drafter: str
    engine: str
    client_version: str | None
    applied_publication: int | None
    applied_revision: int | None
    state: str | None
    seen_at: float


@dataclass(frozen=True)
class EngineRow:
    """An engine as it was last seen.

    Attributes:
        drafter: name of the drafter.
        engine: the engine's id.
        client_version: version of its client, or None.
        applied_publication: publication it runs on, or None.
        applied_revision: revision it runs on, or None.
        state: ``fresh``, ``stale`` or ``fallback``, or None.
        first_seen_at: seconds since the epoch.
        seen_at: seconds since the epoch.
    """

    drafter: str
    engine: str
    client_version: str | None
    applied_publication: int | None
    applied_revision: int | None
    state: str | None
    first_seen_at: float
    seen_at: float


def record_sightings(connection: Connection, sightings: Iterable[EngineSighting]) -> int:
    """How many engines were written; of several sightings of one engine the newest stands.

    Sightings of drafters that do not exist are left out: an engine's question is no registration.

    Raises:
        InvalidInputError: a text the database cannot hold.
    """
    known = set(connection.execute(select(tables.drafters.c.name)).scalars())
    newest: dict[tuple[str, str], EngineSighting] = {}
    for sighting in sightings:
        place = (sighting.drafter, checked_identifier("engine", sighting.engine))
        before = newest.get(place)
        if sighting.drafter in known and (before is None or before.seen_at <= sighting.seen_at):
            newest[place] = sighting
    # In one order everywhere, so that two replicas never wait for each other in a circle.
    values = [_values(newest[place]) for place in sorted(newest)]
    if values:
        statement = insert_for(connection.dialect.name, tables.engines)
        columns = tables.engines.c
        told = ("client_version", "applied_publication", "applied_revision", "state", "seen_at")
        upsert = statement.on_conflict_do_update(
            index_elements=["drafter", "engine"],
            set_={name: statement.excluded[name] for name in told},
            where=columns.seen_at <= statement.excluded.seen_at,
        )
        connection.execute(upsert, values)
    return len(values)


def _values(sighting: EngineSighting) -> dict[str, Any]:
    applied = (sighting.applied_publication, sighting.applied_revision)
    publication, revision = (None if number is None else clamped(number) for number in applied)
    told: dict[str, Any] = {"applied_publication": publication, "applied_revision": revision}
    for name in ("client_version", "state"):
        text = getattr(sighting, name)
        told[name] = None if text is None else checked_identifier(name, text)
    return asdict(sighting) | told | {"first_seen_at": sighting.seen_at}


def list_engines(connection: Connection, drafter: str) -> list[EngineRow]:
    """Every engine of the drafter, by id."""
    columns = tables.engines.c
    query = select(tables.engines).where(columns.drafter == drafter).order_by(columns.engine)
    return [EngineRow(**row._asdict()) for row in connection.execute(query)]
