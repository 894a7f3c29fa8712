"""A number per row that depends on the row and on nothing else, for splits and samples.

Rows of one prompt (or request) get one number, so that a split keeps them on one side. Without
names the raw logits stand in. Outcomes and places never enter: a fold that knew what was accepted
would bias what it is held out for, and an order-dependent one could not be merged.

Letters: N rows.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from calib.records import AcceptanceRecords

__all__ = ["cluster_hashes", "row_hashes"]

Hashes = NDArray[np.uint64]

# Multipliers and shifts of the 64-bit finaliser of SplitMix (Steele, Lea and Flood, 2014).
_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


def row_hashes(records: AcceptanceRecords) -> Hashes:
    """64-bit hash of each row's raw logits, [N]."""
    bits = (records.confidence_logits + np.float32(0.0)).view(np.uint32)  # -0.0 is 0.0
    state = np.zeros(len(bits), dtype=np.uint64)
    for column in bits.T:
        state = _mixed((state ^ column.astype(np.uint64)) + _STEP)
    return state


def cluster_hashes(records: AcceptanceRecords) -> Hashes:
    """64-bit hash of each row's prompt, else its request, else its logits; [N]."""
    column = records.prompt if records.prompt is not None else records.request
    if column is None:
        return row_hashes(records)
    listed = column.tolist()
    known: dict[str | None, int] = {
        name: int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")
        for name in dict.fromkeys(listed)
        if name is not None
    }
    known[None] = 0
    hashes = np.fromiter(map(known.__getitem__, listed), np.uint64, len(listed))
    if None in listed:
        unnamed = np.array([name is None for name in listed])
        hashes[unnamed] = row_hashes(records.select(unnamed))
    return hashes


def _mixed(value: Hashes) -> Hashes:
    value = (value ^ (value >> np.uint64(30))) * _FIRST
    value = (value ^ (value >> np.uint64(27))) * _SECOND
    return value ^ (value >> np.uint64(31))
