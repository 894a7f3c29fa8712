"""Signs that telemetry is not what it claims to be, though every row keeps the contract."""

from __future__ import annotations

from enum import StrEnum

import numpy as np
from numpy.typing import ArrayLike

from calib.records import AcceptanceRecords

# Fewer rows than this prove nothing: at a rate of 0.95, 100 accepts in a row have chance 0.6 %.
MINIMUM_EVIDENCE = 100


class QualityFlag(StrEnum):
    """A suspicion about a batch. It holds recalibration; it never rejects rows."""

    LOOKS_LIKE_PROBABILITIES = "looks_like_probabilities"
    FIRST_POSITION_ALWAYS_ACCEPTED = "first_position_always_accepted"


def looks_like_probabilities(values: ArrayLike) -> bool:
    """Whether values sent as logits are probabilities, by all appearances.

    True for at least 100 known values that all lie within [0, 1]. Real logits of a useful head
    fall on both sides of 0. NaN is unknown and not counted.
    """
    sent = np.asarray(values)
    numbers = (sent if sent.dtype.kind == "f" else sent.astype(np.float64)).ravel()
    if numbers.size < MINIMUM_EVIDENCE:
        return False
    # Two reductions that skip NaN, and for real logits nothing more: no copy of a long log.
    if np.fmin.reduce(numbers) < 0.0 or np.fmax.reduce(numbers) > 1.0:
        return False
    return bool(np.count_nonzero(~np.isnan(numbers)) >= MINIMUM_EVIDENCE)


def first_position_always_accepted(records: AcceptanceRecords) -> bool:
    """Whether position 1 was accepted in every one of at least 100 usable rows that checked it.

    A rate of exactly 1 means that slot 0 is the anchor (see
    :func:`calib.engine_conventions.drop_anchor_slot`) or that acceptance was forced.
    """
    checked = records.usable() & (records.verified >= 1)
    accepted = records.accepted[checked] >= 1
    return bool(accepted.size >= MINIMUM_EVIDENCE and accepted.all())


def quality_flags(records: AcceptanceRecords) -> tuple[QualityFlag, ...]:
    """Every suspicion about these records; empty when there is none."""
    found = []
    if looks_like_probabilities(records.confidence_logits):
        found.append(QualityFlag.LOOKS_LIKE_PROBABILITIES)
    if first_position_always_accepted(records):
        found.append(QualityFlag.FIRST_POSITION_ALWAYS_ACCEPTED)
    return tuple(found)
