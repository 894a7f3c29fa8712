"""One block, one row: retries and replays must not count twice."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from calib.record_schema import UNKNOWN_INTEGER, Flag
from calib.records import AcceptanceRecords


def duplicate_rows(records: AcceptanceRecords) -> NDArray[np.bool_]:
    """Mask [N] of the rows that repeat another row of the same (engine, request, step).

    Of each group the first row stays, and a row that is no replay stays before one that is,
    whatever their order. A row with an unknown engine, request or step cannot be told apart and
    is never a duplicate. Rank is no part of the key: every rank of an engine sees the same block.
    """
    duplicate = np.full(len(records), False)
    if records.engine is None or records.request is None or records.step is None:
        return duplicate
    replay = (records.flags & np.uint8(Flag.REPLAY)) != 0
    known = (
        (records.engine != None)  # noqa: E711 - elementwise on objects
        & (records.request != None)  # noqa: E711
        & (records.step != UNKNOWN_INTEGER)
    )
    kept: dict[tuple[str, str, int], int] = {}
    # Originals first: a replay that overtook its original must not displace it.
    order = np.concatenate([np.flatnonzero(known & ~replay), np.flatnonzero(known & replay)])
    keys = zip(
        records.engine[order].tolist(),
        records.request[order].tolist(),
        records.step[order].tolist(),
        strict=True,
    )
    for row, key in zip(order.tolist(), keys, strict=True):
        duplicate[row] = kept.setdefault(key, row) != row
    return duplicate


def drop_duplicates(records: AcceptanceRecords) -> AcceptanceRecords:
    """The records without the rows of :func:`duplicate_rows`, in their order."""
    return records.select(~duplicate_rows(records))
