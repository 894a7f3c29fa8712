"""What a fit reads of sketches by hour: rows that were folded, still stored or not.

The closed loop keeps, for every hour, labels by logit and neighbouring logits of all traffic it
trusted (:mod:`monitoring.hour_sketches`). They merge exactly and forget when read: the rows of an
hour weigh 2^(-age / half-life), ages counted from the newest hour. From them come the conditional
model, temperatures, the affine form and the survival model; served survival is projected on blocks
drawn from the neighbours (:mod:`calib.logit_chain`). What they do not hold: rows to judge on, so
that the gate alone judges; tenants, so that nobody's share is capped; neighbouring logits by
segment, so that segments are fitted on rows.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from calib.logit_chain import chained_logits
from calib.sketch_cells import LogitCells, forgetting_weights
from monitoring.hour_sketches import HOUR_SECONDS, HourSketches, OpenHour
from monitoring.recalibration_rows import PairParts

__all__ = ["SketchRows"]


@dataclass(frozen=True, eq=False)
class SketchRows:
    """Hours to fit on, and what their rows weigh.

    Attributes:
        gamma: draft positions.
        hours: oldest first; at least one to fit on.
        weights: of the rows of each hour, in (0, 1].
        half_life_hours: what the weights follow; None forgets nothing.
    """

    gamma: int
    hours: tuple[OpenHour, ...]
    weights: tuple[float, ...]
    half_life_hours: float | None = None

    @classmethod
    def of(
        cls,
        sketches: HourSketches,
        gamma: int,
        *,
        hours: int | None = None,
        half_life_hours: float | None = None,
        from_batch: int = 0,
    ) -> Self:
        """The newest hours.

        Args:
            sketches: of one drafter.
            gamma: its draft positions.
            hours: how many hours of the clock; all that are kept when None.
            half_life_hours: age at which a row counts half; None counts all alike.
            from_batch: leave out hours that began with an older stored batch.

        Raises:
            ConfigurationError: a half-life that is not positive.
        """
        found = sketches.newest(hours, from_batch=from_batch)
        newest = max((each.hour for each in found), default=0)  # a clock may have been set back
        weights = forgetting_weights(
            [float(newest - each.hour) for each in found], half_life_hours or math.inf
        )
        return cls(gamma, found, tuple(weights), half_life_hours)

    def __len__(self) -> int:
        return sum(each.rows for each in self.hours)

    def cells(self) -> LogitCells:
        """Conditional labels by logit, weighted."""
        return LogitCells.weighted([each.labels for each in self.hours], list(self.weights))

    def pairs(self) -> PairParts:
        """Neighbouring logits of every hour; even and odd hours are the folds."""
        sketches = [each.pairs for each in self.hours]
        return PairParts(sketches, list(self.weights), [each.hour % 2 for each in self.hours])

    def logits(self, rows: int) -> NDArray[np.float32]:
        """Logits of blocks drawn from the neighbours, fp32 [rows, γ]."""
        sketches, weights, _ = self.pairs()
        return chained_logits(sketches, rows, weights=weights)

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hexadecimal) of the sketches and their weights."""
        found = hashlib.sha256()
        for each, weight in zip(self.hours, self.weights, strict=True):
            found.update(f"{each.hour} {weight!r}\n".encode())
            found.update(each.labels.to_bytes() + each.pairs.to_bytes())
        return found.hexdigest()

    def to_dict(self) -> dict[str, Any]:
        """Hours, rows and weights, as plain JSON."""
        return {
            "half_life_hours": self.half_life_hours,
            "hours": [
                {"hour": _hour(each.hour), "rows": each.rows, "weight": float(f"{weight:.6g}")}
                for each, weight in zip(self.hours, self.weights, strict=True)
            ],
        }

    def window(self, last_batch: int) -> dict[str, Any]:
        """The same as the window of a fit.

        Args:
            last_batch: newest stored batch that was folded.
        """
        return {
            "rows": len(self),
            "usable": len(self),
            "first_batch": self.hours[0].first_batch if self.hours else None,
            "last_batch": last_batch,
            "digest": self.digest,
        }


def _hour(number: int) -> str:
    moment = datetime.fromtimestamp(number * HOUR_SECONDS, UTC)
    return moment.isoformat(timespec="minutes").replace("+00:00", "Z")
