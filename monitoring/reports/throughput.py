"""What recalibration is worth in tokens a second, where the engine's cost table is known.

The log is scheduled again with raw and with recalibrated confidence. Blocks that were verified to
the end count themselves; what others would have yielded is told by a model of other requests, and
the share of tokens that rests on it is named (:mod:`calib.log_replay`). An error that costs nothing
is no reason to act.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from calib.calibration import Calibration
from calib.cost_table import CostTable
from calib.errors import CalibrationError, FitRefusedError
from calib.log_replay import log_outcomes, replay_log
from calib.records import AcceptanceRecords
from calib.segment_value import SegmentValue, segment_values
from calib.theta_replay import RegretReport

__all__ = ["LOADS", "NO_COST_TABLE", "Throughput", "throughput"]

NO_COST_TABLE = "no cost table is known"
LOADS: Final = (1, 8, 32, 128, 512)  # requests a step
_REPLICATES: Final = 200


@dataclass(frozen=True, slots=True)
class Throughput:
    """Θ of raw confidence against Θ of the calibration on the same steps.

    Attributes:
        regret: loss of raw confidence against the calibration; None where it is unknown.
        reason: why it is unknown.
        loads: the same at stated requests a step, where the log is long enough.
        segments: what each segment gains, the most valuable first.
    """

    regret: RegretReport | None
    reason: str | None = None
    loads: tuple[tuple[int, RegretReport], ...] = ()
    segments: tuple[SegmentValue, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; nulls with a reason."""
        if self.regret is None:
            return {"reason": self.reason}
        found = self.regret
        return {
            "reason": None,
            "loss": found.loss,
            "loss_low": found.loss_low,
            "loss_high": found.loss_high,
            "loss_reason": found.reason,
            "raw": found.candidate.to_dict(),
            "calibrated": found.reference.to_dict(),
            "loads": [_at_load(load, report) for load, report in self.loads],
            "segments": [value.to_dict() for value in self.segments],
        }


def throughput(
    records: AcceptanceRecords,
    calibration: Calibration,
    cost: CostTable | None,
    *,
    batch_size: int | None = None,
) -> Throughput:
    """Replay a log with raw and recalibrated confidence.

    Args:
        records: judged rows.
        calibration: what is judged.
        cost: step curve of the engine; None gives a reason instead of numbers.
        batch_size: requests of a step, where the log does not name its steps.
    """
    if cost is None:
        return Throughput(None, NO_COST_TABLE)
    try:
        outcomes = log_outcomes(records)
        replay = replay_log(records, cost, batch_size=batch_size, outcomes=outcomes)
        raw = Calibration.identity(records.gamma)
        report = replay.regret(raw, calibration, replicates=_REPLICATES)
        values = segment_values(
            replay,
            calibration.survival(records.confidence_logits),
            raw.survival(records.confidence_logits),
            replicates=_REPLICATES,
        )
    except CalibrationError as error:  # too few blocks, no steps, a table that is too short
        return Throughput(None, str(error))
    loads = []
    for load in LOADS:
        try:
            there = replay_log(records, cost, batch_size=load, outcomes=outcomes)
        except FitRefusedError:
            continue  # fewer rows than one such step
        loads.append((load, there.regret(raw, calibration, replicates=_REPLICATES)))
    return Throughput(report, None, tuple(loads), tuple(values))


def _at_load(load: int, found: RegretReport) -> dict[str, Any]:
    return {
        "requests": load,
        "loss": found.loss,
        "loss_low": found.loss_low,
        "loss_high": found.loss_high,
        "loss_reason": found.reason,
        "raw_theta": found.candidate.theta,
        "calibrated_theta": found.reference.theta,
        "raw_forecast_bias": found.candidate.forecast_bias,
        "calibrated_forecast_bias": found.reference.forecast_bias,
        "modelled_share": found.reference.modelled_share,
    }
