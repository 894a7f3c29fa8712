"""Step curves from a formula, for simulations and tests.

A step costs ``base_seconds`` while the weights are what must be read, and grows in proportion to
B once arithmetic binds, beyond ``knee`` tokens:

* ``smooth``: t(B) = base · (1 + (B/knee)^sharpness)^(1/sharpness); Θ along the greedy path is
  unimodal, so early stopping finds the best schedule (paper §3.2.2);
* ``kneed``: t(B) = base · max(1, B/knee), its limit for sharpness → ∞;
* ``staircase``: the kneed curve at B rounded up to a multiple of ``tile``, as engines that pad to
  captured graph sizes show it (paper §5.2); Θ has local maxima.
"""

from __future__ import annotations

from enum import StrEnum

import numpy as np

from calib.cost_table import MeasuredCostTable
from calib.errors import ScheduleError


class CurveShape(StrEnum):
    """How step time grows around the knee."""

    SMOOTH = "smooth"
    KNEED = "kneed"
    STAIRCASE = "staircase"


def analytic_cost_table(
    shape: CurveShape | str,
    *,
    max_batch_tokens: int,
    base_seconds: float = 0.02,
    knee: int = 256,
    sharpness: float = 4.0,
    tile: int = 64,
) -> MeasuredCostTable:
    """A step curve tabulated at every B from 1 to ``max_batch_tokens``.

    Args:
        shape: form of the curve.
        max_batch_tokens: last tabulated B.
        base_seconds: step time of a nearly empty batch, positive.
        knee: B at which arithmetic takes over, at least 1.
        sharpness: exponent of the smooth curve, at least 1.
        tile: width of the stairs, at least 1.

    Raises:
        ScheduleError: an unknown shape, or an option outside its range.
    """
    if shape not in list(CurveShape):
        raise ScheduleError("shape", shape, f"give one of {', '.join(CurveShape)}")
    for name, value in (("max_batch_tokens", max_batch_tokens), ("knee", knee), ("tile", tile)):
        if value < 1:
            raise ScheduleError(name, value, "give at least 1")
    if not 1.0 <= sharpness < float("inf"):
        raise ScheduleError("sharpness", sharpness, "give a finite exponent of at least 1")
    tokens = np.arange(1, max_batch_tokens + 1)
    load = tokens / knee
    if shape == CurveShape.SMOOTH:
        growth = (1.0 + load**sharpness) ** (1.0 / sharpness)
    else:
        if shape == CurveShape.STAIRCASE:
            load = -(-tokens // tile) * tile / knee
        growth = np.maximum(1.0, load)
    seconds = base_seconds * growth
    return MeasuredCostTable(tuple(tokens.tolist()), tuple(seconds.tolist()))
