"""What a drift costs and a promotion is worth, in throughput, where the engine's costs are known.

Rows are scheduled again with the survivals of both sides through the prefix scheduler and the
stored cost table (:mod:`calib.regret`). What was trimmed is told by a model of other requests, in a
doubly robust sum (:mod:`calib.log_replay`). Where more than a twentieth of the tokens rest on that
model alone, or too few steps are left for an interval, nothing is claimed.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Literal

from calib.conditional_likelihood import ConditionalLikelihood
from calib.cost_table import CostTable
from calib.errors import CalibrationError
from calib.log_replay import replay_log
from calib.records import AcceptanceRecords
from calib.theta_replay import RegretReport
from monitoring.loop_decisions import Promote
from monitoring.served_numbers import ServedNumbers
from monitoring.store.revisions import Revision

__all__ = [
    "MOST_MODELLED",
    "REPLAYED_ROWS",
    "PromotionWorth",
    "promotion_loss",
    "promotion_worth",
    "theta_loss",
    "with_worth",
]

REPLAYED_ROWS: Final = 20_000
MOST_MODELLED: Final = 0.05  # share of the tokens that may rest on a model alone


@dataclass(frozen=True, slots=True)
class PromotionWorth:
    """What serving the challenger would do to throughput.

    Attributes:
        gain: Θ of the challenger over Θ of the champion, less 1.
        gain_low: lower end of its 95 % interval.
        gain_high: upper end.
        modelled_share: share of the tokens that rests on a model alone.
    """

    gain: float
    gain_low: float
    gain_high: float
    modelled_share: float

    @property
    def verdict(self) -> Literal["gains", "loses", "no measurable change"]:
        """Which side of zero the interval lies on, if on one."""
        if self.gain_low > 0.0:
            return "gains"
        return "loses" if self.gain_high < 0.0 else "no measurable change"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {**asdict(self), "verdict": self.verdict}


def promotion_worth(
    records: AcceptanceRecords, cost: CostTable, champion: Revision, challenger: Revision
) -> PromotionWorth | None:
    """Replayed gain of the challenger; None where it cannot be told.

    Args:
        records: rows after the challenger's fit.
        cost: step curve of the engine.
        champion: what is served.
        challenger: what would be.
    """
    usable = records.fitting_rows()
    found = _report(usable, cost, ServedNumbers.of(challenger), ServedNumbers.of(champion))
    if found is None or found.loss_low is None or found.loss_high is None:
        return None
    return PromotionWorth(
        -found.loss, -found.loss_high, -found.loss_low, found.candidate.modelled_share
    )


def with_worth(promote: Promote, worth: PromotionWorth) -> Promote:
    """The decision with what it is worth: better calibrated is not yet faster, and is said so.

    Args:
        promote: the gate's decision.
        worth: replayed.
    """
    interval = f"{worth.gain:+.2%} ({worth.gain_low:+.2%} to {worth.gain_high:+.2%})"
    reason = f"{promote.reason}; throughput {worth.verdict}: {interval}"
    return replace(
        promote, reason=reason, evidence={**promote.evidence, "throughput": worth.to_dict()}
    )


def promotion_loss(
    records: AcceptanceRecords, cost: CostTable, champion: Revision, challenger: Revision
) -> float | None:
    """By how much Θ falls with the challenger, at least: lower end of the 95 % interval.

    A share of the champion's Θ, negative where it may rise; None where it cannot be told.

    Args:
        records: rows after the challenger's fit.
        cost: step curve of the engine.
        champion: what is served.
        challenger: what would be.
    """
    found = promotion_worth(records, cost, champion, challenger)
    return None if found is None else -found.gain_high


def theta_loss(records: AcceptanceRecords, cost: CostTable, champion: Revision) -> float | None:
    """Share of Θ that the champion loses against numbers fitted on these very rows.

    An estimate from above: numbers fitted on the rows they are judged on look a little too good.
    None where it cannot be told.

    Args:
        records: rows since the change.
        cost: step curve of the engine.
        champion: what is served.
    """
    usable = records.fitting_rows()
    try:
        fitted = ConditionalLikelihood(minimum_rows=0).fit_records(usable)
        numbers = ServedNumbers(fitted.calibration())
    except CalibrationError:
        return None
    found = _report(usable, cost, ServedNumbers.of(champion), numbers)
    return None if found is None or found.loss_low is None else max(found.loss, 0.0)


def _report(
    records: AcceptanceRecords, cost: CostTable, candidate: ServedNumbers, reference: ServedNumbers
) -> RegretReport | None:
    try:
        replay = replay_log(records, cost)
        found = replay.regret(
            candidate.survival(records), reference.survival(records), replicates=200
        )
    except CalibrationError:
        return None  # steps are unknown, or nothing tells what trimmed rows would have had
    modelled = max(found.candidate.modelled_share, found.reference.modelled_share)
    return None if modelled > MOST_MODELLED else found
