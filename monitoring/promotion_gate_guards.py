"""Bounds on a change itself: an automatic promotion moves served numbers only so far.

A fit that wants to move further is not wrong by that, but a person should look: a mixed-up slot,
another confidence source or a broken label all look like a large change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib.calibration import FORMS, Calibration, Form
from calib.errors import ConfigurationError
from calib.statuses import Refusal, ServingStatus

SLOPE_BOUNDS = (0.2, 5.0)
MAXIMUM_INTERCEPT = 2.0
MAXIMUM_SURVIVAL_CHANGE = 0.15
# Off identity, raw logits may be wrong by far more: nothing was ever fitted that could be lost.
MAXIMUM_FIRST_SURVIVAL_CHANGE = 0.5


@dataclass(frozen=True, slots=True)
class ChangeGuard:
    """Result of the check of one challenger.

    Attributes:
        refusal: ``unbounded_change``, ``gamma_mismatch``, ``no_rows`` or None.
        reason: the offending number in words; empty without a refusal.
        survival_change: by position, mean over rows of |a' − a|, of the form that moves further;
            empty where not computed.
    """

    refusal: Refusal | None
    reason: str
    survival_change: tuple[float, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        refusal = None if self.refusal is None else str(self.refusal)
        change = list(self.survival_change)
        return {"refusal": refusal, "reason": self.reason, "survival_change": change}


def check_change(
    champion: Calibration,
    challenger: Calibration,
    confidence_logits: ArrayLike,  # [N, γ] raw logits of recent rows
    *,
    maximum_survival_change: float | None = None,
) -> ChangeGuard:
    """Whether the challenger's numbers lie within bounds and near enough to the champion's.

    Bounds: slopes (and 1/T) within [0.2, 5], intercepts within ±2, and at each position, in either
    form, a mean absolute change of served survival of at most ``maximum_survival_change`` (0.15;
    0.5 when the champion is identity).

    Raises:
        ConfigurationError: a maximum outside (0, 1].
    """
    limit = maximum_survival_change
    if limit is None:
        first = champion.status is ServingStatus.IDENTITY
        limit = MAXIMUM_FIRST_SURVIVAL_CHANGE if first else MAXIMUM_SURVIVAL_CHANGE
    if not 0.0 < limit <= 1.0:
        raise ConfigurationError("maximum_survival_change", limit, "give a change in (0, 1]")
    if champion.gamma != challenger.gamma:
        words = f"champion has γ {champion.gamma}, challenger {challenger.gamma}"
        return ChangeGuard(Refusal.GAMMA_MISMATCH, words, ())
    numbers = _unbounded_number(challenger)
    if numbers is not None:
        return ChangeGuard(Refusal.UNBOUNDED_CHANGE, numbers, ())
    logits = np.asarray(confidence_logits, dtype=np.float32)
    if len(logits) == 0:
        return ChangeGuard(Refusal.NO_ROWS, "no recent rows to measure the change on", ())
    change = np.max([_moved(champion, challenger, logits, form) for form in FORMS], axis=0)
    k = int(change.argmax())
    if change[k] > limit:
        words = f"survival at position {k + 1} moves by {change[k]:.3f} on average, limit {limit:g}"
        return ChangeGuard(Refusal.UNBOUNDED_CHANGE, words, tuple(change.tolist()))
    return ChangeGuard(None, "", tuple(change.tolist()))


def _moved(
    champion: Calibration, challenger: Calibration, logits: NDArray[np.float32], form: Form
) -> NDArray[np.float64]:
    """[γ] mean absolute change of survival by one form; temperatures where it is not served."""
    before, after = (
        each.survival(logits, form="temperatures" if each.slopes is None else form)
        for each in (champion, challenger)
    )
    return np.asarray(np.abs(after.astype(np.float64) - before).mean(axis=0))


def _unbounded_number(challenger: Calibration) -> str | None:
    low, high = SLOPE_BOUNDS
    slopes = [("temperature", k, 1.0 / t) for k, t in enumerate(challenger.temperatures, 1)]
    slopes += [("slope", k, s) for k, s in enumerate(challenger.slopes or (), 1)]
    for name, k, slope in slopes:
        if not low <= slope <= high:
            return (
                f"{name} at position {k} means a slope of {slope:.4g}, outside [{low:g}, {high:g}]"
            )
    for k, intercept in enumerate(challenger.intercepts or (), 1):
        if abs(intercept) > MAXIMUM_INTERCEPT:
            return f"intercept at position {k} is {intercept:.4g}, beyond ±{MAXIMUM_INTERCEPT:g}"
    return None
