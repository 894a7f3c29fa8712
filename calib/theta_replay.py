"""What a replay found: throughput of a log under one schedule, and its loss against another.

Letters: S steps.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calib.replay_schedule import Policy

__all__ = ["RegretReport", "ScheduleKind", "ThetaReplay"]

Floats = NDArray[np.float64]

ScheduleKind = Policy | str  # how steps were scheduled: a policy, or lengths given by hand


@dataclass(frozen=True, slots=True)
class ThetaReplay:
    """Throughput of a log under one calibration.

    Attributes:
        policy: how steps were scheduled; ``"given"`` where lengths were.
        steps: S.
        rows: rows of these steps.
        left_out: rows of the log that could not be replayed.
        tau: τ, tokens per step, bonus included.
        predicted_tau: τ as the calibration forecast it; None where it forecast nothing.
        theta: Θ, tokens per second.
        predicted_theta: Θ as the calibration forecast it; None likewise.
        verified: drafted tokens verified per row, 0 … γ.
        wasted: verified tokens per row that were not accepted.
        modelled_share: share of the tokens that rests on a model alone, not on observations.
        tokens: [S] tokens of each step.
        seconds: [S] seconds of each step.
    """

    policy: ScheduleKind
    steps: int
    rows: int
    left_out: int
    tau: float
    predicted_tau: float | None
    theta: float
    predicted_theta: float | None
    verified: float
    wasted: float
    modelled_share: float
    tokens: Floats = field(repr=False, compare=False)
    seconds: Floats = field(repr=False, compare=False)

    @property
    def forecast_bias(self) -> float | None:
        """Predicted Θ over realised Θ, less 1: by how much capacity planning is misled."""
        return None if self.predicted_theta is None else self.predicted_theta / self.theta - 1.0

    @property
    def anticipating(self) -> bool:
        """Whether no engine could schedule so without changing what it emits."""
        return self.policy == "unconstrained"

    def to_dict(self) -> dict[str, Any]:
        """The figures as plain JSON values, without the steps one by one."""
        figures = asdict(self)
        for name in ("tokens", "seconds"):
            del figures[name]
        return {**figures, "forecast_bias": self.forecast_bias}


@dataclass(frozen=True, slots=True)
class RegretReport:
    """Throughput that a calibration loses against a reference on the same steps.

    Attributes:
        candidate: replay of the calibration.
        reference: replay of the oracle, or of the calibration compared with.
        loss: 1 − Θ / Θ_reference, a share; negative where the candidate is faster.
        loss_low: lower end of its interval; None without one.
        loss_high: upper end of its interval; None without one.
        confidence: what the interval holds.
        block_length: consecutive steps drawn together.
        reason: ``too_few_rows`` where the steps are too few for an interval.
    """

    candidate: ThetaReplay
    reference: ThetaReplay
    loss: float
    loss_low: float | None
    loss_high: float | None
    confidence: float
    block_length: int
    reason: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        plain = ("loss", "loss_low", "loss_high", "confidence", "block_length", "reason")
        return {
            **{name: getattr(self, name) for name in plain},
            "candidate": self.candidate.to_dict(),
            "reference": self.reference.to_dict(),
        }
