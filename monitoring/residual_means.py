"""Outcome less confidence, lately: how far off each stream is, beside the evidence that it is.

Evidence says whether calibration holds and not by how much. These are forgetful means of y − c
over observed conditional labels, of all traffic, by position and by segment, and of
R = (n − Σ S)/γ, survival's residual. A row counts half once ``HALF_LIFE_ROWS`` rows came after it,
so that they speak of now where a stream has run for long. They explain an alarm, never raise one.

Letters: N rows, γ draft positions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from monitoring.detectors.observations import Observations
from monitoring.detectors.residuals import survival_residual

__all__ = ["HALF_LIFE_ROWS", "ResidualMeans"]

HALF_LIFE_ROWS: Final = 2500

Values = NDArray[np.float32]
Sum = tuple[float, float]
"""Weighted sum of residuals, and of their weights."""

_NOTHING: Final[Sum] = (0.0, 0.0)


@dataclass(frozen=True, slots=True)
class ResidualMeans:
    """Weighted sums; plain numbers.

    Attributes:
        positions: of y − c, by position; empty before the first row.
        segments: of y − c over all positions, by segment name.
        survival: of R, by row.
    """

    positions: tuple[Sum, ...] = ()
    segments: Mapping[str, Sum] = field(default_factory=dict)
    survival: Sum = _NOTHING

    def add(
        self,
        observations: Observations,
        codes: NDArray[np.intp],  # [N] segment of each row, into ``names``
        names: Sequence[str],
        known: Mapping[str, Any],
        other: str,
    ) -> Self:
        """With more rows.

        Args:
            observations: the rows, with survival.
            codes: as above.
            names: of the segments; an empty name is left out.
            known: segments with a stream of their own.
            other: name of all others together.
        """
        rows = len(observations)
        if not rows:
            return self
        age = np.arange(rows - 1, -1, -1) / HALF_LIFE_ROWS
        # fp32, as the confidences: six digits are plenty, and fp64 would cost the fold thrice.
        weights = np.exp2(-age).astype(np.float32)
        decay = 0.5 ** (rows / HALF_LIFE_ROWS)
        residuals, observed = _residuals(observations)
        by_position = zip(
            (weights @ residuals).tolist(), (weights @ observed).tolist(), strict=True
        )
        sums = list(by_position)
        before = self.positions or (_NOTHING,) * len(sums)
        totals = [
            np.bincount(codes, weights * each.sum(axis=1), len(names))
            for each in (residuals, observed)
        ]
        segments = {name: _scaled(value, decay) for name, value in self.segments.items()}
        for name, residual, labels in zip(names, *(each.tolist() for each in totals), strict=True):
            if name:
                key = name if name in known else other
                segments[key] = _added(segments.get(key, _NOTHING), (residual, labels))
        survival = (float(weights @ survival_residual(observations)), float(weights.sum()))
        return type(self)(
            tuple(_added(_scaled(old, decay), new) for old, new in zip(before, sums, strict=True)),
            segments,
            _added(_scaled(self.survival, decay), survival),
        )

    @property
    def pooled(self) -> float | None:
        """Mean of y − c over all positions; None without labels."""
        return _mean(tuple(np.sum(self.positions, axis=0)) if self.positions else _NOTHING)

    @property
    def of_survival(self) -> float | None:
        """Mean of R; None without rows."""
        return _mean(self.survival)

    def of_position(self, position: int) -> float | None:
        """Mean of y − c at a position, from 1; None without labels."""
        return _mean(self.positions[position - 1] if self.positions else _NOTHING)

    def of_segment(self, name: str) -> float | None:
        """Mean of y − c in a segment; None without labels."""
        return _mean(self.segments.get(name, _NOTHING))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; :meth:`from_dict` restores the very same sums."""
        return {
            "positions": [list(each) for each in self.positions],
            "segments": {name: list(each) for name, each in self.segments.items()},
            "survival": list(self.survival),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """What :meth:`to_dict` described."""
        return cls(
            tuple((float(total), float(weight)) for total, weight in values["positions"]),
            {name: (float(a), float(b)) for name, (a, b) in values["segments"].items()},
            (float(values["survival"][0]), float(values["survival"][1])),
        )


def _residuals(observations: Observations) -> tuple[Values, Values]:
    """y − c where a label was observed, else 0, and 1 where one was, [N, γ]."""
    index = np.arange(observations.gamma)
    accepted = observations.accepted[:, None]
    labels = (index < accepted).astype(np.float32)
    verified = observations.verified[:, None]
    observed = ((index <= accepted) & (index < verified)).astype(np.float32)
    labels -= observations.conditional
    labels *= observed
    return labels, observed


def _added(one: Sum, other: Sum) -> Sum:
    return one[0] + other[0], one[1] + other[1]


def _scaled(value: Sum, factor: float) -> Sum:
    return value[0] * factor, value[1] * factor


def _mean(value: Sum) -> float | None:
    return float(value[0] / value[1]) if value[1] > 0.0 else None
