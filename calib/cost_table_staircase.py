"""vLLM's cost tables: a drafting time by requests and a verification time by tokens.

An engine that replays captured graphs pads every batch to the next captured size, so its step time
is a staircase; above the largest graph nothing pads and time is continuous. vLLM measures both
parts when it starts, takes the running maximum of each curve, and searches

    argmax over budgets of  τ / (draft(R) + verify(B)).

A curve is read in this order: the value of the next measured size at or above; above
``graph_limit``, linear between the points that lie above it themselves; beyond the last point,
along the last segment.

>>> table = StaircaseCostTable(((1, 2.0),), ((8, 10.0), (16, 12.0), (32, 20.0)), graph_limit=16)
>>> [round(float(table.step_seconds(tokens, 1)), 6) for tokens in (8, 9, 16, 17, 40)]
[0.012, 0.014, 0.014, 0.022, 0.026]
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib.cost_table import CostTable
from calib.errors import ScheduleError

__all__ = ["Curve", "StaircaseCostTable"]

Floats = NDArray[np.float64]
Curve = tuple[tuple[int, float], ...]  # (size, milliseconds), sizes strictly increasing

_LARGEST_SIZE = 2**31 - 1
_SHORTEST_VERIFY_MS = 1e-6  # the engine's own floor


@dataclass(frozen=True)
class StaircaseCostTable(CostTable):
    """Step time = draft(R) + verify(B), in the engine's own arithmetic.

    Attributes:
        draft_curve: (requests, milliseconds) of drafting; a single (1, 0.0) where it is unknown.
        verify_curve: (tokens, milliseconds) of verification.
        graph_limit: largest captured size; 0 where everything pads. As in the engine it holds for
            both curves.

    Raises:
        ScheduleError: an empty curve, sizes that are not strictly increasing counts, times that
            are negative or not finite, or a negative limit.
    """

    draft_curve: Curve
    verify_curve: Curve
    graph_limit: int = 0

    def __post_init__(self) -> None:
        _check_curve("draft_curve", self.draft_curve)
        _check_curve("verify_curve", self.verify_curve)
        if not 0 <= self.graph_limit <= _LARGEST_SIZE:
            raise ScheduleError("cudagraph_limit", self.graph_limit, "give a size of 0 or more")

    def step_seconds(
        self,
        batch_tokens: ArrayLike,  # [...] B
        requests: int,
    ) -> Floats:
        """Seconds of one step; shape of ``batch_tokens``, positive."""
        return self._milliseconds(batch_tokens, requests) / 1000.0

    def throughput(
        self,
        tau: ArrayLike,  # [...] expected accepted tokens, bonus included
        batch_tokens: ArrayLike,  # [...] B
        requests: int,
    ) -> Floats:
        """Θ in tokens per second, from one division as the engine's, so that ties fall alike."""
        theta: Floats = np.asarray(tau) / self._milliseconds(batch_tokens, requests) * 1000.0
        return theta

    def _milliseconds(self, batch_tokens: ArrayLike, requests: int) -> Floats:
        drafting = np.maximum(_read(self._draft, np.float64(requests), self.graph_limit), 0.0)
        tokens = np.asarray(batch_tokens, dtype=np.float64)
        verifying = np.maximum(_read(self._verify, tokens, self.graph_limit), _SHORTEST_VERIFY_MS)
        return np.asarray(drafting + verifying)

    @cached_property
    def _draft(self) -> tuple[Floats, Floats]:
        return _rising(self.draft_curve)

    @cached_property
    def _verify(self) -> tuple[Floats, Floats]:
        return _rising(self.verify_curve)


def _rising(curve: Curve) -> tuple[Floats, Floats]:
    sizes, times = np.asarray(curve, dtype=np.float64).T
    return sizes, np.maximum.accumulate(times)


def _read(curve: tuple[Floats, Floats], at: ArrayLike, limit: int) -> Floats:
    sizes, times = curve
    values = np.asarray(at, dtype=np.float64)
    found = times[np.minimum(np.searchsorted(sizes, values, side="left"), len(sizes) - 1)]
    above = sizes > limit
    if limit and above.any():
        smooth = np.interp(values, sizes[above], times[above])
        found = np.where(values > limit, smooth, found)
    if len(sizes) > 1:
        slope = (times[-1] - times[-2]) / (sizes[-1] - sizes[-2])
        beyond = times[-1] + slope * (values - sizes[-1])
        found = np.where(values > sizes[-1], beyond, found)
    return np.asarray(found)


def _check_curve(name: str, curve: Curve) -> None:
    if not curve:
        raise ScheduleError(name, curve, "give at least one measurement")
    sizes = [size for size, _ in curve]
    in_range = sizes[0] >= 1 and sizes[-1] <= _LARGEST_SIZE
    if not in_range or any(after <= before for before, after in pairwise(sizes)):
        remedy = f"give strictly increasing sizes from 1 to {_LARGEST_SIZE:,}"
        raise ScheduleError(name, tuple(sizes), remedy)
    for _, milliseconds in curve:
        if not 0.0 <= milliseconds < math.inf:
            raise ScheduleError(name, milliseconds, "give finite milliseconds of 0 or more")
