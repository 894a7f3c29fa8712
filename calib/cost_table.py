"""How long one verification step takes: the step curve SPS(B) of an engine (paper §3.2.2).

B is the number of tokens a step verifies, B = Σ_r (1 + ℓ_r), anchors included; R is the number of
requests. Three tables behind one interface:

* :class:`FlatCostTable`, SGLang's ``SpsCostTable``: steps per second of the largest probe not
  above B, of the first probe below it;
* :class:`AdditiveCostTable`, SGLang's ``SpsAdditiveCostTable``: bias + α(R) + θ(B) seconds, linear
  between probes and constant outside them;
* :class:`MeasuredCostTable`, step times at measured B: linear between them, constant below the
  first, along the last segment above the last.

Files are read and written by :mod:`calib.cost_table_files`; made-up curves for studies come from
:mod:`calib.cost_table_shapes`.
"""

from __future__ import annotations

import bisect
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib.errors import ScheduleError

_LARGEST_COUNT = 2**31 - 1


class CostTable(ABC):
    """Step time as a function of verified tokens B and requests R."""

    @abstractmethod
    def step_seconds(
        self,
        batch_tokens: ArrayLike,  # [...] B
        requests: int,
    ) -> NDArray[np.float64]:
        """Seconds of one step; shape of ``batch_tokens``, positive."""

    def steps_per_second(
        self,
        batch_tokens: ArrayLike,  # [...] B
        requests: int,
    ) -> NDArray[np.float64]:
        """SPS(B); shape of ``batch_tokens``, positive."""
        return 1.0 / self.step_seconds(batch_tokens, requests)

    def throughput(
        self,
        tau: ArrayLike,  # [...] expected accepted tokens, bonus included
        batch_tokens: ArrayLike,  # [...] B
        requests: int,
    ) -> NDArray[np.float64]:
        """Θ = τ · SPS(B) in tokens per second; shape of ``batch_tokens``."""
        theta: NDArray[np.float64] = np.asarray(tau) / self.step_seconds(batch_tokens, requests)
        return theta


@dataclass(frozen=True)
class FlatCostTable(CostTable):
    """SGLang's flat table: a staircase over probes; R plays no part.

    Attributes:
        probes: B of each probe, strictly increasing, at least 1.
        sps: steps per second at each probe, positive and finite.
        max_batch_tokens: largest B the engine was set up for, at least the last probe; it does
            not change a lookup.

    Raises:
        ScheduleError: attributes that break these rules.
    """

    probes: tuple[int, ...]
    sps: tuple[float, ...]
    max_batch_tokens: int

    def __post_init__(self) -> None:
        _check_probes("sample_batch_tokens", self.probes, "sample_steps_per_sec", self.sps)
        for sps in self.sps:
            if not 0.0 < sps < math.inf:
                raise ScheduleError("sample_steps_per_sec", sps, "give positive finite rates")
        if self.max_batch_tokens < self.probes[-1]:
            remedy = f"give at least the largest probe, {self.probes[-1]}"
            raise ScheduleError("max_batch_tokens", self.max_batch_tokens, remedy)

    @cached_property
    def _arrays(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        return np.asarray(self.probes, dtype=np.int64), np.asarray(self.sps, dtype=np.float64)

    def step_seconds(
        self,
        batch_tokens: ArrayLike,  # [...] B
        requests: int,
    ) -> NDArray[np.float64]:
        """Seconds of one step; shape of ``batch_tokens``, positive."""
        return 1.0 / self.steps_per_second(batch_tokens, requests)

    def steps_per_second(
        self,
        batch_tokens: ArrayLike,  # [...] B
        requests: int,
    ) -> NDArray[np.float64]:
        """SPS of the largest probe not above B; shape of ``batch_tokens``, positive."""
        probes, rates = self._arrays
        index = np.searchsorted(probes, np.asarray(batch_tokens), side="right") - 1
        sps: NDArray[np.float64] = rates[np.maximum(index, 0)]
        return sps

    def throughput(
        self,
        tau: ArrayLike,  # [...] expected accepted tokens, bonus included
        batch_tokens: ArrayLike,  # [...] B
        requests: int,
    ) -> NDArray[np.float64]:
        """Θ = τ · SPS(B) in tokens per second; shape of ``batch_tokens``."""
        # The engine multiplies here and divides for additive tables: ties must round alike.
        theta: NDArray[np.float64] = np.asarray(tau) * self.steps_per_second(batch_tokens, requests)
        return theta


@dataclass(frozen=True)
class AdditiveCostTable(CostTable):
    """SGLang's additive table: step time = bias + α(R) + θ(B).

    Attributes:
        bias_seconds: constant part, positive.
        request_probes: R of each α, strictly increasing, at least 1.
        alpha_seconds: α at each probe, finite; may be negative as a regression leaves it.
        token_probes: B of each θ, strictly increasing, at least 1.
        theta_seconds: θ at each probe, finite; may be negative.

    Raises:
        ScheduleError: attributes that break these rules, or a step time of 0 or less at some
            pair of probes.
    """

    bias_seconds: float
    request_probes: tuple[int, ...]
    alpha_seconds: tuple[float, ...]
    token_probes: tuple[int, ...]
    theta_seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        _check_probes("bs_probes", self.request_probes, "alpha_seconds", self.alpha_seconds)
        _check_probes("m_probes", self.token_probes, "theta_seconds", self.theta_seconds)
        for name in ("alpha_seconds", "theta_seconds"):
            for value in getattr(self, name):
                if not math.isfinite(value):
                    raise ScheduleError(name, value, "give finite seconds")
        if not 0.0 < self.bias_seconds < math.inf:
            raise ScheduleError("bias_seconds", self.bias_seconds, "give positive seconds")
        shortest = self.bias_seconds + min(self.alpha_seconds) + min(self.theta_seconds)
        if shortest <= 0.0:
            remedy = "give parts that add up to a positive step time at every pair of probes"
            raise ScheduleError("bias_seconds", shortest, remedy)

    def step_seconds(
        self,
        batch_tokens: ArrayLike,  # [...] B
        requests: int,
    ) -> NDArray[np.float64]:
        """Seconds of one step; shape of ``batch_tokens``, positive."""
        alpha = _interpolate_one(self.request_probes, self.alpha_seconds, float(requests))
        return (self.bias_seconds + alpha) + self._theta(batch_tokens)

    def _theta(self, batch_tokens: ArrayLike) -> NDArray[np.float64]:
        probes, theta = self._arrays
        tokens = np.clip(np.asarray(batch_tokens, dtype=np.float64), probes[0], probes[-1])
        high = np.minimum(np.searchsorted(probes, tokens, side="right"), len(probes) - 1)
        low = np.maximum(high - 1, 0)
        # In this order, as the engine computes it, so that ties round alike.
        fraction = (tokens - probes[low]) / np.maximum(probes[high] - probes[low], 1e-9)
        seconds: NDArray[np.float64] = theta[low] + fraction * (theta[high] - theta[low])
        return seconds

    @cached_property
    def _arrays(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return (
            np.asarray(self.token_probes, dtype=np.float64),
            np.asarray(self.theta_seconds, dtype=np.float64),
        )


@dataclass(frozen=True)
class MeasuredCostTable(CostTable):
    """Measured step times, linear in between; R plays no part.

    Above the last point the last segment goes on, never falling: a table that stayed flat there
    would offer the scheduler free tokens.

    Attributes:
        batch_tokens: B of each measurement, strictly increasing, at least 1.
        seconds: step time at each, positive and finite.

    Raises:
        ScheduleError: attributes that break these rules.
    """

    batch_tokens: tuple[int, ...]
    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        _check_probes("batch_tokens", self.batch_tokens, "step_seconds", self.seconds)
        for value in self.seconds:
            if not 0.0 < value < math.inf:
                raise ScheduleError("step_seconds", value, "give positive finite step times")

    @cached_property
    def _arrays(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return (
            np.asarray(self.batch_tokens, dtype=np.float64),
            np.asarray(self.seconds, dtype=np.float64),
        )

    @cached_property
    def _last_slope(self) -> float:
        if len(self.batch_tokens) < 2:
            return 0.0
        rise = self.seconds[-1] - self.seconds[-2]
        return max(0.0, rise / (self.batch_tokens[-1] - self.batch_tokens[-2]))

    def step_seconds(
        self,
        batch_tokens: ArrayLike,  # [...] B
        requests: int,
    ) -> NDArray[np.float64]:
        """Seconds of one step; shape of ``batch_tokens``, positive."""
        points, seconds = self._arrays
        tokens = np.asarray(batch_tokens, dtype=np.float64)
        beyond = np.maximum(tokens - points[-1], 0.0)
        time: NDArray[np.float64] = np.interp(tokens, points, seconds) + self._last_slope * beyond
        return time


def _interpolate_one(probes: Sequence[int], values: Sequence[float], at: float) -> float:
    if at <= probes[0]:
        return values[0]
    if at >= probes[-1]:
        return values[-1]
    high = bisect.bisect_right(probes, at)
    low = high - 1
    fraction = (at - probes[low]) / (probes[high] - probes[low])
    return values[low] + fraction * (values[high] - values[low])


def _check_probes(
    name: str, probes: Sequence[int], values_name: str, values: Sequence[float]
) -> None:
    if not probes:
        raise ScheduleError(name, probes, "give at least one probe")
    in_range = probes[0] >= 1 and probes[-1] <= _LARGEST_COUNT
    if not in_range or any(after <= before for before, after in pairwise(probes)):
        remedy = f"give strictly increasing counts from 1 to {_LARGEST_COUNT:,}"
        raise ScheduleError(name, tuple(probes), remedy)
    if len(probes) != len(values):
        raise ScheduleError(values_name, len(values), f"give one value per probe: {len(probes)}")
