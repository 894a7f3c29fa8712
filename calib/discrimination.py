"""Discrimination: how well scores rank accepted before rejected positions.

A row with label y counts as y positives and 1 - y negatives, so soft labels need no threshold and
hard labels are the ordinary case. Rank by logits: fp32 probabilities near 1 tie where their
logits do not.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib.errors import InvalidInputError
from calib.reliability import FRACTION_BITS, unit_interval

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class ScoreGroups:
    """Rows with equal scores taken together, by ascending score.

    Attributes:
        weight: [m] Σw of the rows of each group.
        positive: [m] Σwy, between 0 and ``weight``.
    """

    weight: Floats
    positive: Floats


def score_groups(
    scores: ArrayLike,  # [N] finite
    y: ArrayLike,  # [N] labels in [0, 1]
    weights: ArrayLike | None = None,  # [N] >= 0
) -> ScoreGroups:
    """Sort once and pool ties.

    Without weights the sums are exact integers, so the result does not depend on row order.

    Raises:
        InvalidInputError: for NaN scores, labels outside [0, 1] or lengths that differ.
    """
    ranks = np.asarray(scores)
    labels = unit_interval("y", y)
    if ranks.ndim != 1 or labels.shape != ranks.shape:
        raise InvalidInputError("scores", ranks.shape, f"give one score per label, {labels.shape}")
    if np.isnan(ranks).any():
        raise InvalidInputError("scores", float("nan"), "mask rows without a score")
    order = np.argsort(ranks)
    ordered = ranks[order]
    last = np.append(np.flatnonzero(ordered[1:] != ordered[:-1]), len(ordered) - 1)
    last = last[last >= 0]
    if weights is None:
        units = np.rint(labels[order].astype(np.float64) * float(1 << FRACTION_BITS))
        through = np.cumsum(units.astype(np.int64))[last]
        positive = np.diff(through, prepend=np.int64(0)) * 2.0**-FRACTION_BITS
        return ScoreGroups(np.diff(last, prepend=-1).astype(np.float64), positive)
    row_weight = np.asarray(weights, dtype=np.float64)[order]
    starts = np.concatenate(([0], last[:-1] + 1)) if len(last) else last
    weight = np.add.reduceat(row_weight, starts) if len(last) else row_weight
    weighted = row_weight * labels[order]
    return ScoreGroups(weight, np.add.reduceat(weighted, starts) if len(last) else weighted)


def area_under_curve(groups: ScoreGroups) -> float | None:
    """Exact area under the ROC curve in [0, 1], ties counted half.

    The probability that a random positive outranks a random negative; None when either class has
    no weight.

    Examples:
        >>> area_under_curve(score_groups([0.8, 0.8, 0.3], [1, 0, 0]))
        0.75
    """
    negative = np.maximum(groups.weight - groups.positive, 0.0)
    positives, negatives = float(groups.positive.sum()), float(negative.sum())
    if positives <= 0.0 or negatives <= 0.0:
        return None
    below = np.cumsum(negative) - negative
    won = float((groups.positive * (below + 0.5 * negative)).sum())
    return min(won / (positives * negatives), 1.0)
