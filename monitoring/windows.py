"""The newest stored rows of a drafter: what fits and reports are made from."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from calib.duplicates import duplicate_rows
from calib.errors import ConfigurationError
from calib.records import AcceptanceRecords
from monitoring.ingest import records_of
from monitoring.store.database import Database
from monitoring.store.drafters import get
from monitoring.store.telemetry import Batch, newest_batches

__all__ = ["DEFAULT_WINDOW_ROWS", "Window", "records_digest", "window_of"]

# The default of the service's settings: about 20 seconds of one core and 100 MB for a fit.
DEFAULT_WINDOW_ROWS: Final = 200_000


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """Rows of the newest batches, in the order in which they were stored.

    Attributes:
        records: rows without duplicates, the ones that no fit may use included.
        first_batch: id of the oldest batch read; None without batches.
        last_batch: id of the newest batch read; None without batches.
        batches: how many were read.
        duplicates_dropped: rows that repeated one of another batch.
        older_dropped: rows of the oldest batches beyond the rows asked for.
    """

    records: AcceptanceRecords
    first_batch: int | None
    last_batch: int | None
    batches: int
    duplicates_dropped: int
    older_dropped: int

    def to_dict(self) -> dict[str, Any]:
        """What was read, as plain JSON values."""
        return {
            "rows": len(self.records),
            "usable": int(self.records.usable().sum()),
            "excluded": self.records.exclusion_counts(),
            "first_batch": self.first_batch,
            "last_batch": self.last_batch,
            "batches": self.batches,
            "duplicates_dropped": self.duplicates_dropped,
            "older_dropped": self.older_dropped,
            "digest": records_digest(self.records),
        }


def window_of(
    database: Database,
    drafter: str,
    *,
    rows: int,
    after_batch: int | None = None,
    through_batch: int | None = None,
) -> Window:
    """The newest ``rows`` rows; refuses nothing, an empty window included.

    Of rows with one (engine, request, step) the first one stays, as within a batch. A window that
    names its first and last batch and its rows is the same rows again, as :func:`records_digest`
    shows, for as long as retention keeps them.

    Args:
        database: where batches are stored.
        drafter: whose rows.
        rows: how many at most, at least 1.
        after_batch: leave out batches up to this id; None takes all.
        through_batch: leave out batches beyond this id; None takes all.

    Raises:
        ConfigurationError: ``rows`` is no positive number.
        NotFoundError: no such drafter.
        FormatError: a stored batch that cannot be read.
        StoreError: the database failed.
    """
    if rows < 1:
        raise ConfigurationError("rows", rows, "give the rows of a window, 1 or more")
    with database.read() as connection:
        gamma = get(connection, drafter).gamma
        batches = newest_batches(connection, drafter, rows=rows, through=through_batch)
    if after_batch is not None:
        batches = [batch for batch in batches if batch.id > after_batch]
    if not batches:
        return Window(AcceptanceRecords.empty(gamma), None, None, 0, 0, 0)
    return _joined(batches, rows)


def records_digest(records: AcceptanceRecords) -> str:
    """SHA-256 (hexadecimal) of the content of rows, in their order.

    Equal digests mean equal columns, so that a fit can be made again and be known to be the same.
    """
    digest = hashlib.sha256()
    for name, values in sorted(records.columns().items()):
        digest.update(f"{name} {values.dtype.str} {values.shape}\n".encode())
        if values.dtype == np.object_:
            texts = json.dumps(values.tolist(), ensure_ascii=False, separators=(",", ":"))
            digest.update(texts.encode("utf-8", "surrogatepass"))
        else:
            digest.update(np.ascontiguousarray(values).tobytes())
    return digest.hexdigest()


def _joined(batches: list[Batch], rows: int) -> Window:
    records = AcceptanceRecords.concatenate([records_of(batch.payload) for batch in batches])
    duplicates = duplicate_rows(records)
    kept = records.select(~duplicates)
    older = max(0, len(kept) - rows)
    return Window(
        records=kept.select(slice(older, None)),
        first_batch=batches[0].id,
        last_batch=batches[-1].id,
        batches=len(batches),
        duplicates_dropped=int(duplicates.sum()),
        older_dropped=older,
    )
