"""A challenger from sketches by hour: the same fits as from rows, with nothing held out.

Rows may have gone with retention, or be too many to read again. What is fitted is proposed as any
other challenger: the gate judges it on rows that come. :func:`fit_sketches` is a function of its
arguments alone.
"""

from __future__ import annotations

from typing import Any

from calib.calibration_key import CalibrationKey
from calib.errors import FitRefusedError
from calib.fit_status import MINIMUM_ROWS
from calib.statuses import Refusal, ServingStatus
from monitoring.challenger_fit import (
    ChallengerFit,
    Champion,
    is_identity,
    no_numbers,
    same_numbers,
)
from monitoring.recalibration_methods import (
    MethodRules,
    PooledMethod,
    fit_pool,
    with_temperatures,
)
from monitoring.recalibration_options import RecalibrationOptions
from monitoring.served_numbers import ServedNumbers
from monitoring.sketch_rows import SketchRows

__all__ = ["fit_sketches"]


def fit_sketches(
    source: SketchRows,
    options: RecalibrationOptions,
    *,
    champion: Champion | None = None,
    key: CalibrationKey | None = None,
    fitted_at: str | None = None,
) -> ChallengerFit:
    """Fit on sketches; never raises for what they hold.

    Args:
        source: hours and weights.
        options: with ``source="sketches"``: method and minimum rows.
        champion: what is served now; identity when None. Positions that the sketches cannot tell
            keep its temperatures.
        key: calibration key of the drafter.
        fitted_at: ISO 8601 time to store; None stores none.

    Raises:
        ConfigurationError: a method that needs rows.
    """
    current = champion or Champion.identity(source.gamma)
    served = current.served.calibration
    parent = None if is_identity(served) else served.temperatures
    rules = MethodRules(options.minimum_rows or MINIMUM_ROWS, parent, key=key, fitted_at=fitted_at)
    method = _method(options, source.gamma)
    evidence: dict[str, Any] = {"sketches": source.to_dict()}
    try:
        if not len(source):
            raise FitRefusedError(Refusal.NO_ROWS, "the sketches of these hours hold no row")
        found = fit_pool(method, source, rules)
    except FitRefusedError as error:
        return ChallengerFit(str(error.status), error.reason, evidence=evidence)
    table = current.served.table
    own = table is not None and any(each.slopes is not None for each in table.segments.values())
    # Slopes of segments were judged on rows; here nothing is held out to take them away by.
    if found.calibration.status is ServingStatus.INSUFFICIENT and not own:
        found = with_temperatures(found, served.temperatures, table) or found
    evidence["fit"] = found.calibration.evidence
    summary = (_sentence(source),)
    refusal: ServingStatus | Refusal | None = None
    reason = ""
    if found.calibration.status is ServingStatus.INSUFFICIENT or is_identity(found.calibration):
        refusal, reason = ServingStatus.INSUFFICIENT, no_numbers(found.calibration)
    elif same_numbers(ServedNumbers(found.calibration, found.table), current.served):
        refusal = Refusal.NOT_BETTER
        reason = f"the fit serves the same numbers as revision {current.number}"
    if refusal is not None:
        return ChallengerFit(str(refusal), reason, method, evidence=evidence, summary=summary)
    return ChallengerFit(
        refusal=None,
        reason="fitted on sketches: rows that come after it decide",
        method=method,
        calibration=found.calibration,
        segments=None if found.table is None else found.table.to_dict(),
        model=found.model.to_dict(),
        evidence=evidence,
        summary=summary,
    )


def _method(options: RecalibrationOptions, gamma: int) -> PooledMethod:
    """What to fit: nothing is held out to choose by, and survival costs least where it is wrong."""
    if options.method in ("auto", "survival"):
        return "survival" if gamma > 1 else "temperature"
    return "affine" if options.method == "affine" else "temperature"


def _sentence(source: SketchRows) -> str:
    hours = [each["hour"] for each in source.to_dict()["hours"]]
    span = f"the hour of {hours[0]}"
    if len(hours) > 1:
        span = f"{len(hours)} hours, {hours[0]} to {hours[-1]}"
    words = f"Fitted on sketches of {len(source):,} blocks of {span}"
    if source.half_life_hours is not None:
        words += f", with a half-life of {source.half_life_hours:g} hours"
    return f"{words}; nothing is held out."
