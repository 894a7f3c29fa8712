"""Weights that keep one tenant from deciding the calibration of everybody."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calib.errors import RecordError

_ROUNDING = 1e-9  # relative slack: a tenant exactly at the cap is not above it


@dataclass(frozen=True, slots=True)
class TenantWeights:
    """Row weights under a cap, and what the cap did.

    Attributes:
        weights: [N] in (0, 1]; 1 for every tenant below the cap.
        shares: share of the rows each tenant sent, by tenant; None is "tenant unknown".
        weighted_shares: share of the total weight each tenant keeps.
        max_share: the cap in force: the one asked for, or 1 / tenants where that is larger,
            because no weights can give m tenants less than 1 / m each.
        capped: tenants whose rows weigh less than 1, largest share first.
    """

    weights: NDArray[np.float64]
    shares: dict[str | None, float]
    weighted_shares: dict[str | None, float]
    max_share: float
    capped: tuple[str | None, ...]


def capped_weights(
    tenant: Sequence[str | None] | NDArray[np.object_],  # [N]
    max_share: float,
) -> TenantWeights:
    """Row weights under which no tenant holds more than ``max_share`` of the total weight.

    Weights depend on how many rows each tenant sent and on nothing else: a cap that looked at
    outcomes would bias what it protects. Rows of unknown tenant count as one tenant.

    Args:
        tenant: tenant of each row, None where unknown.
        max_share: the cap, in (0, 1].

    Raises:
        RecordError: ``max_share`` outside (0, 1].
    """
    if isinstance(max_share, bool) or not 0.0 < max_share <= 1.0:
        raise RecordError("max_share", max_share, "give a share in (0, 1]")
    names = list(tenant)
    counts = Counter(names)
    if not names:
        return TenantWeights(np.zeros(0), {}, {}, max_share, ())
    cap = max(float(max_share), 1.0 / len(counts))
    limit = _largest_weight(list(counts.values()), cap)
    kept = {name: min(float(count), limit) for name, count in counts.items()}
    total = sum(kept.values())
    return TenantWeights(
        weights=np.array([kept[name] / counts[name] for name in names]),
        shares={name: count / len(names) for name, count in counts.items()},
        weighted_shares={name: weight / total for name, weight in kept.items()},
        max_share=cap,
        capped=tuple(name for name, count in counts.most_common() if _is_above(count, limit)),
    )


def _largest_weight(counts: list[int], cap: float) -> float:
    """Weight W* at which min(count, W*) sums to W* / cap: capped tenants hold exactly the cap.

    With ``cap`` at least 1 / len(counts) the last tenant always fits, so the search ends.
    """
    ordered = sorted(counts, reverse=True)
    remaining = float(sum(ordered))
    capped = 0
    limit = cap * remaining
    while _is_above(ordered[capped], limit):
        remaining -= ordered[capped]
        capped += 1
        limit = cap * remaining / (1.0 - capped * cap)
    return limit


def _is_above(count: int, limit: float) -> bool:
    return count > limit * (1 + _ROUNDING)
