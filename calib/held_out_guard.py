"""The last question before a new fit replaces an old one: is it better on rows it did not see?"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass

from calib.errors import InvalidInputError
from calib.statuses import Refusal

__all__ = ["HeldOutVerdict", "improves_held_out"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HeldOutVerdict:
    """Whether a new version replaces the old one.

    Attributes:
        replace: True to serve the new version, False to keep the old one.
        refusal: ``not_better`` when the old one is kept, else None.
        reason: the numbers, in a sentence.
    """

    replace: bool
    refusal: Refusal | None
    reason: str


def improves_held_out(
    before: float,
    after: float,
    *,
    margin: float = 0.0,
    measure: str = "held-out calibration error",
) -> HeldOutVerdict:
    """Whether the new version has a smaller error than the old one on the same held-out rows.

    What the fit reports about its own rows plays no part: on few rows it improves there and gets
    worse elsewhere. Equal errors keep the old version. A refusal is logged.

    Args:
        before: error of the version in use, >= 0.
        after: error of the new version on the same rows, >= 0.
        margin: improvement below which the old version stays, >= 0.
        measure: what the errors are, for the reason.

    Raises:
        InvalidInputError: for an error or a margin that is negative or not finite.

    Examples:
        >>> verdict = improves_held_out(0.05, 0.08)
        >>> verdict.replace, verdict.refusal
        (False, <Refusal.NOT_BETTER: 'not_better'>)
    """
    for name, value in (("before", before), ("after", after), ("margin", margin)):
        if not (math.isfinite(value) and value >= 0.0):
            raise InvalidInputError(name, value, "give a finite number >= 0")
    if before - after > margin:
        return HeldOutVerdict(True, None, f"{measure} falls from {before:.4g} to {after:.4g}")
    needed = f"; more than {margin:.4g} is needed" if margin else ""
    reason = f"{measure} goes from {before:.4g} to {after:.4g}{needed}: the old version stays"
    _log.warning("refused (%s): %s", Refusal.NOT_BETTER, reason)
    return HeldOutVerdict(False, Refusal.NOT_BETTER, reason)
