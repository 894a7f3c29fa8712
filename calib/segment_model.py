"""Conditional model of every segment: slopes and intercepts by segment and position.

:mod:`calib.segment_fitting` makes it and :mod:`calib.segment_projection` turns it into what engines
can apply. Here it predicts rows by their tags, for monitors and evaluations.

Letters: N rows, γ draft positions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from calib.records import AcceptanceRecords
from calib.segment_tags import POOL, SegmentBuckets, SegmentKey, SegmentLevels, leaf_segments
from calib.survival_model import Hazard, SurvivalModel

__all__ = ["LevelEvidence", "SegmentFit", "SegmentModel"]

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class SegmentFit:
    """Model numbers of one segment.

    Attributes:
        key: the segment.
        parent: what it was pulled to.
        rows: [γ] observed labels behind each position, its own only.
        slopes: s_k of c_k = σ(s_k z_k + b_k).
        intercepts: b_k.
    """

    key: SegmentKey
    parent: SegmentKey
    rows: tuple[int, ...]
    slopes: tuple[float, ...]
    intercepts: tuple[float, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "tags": self.key.to_dict(),
            "parent": self.parent.to_dict(),
            "rows": list(self.rows),
            "slopes": list(self.slopes),
            "intercepts": list(self.intercepts),
        }


@dataclass(frozen=True, slots=True)
class LevelEvidence:
    """What cross-validation said about one level.

    Attributes:
        tags: of the level.
        segments: fitted there.
        strengths: candidate with the largest weight; None stands for infinity.
        weight: its weight in the average, 0 … 1.
        gain: held-out log loss that the level saves over its parents, nats over all rows; with the
            best candidate, 0 where that is no level at all.
    """

    tags: tuple[str, ...]
    segments: int
    strengths: tuple[float | None, float | None]
    weight: float
    gain: float


@dataclass(frozen=True, slots=True)
class SegmentModel:
    """Conditional model of every segment, the pool among them.

    Attributes:
        gamma: draft positions.
        buckets: edges rows were bucketed with.
        levels: which segments are told apart.
        segments: by key; the pool is there.
        seen: buckets of each tag that some row had.
        evidence: of each level.
    """

    gamma: int
    buckets: SegmentBuckets
    levels: SegmentLevels
    segments: Mapping[SegmentKey, SegmentFit]
    seen: Mapping[str, tuple[str, ...]]
    evidence: tuple[LevelEvidence, ...]

    def resolve(self, key: SegmentKey) -> SegmentFit:
        """The finest fitted segment that holds a request, the pool without one."""
        for candidate in self.levels.candidates(key):
            found = self.segments.get(candidate)
            if found is not None:
                return found
        return self.segments[POOL]

    def numbers(self, records: AcceptanceRecords) -> tuple[Floats, Floats]:
        """Slopes and intercepts of every row, [N, γ] each."""
        codes, keys = leaf_segments(records, self.buckets, self.levels.tags)
        fits = [self.resolve(key) for key in keys]
        shape = (len(fits), self.gamma)
        slopes = np.array([fit.slopes for fit in fits]).reshape(shape)
        intercepts = np.array([fit.intercepts for fit in fits]).reshape(shape)
        return slopes[codes], intercepts[codes]

    def conditional(self, records: AcceptanceRecords) -> NDArray[np.float32]:
        """Conditional confidences of rows by their segments, fp32 [N, γ]."""
        slopes, intercepts = self.numbers(records)
        odds = slopes * records.confidence_logits + intercepts
        return np.asarray(expit(odds), dtype=np.float32)

    def survival(self, records: AcceptanceRecords) -> NDArray[np.float32]:
        """Product of the conditionals, fp32 [N, γ]."""
        return np.cumprod(self.conditional(records), axis=1, dtype=np.float32)

    def survival_model(self, key: SegmentKey, pooled: SurvivalModel | None) -> SurvivalModel:
        """Survival model of a segment: its conditionals, and what the next logit reveals.

        The reveal is fitted on all rows, and carried over as what it adds to the log-odds of the
        pool's conditional: it belongs to the drafter, and a segment has few pairs of its own.

        Args:
            key: a fitted segment.
            pooled: survival model of all rows; None is the plain product.

        Raises:
            KeyError: no such segment.
        """
        fit = self.segments[key]
        if pooled is None:
            odds = zip(fit.intercepts[:-1], fit.slopes[:-1], fit.rows[:-1], strict=True)
            hazards = tuple(
                Hazard(index + 1, intercept, slope, 0.0, float(rows))
                for index, (intercept, slope, rows) in enumerate(odds)
            )
        else:
            hazards = tuple(
                replace(
                    hazard,
                    intercept=hazard.intercept + (fit.intercepts[place] - pooled.intercepts[place]),
                    slope=hazard.slope + (fit.slopes[place] - pooled.slopes[place]),
                )
                for place, hazard in enumerate(pooled.hazards)
            )
        return SurvivalModel(fit.slopes, fit.intercepts, hazards, fit.rows)

    def to_dict(self) -> dict[str, Any]:
        """Evidence as plain JSON values; the served numbers are the table's."""
        return {
            "levels": [
                {**asdict(level), "tags": list(level.tags), "strengths": list(level.strengths)}
                for level in self.evidence
            ],
            "segments": [fit.to_dict() for fit in self.segments.values()],
        }
