"""One block, one row: retries and replays must not count twice."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from calib.coded_texts import CodedTexts
from calib.record_schema import UNKNOWN_INTEGER, Flag
from calib.records import AcceptanceRecords

# Any odd numbers with their bits spread would do: a product with one of them loses no bit.
_ODD_FACTORS = tuple(
    np.uint64(factor)
    for factor in (0x9E37_79B9_7F4A_7C15, 0xC2B2_AE3D_27D4_EB4F, 0x1656_67B1_9E37_79F9)
)


def duplicate_rows(records: AcceptanceRecords) -> NDArray[np.bool_]:
    """Mask [N] of the rows that repeat another row of the same (engine, request, step).

    Of each group the first row stays, and a row that is no replay stays before one that is,
    whatever their order. A row with an unknown engine, request or step cannot be told apart and
    is never a duplicate. Rank is no part of the key: every rank of an engine sees the same block.
    """
    duplicate = np.full(len(records), False)
    engine, request, step = records.coded("engine"), records.coded("request"), records.step
    if engine is None or request is None or step is None:
        return duplicate
    replay = (records.flags & np.uint8(Flag.REPLAY)) != 0
    known = (engine.codes >= 0) & (request.codes >= 0) & (step != UNKNOWN_INTEGER)
    known &= _perhaps_repeated(engine, request, step)
    kept: dict[tuple[int, int, int], int] = {}
    # Originals first: a replay that overtook its original must not displace it.
    order = np.concatenate([np.flatnonzero(known & ~replay), np.flatnonzero(known & replay)])
    keys = zip(
        engine.codes[order].tolist(),
        request.codes[order].tolist(),
        step[order].tolist(),
        strict=True,
    )
    for row, key in zip(order.tolist(), keys, strict=True):
        duplicate[row] = kept.setdefault(key, row) != row
    return duplicate


def _perhaps_repeated(
    engine: CodedTexts, request: CodedTexts, step: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Mask [N] of rows whose key may occur twice: its 64-bit mix does, which is rare by chance."""
    mix = np.zeros(len(step), dtype=np.uint64)
    for codes, factor in ((engine.codes, _ODD_FACTORS[0]), (request.codes, _ODD_FACTORS[1])):
        mix += codes.astype(np.uint64) * factor
        mix ^= mix >> np.uint64(29)
    mix += step.view(np.uint64) * _ODD_FACTORS[2]
    in_order = np.sort(mix)
    repeated = in_order[1:][in_order[1:] == in_order[:-1]]
    if not repeated.size:
        return np.full(len(step), False)
    found: NDArray[np.bool_] = np.isin(mix, repeated)
    return found


def drop_duplicates(records: AcceptanceRecords) -> AcceptanceRecords:
    """The records without the rows of :func:`duplicate_rows`, in their order."""
    return records.select(~duplicate_rows(records))
