"""What a calibration is worth: throughput of a log when scheduled with it, and its loss.

Every step of a log is scheduled again with the survivals of a calibration; tokens are those that
were really accepted within the new lengths, seconds those of the engine's cost table. Then

    Θ = Σ tokens / Σ seconds,    τ = tokens per step,    loss = 1 − Θ / Θ_reference

over the same steps. The reference is an oracle where one is known, or another calibration. Θ loses
little where calibration is off by little (an ECE of .02 costs about .05 %), so a gain in ECE may be
worth nothing; what a calibration *predicts* of Θ is off in first order, and is reported beside it.

Intervals draw blocks of consecutive steps: a request stays for many.

Letters: N rows, γ positions, S steps.

>>> import numpy as np
>>> from calib.cost_table import FlatCostTable
>>> from calib.records import AcceptanceRecords
>>> columns = {"confidence_logits": [[3.0, -3.0]] * 4, "verified": [2] * 4, "accepted": [1] * 4}
>>> log = AcceptanceRecords.from_columns(2, columns)
>>> steps = FlatCostTable((1, 2, 3), (1.0, 0.9, 0.6), 3)
>>> replay = ThroughputReplay.of(log, steps, batch_size=1)
>>> found = replay.theta(np.array([[0.9, 0.1]] * 4))  # verifies one token, .9 steps a second
>>> round(found.theta, 6)
1.8
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib.block_bootstrap import block_totals, bootstrap_interval
from calib.cost_table import CostTable
from calib.errors import InvalidInputError, RecordError
from calib.records import AcceptanceRecords
from calib.replay_outcomes import FullyVerified, ReplayOutcomes
from calib.replay_schedule import Policy, schedule_steps, step_seconds
from calib.replay_steps import ReplaySteps, group_steps
from calib.statuses import NullReason
from calib.theta_replay import RegretReport, ScheduleKind, ThetaReplay

__all__ = ["RegretReport", "SurvivalSource", "ThetaReplay", "ThroughputReplay"]

Floats = NDArray[np.float64]

MINIMUM_BLOCKS = 8  # fewer blocks of steps are arithmetic, not evidence for an interval
_MOST_BLOCKS = 2000  # more of them cost time and sharpen no percentile


class SurvivalSource(Protocol):
    """A calibration, model or estimator: survivals from raw logits [N, γ]."""

    def survival(self, confidence_logits: NDArray[np.float32], /) -> NDArray[np.floating]:
        """Survivals [N, γ] in [0, 1]."""


@dataclass(frozen=True, eq=False, slots=True)
class ThroughputReplay:
    """A log prepared for replay; build it with :meth:`of` and ask it about many calibrations.

    Attributes:
        records: the log.
        cost: step curve of the engine.
        policy: how steps are scheduled.
        steps: which rows ran together.
        outcomes: accepted tokens at any length.
    """

    records: AcceptanceRecords
    cost: CostTable
    policy: Policy
    steps: ReplaySteps
    outcomes: ReplayOutcomes

    @classmethod
    def of(
        cls,
        records: AcceptanceRecords,
        cost: CostTable,
        *,
        batch_size: int | None = None,
        policy: Policy = "early_stop",
        outcomes: ReplayOutcomes | None = None,
    ) -> ThroughputReplay:
        """Group the rows of a log into steps.

        Args:
            records: the log.
            cost: step curve of the engine.
            batch_size: requests of a step, where steps are unknown or another load is asked for.
            policy: ``"early_stop"`` (Algorithm 1), ``"lagged"``, or ``"unconstrained"``, which
                anticipates.
            outcomes: accepted tokens at any length; counts of fully verified rows when None.

        Raises:
            ConfigurationError: no batch size where steps are unknown, or one below 1.
            FitRefusedError: ``no_rows``: no complete step with known outcomes.
        """
        told = FullyVerified(records) if outcomes is None else outcomes
        steps = group_steps(records, told.known, batch_size=batch_size)
        return cls(records, cost, policy, steps, told)

    def theta(
        self,
        survival: ArrayLike | SurvivalSource,  # [N, γ] for every row of the log, or its source
        *,
        explored: NDArray[np.bool_] | None = None,  # [N] rows verified fully, whatever else
    ) -> ThetaReplay:
        """Schedule every step with these survivals and count what it would have yielded.

        Raises:
            RecordError: survivals or coins of another shape, or survivals outside [0, 1].
            ConfigurationError: an unknown policy.
        """
        values = self._survivals(survival)
        lengths = schedule_steps(values, self.steps, self.cost, self.policy)
        if explored is not None:
            lengths[self._explored(explored)] = self.records.gamma
        return self._counted(lengths, values, self.policy)

    def theta_of(
        self,
        lengths: ArrayLike,  # [N] ℓ for every row of the log, or one for all
        survival: ArrayLike | SurvivalSource | None = None,
    ) -> ThetaReplay:
        """Count what lengths that were not scheduled here would have yielded.

        Args:
            lengths: as a fixed length or a static threshold gives them.
            survival: forecasts τ where given.

        Raises:
            RecordError: lengths that are no whole numbers in 0..γ; survivals as :meth:`theta`.
        """
        given = np.asarray(lengths)
        if given.shape not in ((), (len(self.records),)) or given.dtype.kind not in "iu":
            shown = (given.dtype.name, given.shape)
            raise RecordError("lengths", shown, f"give {len(self.records)} whole numbers, or one")
        whole = np.broadcast_to(given, len(self.records))[self.steps.rows].astype(np.int64)
        if whole.min() < 0 or whole.max() > self.records.gamma:
            raise RecordError("lengths", "a length outside", f"give 0..{self.records.gamma}")
        values = None if survival is None else self._survivals(survival)
        return self._counted(whole, values, "given")

    def lengths(
        self,
        survival: ArrayLike | SurvivalSource,  # as in :meth:`theta`
    ) -> NDArray[np.int64]:
        """ℓ that the policy gives every row of the log, [N]; -1 where it is not replayed.

        With the survivals an engine ran with, on its own steps, these are the lengths of its
        policy before any coin.

        Raises:
            RecordError: as :meth:`theta`.
            ConfigurationError: an unknown policy.
        """
        found = np.full(len(self.records), -1, dtype=np.int64)
        values = self._survivals(survival)
        found[self.steps.rows] = schedule_steps(values, self.steps, self.cost, self.policy)
        return found

    def _counted(
        self, lengths: NDArray[np.int64], values: Floats | None, policy: ScheduleKind
    ) -> ThetaReplay:
        first, count = self.steps.starts[:-1], self.steps.steps
        seconds, _ = step_seconds(lengths, self.steps, self.cost)
        accepted = self.outcomes.accepted(self.steps.rows, lengths)
        modelled = float(self.outcomes.modelled(self.steps.rows, lengths).sum())
        tokens = np.asarray(self.steps.sizes + np.add.reduceat(accepted, first), dtype=np.float64)
        total = float(seconds.sum())
        predicted = None
        if values is not None:
            within = np.arange(self.records.gamma) < lengths[:, None]
            predicted = len(values) + float(values[within].sum())
        return ThetaReplay(
            policy=policy,
            steps=count,
            rows=len(lengths),
            left_out=self.steps.left_out,
            tau=float(tokens.sum()) / count,
            predicted_tau=None if predicted is None else predicted / count,
            theta=float(tokens.sum()) / total,
            predicted_theta=None if predicted is None else predicted / total,
            verified=float(lengths.mean()),
            wasted=float(lengths.mean() - accepted.mean()),
            modelled_share=modelled / float(tokens.sum()),
            tokens=tokens,
            seconds=seconds,
        )

    def regret(
        self,
        survival: ArrayLike | SurvivalSource | ThetaReplay,
        reference: ArrayLike | SurvivalSource | ThetaReplay,
        *,
        confidence: float = 0.95,
        block_length: int | None = None,
        replicates: int = 1000,
        seed: int = 0,
    ) -> RegretReport:
        """Loss of a calibration against a reference, both on the steps of this log.

        Args:
            survival: the calibration, its survivals [N, γ], or its replay of this log.
            reference: what it is compared with, likewise.
            confidence: what the interval should hold.
            block_length: consecutive steps drawn together; when None the longer of ∛S and a
                request's mean stay, but an eighth of the steps at most.
            replicates: of the bootstrap.
            seed: of the bootstrap.

        Raises:
            InvalidInputError: a replay of other steps; else as :meth:`theta`.
            ConfigurationError: options out of range.
        """
        mine, theirs = self._replayed(survival), self._replayed(reference)
        loss = 1.0 - mine.theta / theirs.theta
        count = self.steps.steps
        block = self._block_length() if block_length is None else block_length
        low = high = reason = None
        if count < MINIMUM_BLOCKS * block:
            reason = str(NullReason.TOO_FEW_ROWS)
        else:
            columns = np.stack([mine.tokens, mine.seconds, theirs.tokens, theirs.seconds], axis=1)
            drawn = block_totals(columns, block, replicates=replicates, seed=seed).T
            losses = 1.0 - (drawn[0] / drawn[1]) / (drawn[2] / drawn[3])
            low, high = bootstrap_interval(losses, loss, count // block, confidence)
        return RegretReport(mine, theirs, loss, low, high, confidence, block, reason)

    def _block_length(self) -> int:
        count = self.steps.steps
        wanted = max(round(math.cbrt(count)), self.steps.mean_stay, -(-count // _MOST_BLOCKS))
        return max(1, min(wanted, count // MINIMUM_BLOCKS))

    def _replayed(self, source: ArrayLike | SurvivalSource | ThetaReplay) -> ThetaReplay:
        if not isinstance(source, ThetaReplay):
            return self.theta(source)
        if source.steps != self.steps.steps or source.rows != len(self.steps.rows):
            remedy = f"give a replay of these {self.steps.steps} steps"
            raise InvalidInputError("replay", source.steps, remedy)
        return source

    def _survivals(self, source: ArrayLike | SurvivalSource) -> Floats:
        """[M, γ] survivals of the replayed rows."""
        offered = getattr(source, "survival", None)
        if offered is not None:
            values = np.asarray(offered(self.records.confidence_logits[self.steps.rows]))
            rows = len(self.steps.rows)
        else:
            values, rows = np.asarray(source), len(self.records)
        if values.shape != (rows, self.records.gamma) or values.dtype.kind not in "iuf":
            shown = (values.dtype.name, values.shape)
            raise RecordError("survival", shown, f"give ({rows}, {self.records.gamma}) numbers")
        chosen = values.astype(np.float64)
        if offered is None:
            chosen = chosen[self.steps.rows]
        if not ((chosen >= 0.0) & (chosen <= 1.0)).all():  # NaN is wrong as well
            raise RecordError("survival", "a value outside", "give finite values in [0, 1]")
        return chosen

    def _explored(self, explored: NDArray[np.bool_]) -> NDArray[np.bool_]:
        coins = np.asarray(explored)
        if coins.shape != (len(self.records),) or coins.dtype != np.bool_:
            shown = (coins.dtype.name, coins.shape)
            raise RecordError("explored", shown, f"give a boolean mask [{len(self.records)}]")
        return np.asarray(coins[self.steps.rows])
