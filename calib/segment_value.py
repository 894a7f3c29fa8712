"""What each segment of the traffic gains from calibration, in throughput of the whole.

Requests of all segments share steps, so a segment has no throughput of its own. Its value is what
all traffic would lose if this segment alone went back to raw confidence; beside it stands how far
the forecast of its own accepted tokens is off. Values of segments need not add up.

Letters: N rows, γ positions, ℓ verified length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib.errors import RecordError
from calib.records import AcceptanceRecords
from calib.regret import ThroughputReplay
from calib.segment_tags import SegmentBuckets, SegmentKey, leaf_segments

__all__ = ["MOST_SEGMENTS", "SegmentValue", "segment_values"]

MOST_SEGMENTS = 24
_SEGMENT_TAGS = ("acceptance_rule", "sampling_temperature", "domain", "adapter")


@dataclass(frozen=True, slots=True)
class SegmentValue:
    """One segment.

    Attributes:
        tags: its buckets.
        rows: replayed rows.
        verified: drafted tokens verified per row.
        accepted: of these, accepted per row.
        forecast: accepted per row as the calibration forecast it.
        raw_forecast: as raw confidence forecast it for the same tokens.
        value: 1 − Θ with this segment raw / Θ, a share of the throughput of all traffic.
        value_low: lower end of its interval; None without one.
        value_high: upper end of its interval; None without one.
    """

    tags: dict[str, str]
    rows: int
    verified: float
    accepted: float
    forecast: float
    raw_forecast: float
    value: float
    value_low: float | None
    value_high: float | None

    @property
    def wasted(self) -> float:
        """Verified tokens per row that were not accepted."""
        return self.verified - self.accepted

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {**asdict(self), "wasted": self.wasted}


def segment_values(
    replay: ThroughputReplay,
    survival: ArrayLike,  # [N, γ] of the calibration
    raw: ArrayLike,  # [N, γ] of raw confidence
    *,
    tags: Sequence[str] | None = None,
    most: int = MOST_SEGMENTS,
    replicates: int = 300,
    seed: int = 0,
) -> list[SegmentValue]:
    """Value of calibration by segment, the most valuable first.

    Args:
        replay: the log at one load on one step curve.
        survival: what is served, by row.
        raw: what would be without.
        tags: that tell segments apart; those the log knows of rule, temperature, domain and adapter
            when None.
        most: segments that are looked at, those of most rows.
        replicates: of the bootstrap.
        seed: of the bootstrap.

    Raises:
        RecordError: survivals of another shape, or outside [0, 1].
    """
    records = replay.records
    mine, theirs = np.asarray(survival), np.asarray(raw)
    if mine.shape != theirs.shape:
        raise RecordError("raw", theirs.shape, f"give {mine.shape}")
    whole = replay.theta(mine)
    lengths = replay.lengths(mine)
    found = []
    for key, member in _segments(records, tags)[:most]:
        rows = np.flatnonzero(member & (lengths >= 0))
        if not len(rows):
            continue
        without = replay.theta(np.where(member[:, None], theirs, mine))
        report = replay.regret(without, whole, replicates=replicates, seed=seed)
        verified = lengths[rows]
        within = np.arange(records.gamma) < verified[:, None]
        found.append(
            SegmentValue(
                tags=key.to_dict(),
                rows=len(rows),
                verified=float(verified.mean()),
                accepted=float(replay.outcomes.accepted(rows, verified).mean()),
                forecast=float(np.where(within, mine[rows], 0.0).sum(axis=1).mean()),
                raw_forecast=float(np.where(within, theirs[rows], 0.0).sum(axis=1).mean()),
                value=report.loss,
                value_low=report.loss_low,
                value_high=report.loss_high,
            )
        )
    return sorted(found, key=lambda each: -each.value)


def _segments(
    records: AcceptanceRecords, tags: Sequence[str] | None
) -> list[tuple[SegmentKey, NDArray[np.bool_]]]:
    """Segments and their rows, the largest first."""
    known = tuple(
        tag
        for tag in (_SEGMENT_TAGS if tags is None else tags)
        if getattr(records, tag) is not None
    )
    codes, keys = leaf_segments(records, SegmentBuckets(), known)
    largest = np.argsort(-np.bincount(codes, minlength=len(keys)), kind="stable")
    return [(keys[code], codes == code) for code in largest.tolist()]
