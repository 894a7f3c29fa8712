"""A throughput study of one log from beginning to end, as one JSON document.

Split by prompt (or request), fit every arm on one part, replay the other at every load on every
step curve, and say what each segment gains at the load where calibration gains most.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from calib.calibration import Calibration
from calib.cost_table import CostTable
from calib.cost_table_shapes import CurveShape, analytic_cost_table
from calib.errors import CalibrationError, FitRefusedError
from calib.log_replay import engine_policy
from calib.prompt_split import DEFAULT_SALT, split_by_prompt
from calib.records import AcceptanceRecords
from calib.regret import ThroughputReplay
from calib.replay_doubly_robust import DoublyRobustOutcomes
from calib.segment_value import segment_values
from calib.statuses import Refusal
from calib.throughput_arms import ThroughputArms, fit_arms
from calib.throughput_study import (
    StudyCell,
    StudyRules,
    ThroughputStudy,
    known_outcomes,
    throughput_study,
)

__all__ = ["FORMAT", "StudyRequest", "analytic_curves", "study_document", "study_parts"]

FORMAT: Final = "dspark-calib/throughput/1"
_PROVED_ARMS = ("segmented", "affine", "survival", "temperature", "sts")


@dataclass(frozen=True, slots=True)
class StudyRequest:
    """What to study.

    Attributes:
        curves: step curves by name.
        rules: loads, policy, thresholds, bootstrap.
        evaluation_share: share of prompts that are judged.
        salt: draws the split.
        extra: calibrations to judge beside the fitted ones, by name.
    """

    curves: Mapping[str, CostTable]
    rules: StudyRules = field(default_factory=StudyRules)
    evaluation_share: float = 0.5
    salt: str = DEFAULT_SALT
    extra: Mapping[str, Calibration] = field(default_factory=dict)


def analytic_curves(loads: tuple[int, ...], gamma: int) -> dict[str, CostTable]:
    """The smooth, the kneed and the staircase curve, long enough for these loads.

    Args:
        loads: requests of a step.
        gamma: draft positions.
    """
    longest = max(loads) * (gamma + 1)
    return {
        str(shape): analytic_cost_table(shape, max_batch_tokens=longest) for shape in CurveShape
    }


def study_parts(
    records: AcceptanceRecords,
    *,
    evaluation_share: float = 0.5,
    salt: str = DEFAULT_SALT,
    fit_on: AcceptanceRecords | None = None,
) -> tuple[AcceptanceRecords, AcceptanceRecords, str]:
    """Usable rows to fit on, usable rows to judge, and how they were kept apart.

    Args:
        records: the log.
        evaluation_share: share of prompts that are judged.
        salt: draws the split.
        fit_on: rows of another file to fit on; then the whole log is judged.

    Raises:
        FitRefusedError: ``no_rows``: nothing usable, or one part empty.
        RecordError: neither prompts nor requests are named.
    """
    usable = records.fitting_rows()
    if fit_on is not None:
        fit, judged, kept = fit_on.fitting_rows(), usable, "another file"
    else:
        prompts = usable.prompt
        known = prompts is not None and None not in prompts.tolist()
        split = split_by_prompt(
            usable,
            evaluation_share=evaluation_share,
            salt=salt,
            column="prompt" if known else "request",
        )
        fit, judged, kept = split.fit, split.evaluation, split.column
    for name, part in (("fit", fit), ("judge", judged)):
        if not len(part):
            raise FitRefusedError(Refusal.NO_ROWS, f"no usable row is left to {name}")
    return fit, judged, kept


def study_document(
    records: AcceptanceRecords,
    request: StudyRequest,
    *,
    source: str = "",
    fit_on: AcceptanceRecords | None = None,
) -> dict[str, Any]:
    """Run a study; plain JSON values.

    Args:
        records: the log.
        request: what to study.
        source: name of the log.
        fit_on: rows of another file to fit on.

    Raises:
        FitRefusedError: as :func:`study_parts`.
        RecordError: as :func:`study_parts`.
        ConfigurationError: options out of range.
    """
    fit, judged, kept = study_parts(
        records, evaluation_share=request.evaluation_share, salt=request.salt, fit_on=fit_on
    )
    arms = fit_arms(fit, judged, extra=request.extra)
    study = throughput_study(fit, judged, arms, request.curves, request.rules)
    return {
        "format": FORMAT,
        "source": source,
        "gamma": records.gamma,
        "rows": {"all": len(records), "fit": len(fit), "judged": len(judged)},
        "excluded": records.exclusion_counts(),
        "split": {"column": kept, "salt": request.salt},
        "policy": request.rules.policy or "engine's own",
        "outcomes": _outcomes(judged, arms),
        "study": study.to_dict(),
        "segments": _segments(judged, arms, study, request),
    }


def _outcomes(judged: AcceptanceRecords, arms: ThroughputArms) -> dict[str, Any]:
    found = known_outcomes(judged, arms.baseline)
    if not isinstance(found, DoublyRobustOutcomes):
        return {"kind": "counted", "observed_share": [1.0] * judged.gamma}
    return {
        "kind": "doubly_robust",
        "observed_share": found.observed_share.tolist(),
        "note": "what was not verified rests on a survival model fitted on other prompts; each "
        "cell says which share of its tokens does",
    }


def _segments(
    judged: AcceptanceRecords,
    arms: ThroughputArms,
    study: ThroughputStudy,
    request: StudyRequest,
) -> dict[str, Any]:
    """Value by segment where the finest arm gains most."""
    arm = next((name for name in _PROVED_ARMS if name in arms.survival), None)
    cells = [cell for cell in study.cells if cell.arm == arm]
    if arm is None or not cells:
        return {"reason": "no arm was fitted", "values": []}
    best = max(cells, key=_gain)
    try:
        replay = ThroughputReplay.of(
            judged,
            request.curves[best.curve],
            batch_size=best.load,
            policy=request.rules.policy or engine_policy(request.curves[best.curve]),
            outcomes=known_outcomes(judged, arms.baseline),
        )
        values = segment_values(
            replay,
            arms.survival[arm],
            arms.survival["raw"],
            replicates=request.rules.replicates,
            seed=request.rules.seed,
        )
    except CalibrationError as error:
        return {"reason": str(error), "values": []}
    return {
        "reason": None,
        "arm": arm,
        "curve": best.curve,
        "load": best.load,
        "values": [value.to_dict() for value in values],
    }


def _gain(cell: StudyCell) -> float:
    return -1.0 if cell.gain is None else cell.gain
