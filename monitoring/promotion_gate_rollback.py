"""After a promotion: is the previous revision better after all?

The gate's test runs on with the roles exchanged: wealth of bets that ``previous`` has the higher
log score, raised to the power 1/d for the luck that rows of a request share (d: design effect).
While the new champion is not worse in either view, P(rollback by evidence) ≤ α. An act
alarm in the watch rolls back too. Afterwards a cool-down keeps automatic promotion away, so that
two revisions cannot chase one another; rolling back to identity is allowed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

import numpy as np

from calib.errors import ConfigurationError, FormatError
from monitoring.detectors.e_cusum import tempering
from monitoring.promotion_gate_scores import (
    ScoredRows,
    component_weights,
    first_crossing,
    score_rows,
)


class WatchStatus(StrEnum):
    """State of the watch after a promotion."""

    WATCHING = "watching"
    KEPT = "kept"  # the watch is over
    ROLL_BACK = "roll_back"  # the caller rolls back and starts the cool-down


@dataclass(frozen=True, slots=True)
class RollbackState:
    """What the watch remembers; plain numbers.

    Attributes:
        rows: rows scored since the promotion.
        log_worse: by component, log evidence that ``previous`` is better, before tempering.
        rolled_back_row: scored row, from 0, after which rollback was called for; or None.
    """

    rows: int
    log_worse: tuple[float, ...]
    rolled_back_row: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; :meth:`from_dict` restores the very same state."""
        return {
            "rows": self.rows,
            "log_worse": list(self.log_worse),
            "rolled_back_row": self.rolled_back_row,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The state that :meth:`to_dict` described.

        Raises:
            FormatError: missing or unknown fields.
        """
        try:
            return cls(**{**values, "log_worse": tuple(values["log_worse"])})
        except (KeyError, TypeError) as error:
            raise FormatError("rollback state", f"{error}", "write it with to_dict()") from error


@dataclass(frozen=True, slots=True)
class RollbackStep:
    """State to store, where the watch stands, and why."""

    state: RollbackState
    status: WatchStatus
    reason: str


@dataclass(frozen=True)
class RollbackWatch:
    """The watch over one promotion.

    Attributes:
        gamma: γ.
        promoted_at: sequence number of the last row ingested at the promotion; only later rows
            are scored.
        alpha: probability of rolling back a champion that is not worse.
        survival: whether served survival is scored too.
        watch_rows: scored rows after which the champion is kept.
        cool_down_rows: rows after a rollback during which nothing is promoted automatically;
            about twice the detection delay of a drift worth acting on.
        design_effect: d ≥ 1 that log evidence is divided by.

    Raises:
        ConfigurationError: an option outside its range.
    """

    gamma: int
    promoted_at: int
    alpha: float = 0.05
    survival: bool = True
    watch_rows: int = 50_000
    cool_down_rows: int = 4000
    design_effect: float = 1.0

    def __post_init__(self) -> None:
        if not 0.0 < self.alpha < 1.0:
            raise ConfigurationError("alpha", self.alpha, "give a probability in (0, 1)")
        tempering(self.design_effect)
        for name in ("gamma", "watch_rows", "cool_down_rows"):
            if getattr(self, name) < 1:
                raise ConfigurationError(name, getattr(self, name), "give a count above 0")

    def start(self) -> RollbackState:
        """The state right after the promotion."""
        components = len(component_weights(self.gamma, survival=self.survival))
        return RollbackState(0, (0.0,) * components)

    def log_evidence(self, state: RollbackState) -> float:
        """Natural logarithm of the evidence that ``previous`` is better."""
        weights = np.log(component_weights(self.gamma, survival=self.survival))
        tempered = np.array(state.log_worse) / self.design_effect
        return float(np.logaddexp.reduce(weights + tempered))

    def update(
        self,
        state: RollbackState,
        rows: ScoredRows,  # champion: the new one; challenger: ``previous``
        *,
        act_alarm: bool = False,
    ) -> RollbackStep:
        """State and status after more rows; once ``roll_back``, always so.

        Raises:
            ConfigurationError: rows of another γ, or without survival where it is scored.
        """
        if rows.gamma != self.gamma:
            raise ConfigurationError("gamma", rows.gamma, f"this watch has {self.gamma}")
        if self.survival and rows.champion_survival is None:
            raise ConfigurationError("survival", None, "give served survival of both models")
        open_watch = state.rolled_back_row is None and state.rows < self.watch_rows
        fresh = rows.select(rows.ingested > self.promoted_at)
        if open_watch and len(fresh):
            state = self._scored(state, fresh)
        if open_watch and act_alarm and state.rolled_back_row is None:
            state = RollbackState(state.rows, state.log_worse, max(state.rows - 1, 0))
            return RollbackStep(state, WatchStatus.ROLL_BACK, "act alarm within the watch")
        if state.rolled_back_row is not None:
            words = f"the previous revision was better by row {state.rolled_back_row}"
            return RollbackStep(state, WatchStatus.ROLL_BACK, words)
        status = WatchStatus.WATCHING if state.rows < self.watch_rows else WatchStatus.KEPT
        return RollbackStep(state, status, f"{state.rows} rows without evidence of harm")

    def cool_down_ends(self, rolled_back_at: int) -> int:
        """Sequence number from which automatic promotion is allowed again."""
        return rolled_back_at + self.cool_down_rows

    def _scored(self, state: RollbackState, rows: ScoredRows) -> RollbackState:
        weights = np.log(component_weights(self.gamma, survival=self.survival))
        forward = score_rows(rows, survival=self.survival, forward_only=True).forward
        path = np.cumsum(np.vstack([state.log_worse, forward]), axis=0)[1:]
        found = first_crossing(path / self.design_effect, weights, -math.log(self.alpha))
        row = None if found is None else state.rows + found
        return RollbackState(state.rows + len(path), tuple(path[-1].tolist()), row)
