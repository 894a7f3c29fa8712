"""The temperatures of a drafter over its newest revisions."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import Connection

from monitoring.published_document import iso_time
from monitoring.store.revisions import aliases, list_revisions

__all__ = ["revision_history"]

_MOST: Final = 30  # a chart of more is a smear


def revision_history(connection: Connection, drafter: str) -> list[dict[str, Any]]:
    """The newest revisions as plain JSON, oldest first.

    Returns:
        ``revision``, ``created_at``, ``created_by``, ``method``, ``status``, ``alias``
        (``champion``, ``challenger``, ``previous`` or null) and ``temperatures`` of each.

    Raises:
        NotFoundError: no such drafter.
    """
    current = aliases(connection, drafter)
    named = {
        current.previous: "previous",
        current.challenger: "challenger",
        current.champion: "champion",
    }
    return [
        {
            "revision": revision.number,
            "created_at": iso_time(revision.created_at),
            "created_by": revision.created_by,
            "method": revision.calibration.method,
            "status": str(revision.calibration.status),
            "alias": named.get(revision.number),
            "temperatures": list(revision.calibration.temperatures),
        }
        for revision in reversed(list_revisions(connection, drafter, limit=_MOST))
    ]
