"""What each way of calibrating is worth in tokens a second, over loads and step curves.

A log is cut into steps of R requests, scheduled again under every arm and step curve, and counted:
realised and forecast Θ, verified and wasted tokens, the loss against the oracle and the gain over
raw confidence, each with a block-bootstrap interval. Beside the calibrations stand two policies
that use none: the best fixed length and the best static threshold, both chosen on the fit part for
every load and curve, and full verification.

Rows that were all verified count themselves; of a trimmed log the doubly robust sum is taken, and
the share of its tokens that rests on the model alone is part of every figure.

Letters: R requests a step, γ positions, Θ tokens per second.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib.cost_table import CostTable
from calib.errors import ConfigurationError, FitRefusedError
from calib.log_replay import engine_policy
from calib.records import AcceptanceRecords
from calib.regret import ThroughputReplay
from calib.replay_doubly_robust import DoublyRobustOutcomes
from calib.replay_outcomes import ExpectedOutcomes, FullyVerified, ReplayOutcomes
from calib.replay_schedule import Policy
from calib.theta_replay import RegretReport, ThetaReplay
from calib.throughput_arms import ThroughputArms

__all__ = [
    "LOADS",
    "STATIC_ARMS",
    "StudyCell",
    "StudyRules",
    "ThroughputStudy",
    "known_outcomes",
    "lengths_above",
    "throughput_study",
]

LOADS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
THRESHOLDS: Final = tuple(round(0.05 * step, 2) for step in range(20))
STATIC_ARMS: Final = ("full", "fixed", "threshold")

Lengths = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class StudyRules:
    """How a study is made.

    Attributes:
        loads: requests of a step.
        policy: how steps are scheduled; what an engine with such a table runs when None
            (:func:`calib.log_replay.engine_policy`).
        thresholds: candidates of the static threshold on raw conditional confidence.
        replicates: of the bootstrap.
        seed: of the bootstrap.
    """

    loads: Sequence[int] = LOADS
    policy: Policy | None = None
    thresholds: Sequence[float] = THRESHOLDS
    replicates: int = 300
    seed: int = 0


@dataclass(frozen=True, slots=True)
class StudyCell:
    """One arm at one load on one step curve.

    Attributes:
        curve: name of the step curve.
        load: requests of a step.
        arm: what was scheduled with.
        setting: the fixed length or threshold that was chosen; None for calibrations.
        regret: loss against the oracle; None where there is none.
        against_raw: loss against raw confidence; what the arm gains is its negative. None for raw.
        replay: the arm's replay.
    """

    curve: str
    load: int
    arm: str
    setting: float | None
    replay: ThetaReplay
    regret: RegretReport | None
    against_raw: RegretReport | None

    @property
    def gain(self) -> float | None:
        """Θ / Θ_raw − 1; None for raw."""
        return None if self.against_raw is None else -self.against_raw.loss

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        figures = self.replay.to_dict()
        names = ("loss", "loss_low", "loss_high", "loss_reason")
        figures |= dict(zip(names, _interval(self.regret, 1.0), strict=True))
        names = ("gain", "gain_low", "gain_high", "gain_reason")
        figures |= dict(zip(names, _interval(self.against_raw, -1.0), strict=True))
        return {
            "curve": self.curve,
            "load": self.load,
            "arm": self.arm,
            "setting": self.setting,
            **figures,
        }


@dataclass(frozen=True, slots=True)
class ThroughputStudy:
    """All arms over loads and curves.

    Attributes:
        cells: in the order of curve, load and arm.
        missing: arms that could not be fitted, with the reason.
        skipped: loads that a log is too short for, by curve.
        truth_known: whether the oracle is the truth.
        rows: judged rows.
    """

    cells: tuple[StudyCell, ...]
    missing: Mapping[str, str]
    skipped: tuple[tuple[str, int], ...]
    truth_known: bool
    rows: int

    def cell(self, curve: str, load: int, arm: str) -> StudyCell:
        """One cell.

        Raises:
            ConfigurationError: there is none.
        """
        for found in self.cells:
            if (found.curve, found.load, found.arm) == (curve, load, arm):
                return found
        raise ConfigurationError("cell", (curve, load, arm), "name a curve, load and arm")

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "rows": self.rows,
            "truth_known": self.truth_known,
            "missing": dict(self.missing),
            "skipped": [{"curve": curve, "load": load} for curve, load in self.skipped],
            "cells": [cell.to_dict() for cell in self.cells],
        }


def throughput_study(
    fit: AcceptanceRecords,
    judged: AcceptanceRecords,
    arms: ThroughputArms,
    curves: Mapping[str, CostTable],
    rules: StudyRules | None = None,
    *,
    truth: ArrayLike | None = None,
) -> ThroughputStudy:
    """Replay every arm at every load on every curve.

    Args:
        fit: usable rows that the arms were fitted on; static choices are made there.
        judged: usable rows of other prompts.
        arms: survivals of both, from :func:`calib.throughput_arms.fit_arms`.
        curves: step curves by name.
        rules: see :class:`StudyRules`.
        truth: exact survival of the judged rows, whose expected outcomes then replace counted ones.

    Raises:
        ConfigurationError: no curve, or a load below 1.
    """
    chosen = rules or StudyRules()
    if not curves:
        raise ConfigurationError("curves", [], "give at least one step curve")
    outcomes = known_outcomes(judged, arms.baseline, truth=truth)
    learned = known_outcomes(fit, arms.fit_baseline)
    cells: list[StudyCell] = []
    skipped = []
    for name, cost in curves.items():
        policy = chosen.policy or engine_policy(cost)
        for load in chosen.loads:
            try:
                replay = ThroughputReplay.of(
                    judged, cost, batch_size=load, policy=policy, outcomes=outcomes
                )
                before = ThroughputReplay.of(fit, cost, batch_size=load, outcomes=learned)
            except FitRefusedError:
                skipped.append((name, load))
                continue
            cells += _cells(name, load, replay, before, arms, chosen)
    return ThroughputStudy(
        tuple(cells), arms.missing, tuple(skipped), arms.truth_known, len(judged)
    )


def known_outcomes(
    records: AcceptanceRecords, baseline: ArrayLike, *, truth: ArrayLike | None = None
) -> ReplayOutcomes:
    """Counts where every row was verified fully, else doubly robust sums; expectations of a truth.

    Args:
        records: usable rows.
        baseline: [N, γ] survival of a model that was not fitted on these rows.
        truth: [N, γ] exact survival, where a simulation knows it.

    Raises:
        RecordError: survivals of another shape, or outside [0, 1].
    """
    if truth is not None:
        return ExpectedOutcomes(truth)
    counted = FullyVerified(records)
    return counted if counted.known.all() else DoublyRobustOutcomes(records, baseline)


def _cells(
    curve: str,
    load: int,
    replay: ThroughputReplay,
    before: ThroughputReplay,
    arms: ThroughputArms,
    rules: StudyRules,
) -> Iterator[StudyCell]:
    found: dict[str, tuple[ThetaReplay, float | None]] = {}
    for name, lengths, number in _static(replay, before, rules):
        found[name] = replay.theta_of(lengths), number
    for arm, survival in arms.survival.items():
        found[arm] = replay.theta(survival), None
    raw = found["raw"][0]
    oracle = found["oracle"][0] if "oracle" in found else None
    options: dict[str, Any] = {"replicates": rules.replicates, "seed": rules.seed}
    for arm, (theta, setting) in found.items():
        regret = None if oracle is None else replay.regret(theta, oracle, **options)
        against = None if arm == "raw" else replay.regret(theta, raw, **options)
        yield StudyCell(curve, load, arm, setting, theta, regret, against)


def _interval(found: RegretReport | None, sign: float) -> tuple[Any, Any, Any, str | None]:
    """Estimate, lower and upper end, and why the ends are missing."""
    if found is None:
        return None, None, None, None
    ends = [None if end is None else sign * end for end in (found.loss_low, found.loss_high)]
    low, high = ends if sign > 0.0 else ends[::-1]
    return sign * found.loss, low, high, found.reason


def _static(
    replay: ThroughputReplay, before: ThroughputReplay, rules: StudyRules
) -> Iterator[tuple[str, Lengths, float]]:
    """Policies without calibration, their one number chosen on the fit part."""
    gamma = replay.records.gamma
    yield "full", np.array(gamma), float(gamma)
    fixed = [before.theta_of(length).theta for length in range(gamma + 1)]
    best = int(np.argmax(fixed))
    yield "fixed", np.array(best), float(best)
    swept = [before.theta_of(lengths_above(before.records, t)).theta for t in rules.thresholds]
    threshold = rules.thresholds[int(np.argmax(swept))]
    yield "threshold", lengths_above(replay.records, threshold), threshold


def lengths_above(records: AcceptanceRecords, threshold: float) -> Lengths:
    """ℓ where each block is cut at its first raw confidence below the threshold, [N].

    Args:
        records: the log.
        threshold: of σ(z), 0 … 1; 0 cuts nothing.
    """
    # σ(z) ≥ t without its rounding: exact at t = 0 and 1.
    with np.errstate(divide="ignore"):
        odds = float(np.log(threshold) - np.log1p(-threshold)) if threshold < 1.0 else np.inf
    stays = np.logical_and.accumulate(records.confidence_logits >= odds, axis=1)
    lengths: Lengths = stays.sum(axis=1, dtype=np.int64)
    return lengths
