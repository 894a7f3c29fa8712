"""The change point: when the run that now carries the evidence began.

A CUSUM forgets everything whenever its product falls to 1 or below, so its last such reset is the
most likely time of the change (it maximises the likelihood over starts). With a mixture the
alternative that holds most of the evidence decides, and the alternatives that hold 95 % of it
show how well the time is known.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from monitoring.detectors.verdict import ChangePoint

_SHARE = 0.95


def estimate_change_point(
    log_evidence: NDArray[np.float64],  # [M] log of weight times e-CUSUM, per alternative
    starts: NDArray[np.int64],  # [M] row with which each alternative's run began
) -> ChangePoint:
    """The start of the leading alternative's run, with the spread over the alternatives.

    Examples:
        >>> estimate_change_point(np.log([6.0, 90.0, 4.0]), np.array([10, 500, 700]))
        ChangePoint(row=500, earliest=10, latest=500)
    """
    order = np.argsort(-log_evidence, kind="stable")
    share = np.exp(log_evidence[order] - np.logaddexp.reduce(log_evidence))
    needed = int(np.searchsorted(np.cumsum(share), _SHARE)) + 1
    holders = starts[order[:needed]]
    return ChangePoint(int(starts[order[0]]), int(holders.min()), int(holders.max()))
