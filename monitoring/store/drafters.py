"""Registration of drafters: the unit that has its own calibration."""

from __future__ import annotations

from sqlalchemy import Connection

from calib.calibration_key import CalibrationKey
from monitoring.store import audit, tables
from monitoring.store.database import current_time
from monitoring.store.drafter_rows import Drafter, all_states, lock, state_of
from monitoring.store.errors import ConflictError
from monitoring.store.fields import checked_slug, json_text
from monitoring.store.publications import DocumentOf, append
from monitoring.store.revisions import insert_identity
from monitoring.store.telemetry import add_counters
from monitoring.store.upserts import insert_or_skip

__all__ = ["Drafter", "get", "list_drafters", "register"]


def register(
    connection: Connection,
    name: str,
    key: CalibrationKey,
    *,
    actor: str,
    document: DocumentOf,
    request_id: str | None = None,
    valid_for_seconds: float | None = None,
) -> tuple[Drafter, bool]:
    """The drafter called ``name``, and whether this call created it.

    A new drafter gets revision 0 (identity) as champion and publication 1. The same key again
    changes nothing.

    Args:
        connection: a write transaction.
        name: slug ``[a-z0-9][a-z0-9._-]*``, at most 128 characters.
        key: calibration key; its gamma is the drafter's.
        actor: who asks.
        document: makes the bytes of publication 1.
        request_id: request that asked for it.
        valid_for_seconds: as in :func:`monitoring.store.publications.publish`.

    Raises:
        InvalidInputError: the name is no slug.
        ConflictError: the name is taken by another key.
    """
    values = {
        "name": checked_slug("drafter", name),
        "gamma": key.gamma,
        "key_digest": key.digest,
        "key": json_text(key.to_dict()),
        "version": 0,
        "created_at": current_time(connection),
        "champion": 0,
        "publication": 0,
    }
    created = insert_or_skip(connection, tables.drafters, values, ["name"])
    state = lock(connection, name)
    if state.drafter.key != key:
        raise ConflictError(
            "drafter", name, "it has another calibration key; register a new name for this one"
        )
    if not created:
        return state.drafter, False
    identity = insert_identity(connection, state.drafter, actor=actor)
    append(
        connection,
        state,
        identity,
        actor=actor,
        reason="registration",
        document=document,
        valid_for_seconds=valid_for_seconds,
    )
    add_counters(connection, name)
    audit.record(connection, actor, "register", name, {"key": key.digest}, request_id)
    return get(connection, name), True


def get(connection: Connection, name: str) -> Drafter:
    """The drafter called ``name``.

    Raises:
        NotFoundError: nobody registered it.
    """
    return state_of(connection, name).drafter


def list_drafters(connection: Connection) -> list[Drafter]:
    """Every drafter, by name."""
    return [state.drafter for state in all_states(connection)]
