"""Accepted tokens of trimmed blocks at any length: what was observed, and a model for the rest.

Verified positions answer for themselves. For the others there is a survival S, and where blocks
were verified fully by a coin of known propensity, those blocks correct it for all:

    accepted(ℓ') = Σ_{j ≤ ℓ'} [ S_j + w_j · (1{n ≥ j} − S_j) ]

observed means ℓ ≥ j (zeros that are known because a block was rejected earlier are no
observations: they are known *because* of the outcome), and w_j is

* 1 where the policy verified j: what it verifies depends on nothing that token j reveals, so these
  positions stand for themselves;
* 1 / propensity where only the coin verified j, and 0 where it would have been the coin's to verify
  and the coin said no;
* 1 where it was verified by load alone, whose propensity is 1;
* 0 elsewhere: these tokens rest on the model alone, and are counted as such.

With right propensities the sum is unbiased whatever S is; with a right S, whatever the propensities
are. Weights never come from a calibration that is judged, and S must not be fitted on these rows.

Which positions of an explored block the policy would have verified is not part of telemetry. A
caller who can schedule the log again as it was scheduled says so (``policy_lengths``). Otherwise an
explored block is one more observation with weight 1, no block is corrected by another, and
everything that was not verified rests on the model.

Letters: N rows, γ positions, n accepted length, ℓ verified length, M of the rows.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib.errors import ConfigurationError, RecordError
from calib.record_schema import Flag
from calib.records import AcceptanceRecords

__all__ = ["LARGEST_WEIGHT", "DoublyRobustOutcomes"]

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

# A rarer coin would let single blocks decide; beyond it the correction is partial, S the rest.
LARGEST_WEIGHT = 50.0


class DoublyRobustOutcomes:
    """Outcomes of every row of a log, trimmed or not.

    Args:
        records: the log.
        survival: [N, γ] in [0, 1], from a model that was not fitted on these rows.
        policy_lengths: [N] ℓ that the scheduler gave before any coin; None where unknown.
        largest_weight: clip of 1 / propensity.

    Raises:
        RecordError: survivals or lengths of another shape or range; policy lengths below what was
            verified without a coin.
        ConfigurationError: a clip below 1.
    """

    def __init__(
        self,
        records: AcceptanceRecords,
        survival: ArrayLike,
        *,
        policy_lengths: ArrayLike | None = None,
        largest_weight: float = LARGEST_WEIGHT,
    ) -> None:
        model = _checked_survival(survival, records)
        if not largest_weight >= 1.0:
            raise ConfigurationError("largest_weight", largest_weight, "give at least 1")
        position = np.arange(1, records.gamma + 1)
        observed = _observed(records, position)
        labels = position <= records.accepted[:, None]
        weights = observed.astype(np.float64)
        alone = ~observed
        if policy_lengths is not None:
            lengths = _checked_lengths(policy_lengths, records)
            coin = (position > lengths[:, None]) & ~_by_load(records)[:, None]
            known = np.isfinite(records.propensity) & (records.propensity > 0.0)
            share = np.where(known, records.propensity, 1.0).astype(np.float64)
            inverse = np.minimum(1.0 / share, largest_weight)[:, None]
            weights = np.where(coin & known[:, None], inverse * observed, weights)
            alone &= ~(coin & known[:, None])
        self._weights: Floats = weights
        self._beyond: Mask = weights > 1.0
        self._observed: Mask = observed
        self._accepted = _totals(model + weights * (labels - model))
        self._modelled = _totals(model * alone)

    @property
    def known(self) -> Mask:
        """[N] all rows."""
        return np.ones(len(self._accepted), dtype=np.bool_)

    def accepted(self, rows: NDArray[np.intp], lengths: NDArray[np.int64], /) -> Floats:
        """[M] doubly robust accepted tokens; a single one may lie outside 0 … ℓ'."""
        return np.asarray(self._accepted[rows, lengths])

    def modelled(self, rows: NDArray[np.intp], lengths: NDArray[np.int64], /) -> Floats:
        """[M] tokens of them that rest on the model alone."""
        return np.asarray(self._modelled[rows, lengths])

    @property
    def observed_share(self) -> Floats:
        """[γ] share of the rows that verified each position."""
        return np.asarray(self._observed.mean(axis=0))

    @property
    def effective_coins(self) -> Floats:
        """[γ] (Σw)² / Σw² over blocks that a coin verified beyond the policy: what corrects S."""
        weights = np.where(self._beyond, self._weights, 0.0)
        squared = (weights**2).sum(axis=0)
        total = weights.sum(axis=0) ** 2
        count: Floats = np.divide(total, squared, out=np.zeros_like(total), where=squared > 0.0)
        return count


def _observed(records: AcceptanceRecords, position: NDArray[np.int64]) -> Mask:
    """[N, γ] ℓ ≥ j; beyond a drafted stop token too, where nothing is ever emitted."""
    stopped = (records.flags & np.uint8(Flag.STOP_TRUNCATED)) != 0
    return np.asarray((position <= records.verified[:, None]) | stopped[:, None])


def _by_load(records: AcceptanceRecords) -> Mask:
    """[N] rows that were to be verified fully whatever their confidence."""
    return np.asarray(records.propensity == 1.0)


def _totals(values: Floats) -> Floats:
    """[N, γ + 1] sums over the first 0, 1, … positions."""
    totals = np.zeros((len(values), values.shape[1] + 1))
    np.cumsum(values, axis=1, out=totals[:, 1:])
    return totals


def _checked_survival(survival: ArrayLike, records: AcceptanceRecords) -> Floats:
    values = np.asarray(survival, dtype=np.float64)
    if values.shape != records.confidence_logits.shape:
        shown = records.confidence_logits.shape
        raise RecordError("survival", values.shape, f"give {shown}")
    if not ((values >= 0.0) & (values <= 1.0)).all():  # NaN is wrong as well
        raise RecordError("survival", "a value outside", "give finite values in [0, 1]")
    return values


def _checked_lengths(policy_lengths: ArrayLike, records: AcceptanceRecords) -> NDArray[np.int64]:
    lengths = np.asarray(policy_lengths)
    if lengths.shape != (len(records),) or lengths.dtype.kind not in "iu":
        shown = (lengths.dtype.name, lengths.shape)
        raise RecordError("policy_lengths", shown, f"give {len(records)} whole numbers")
    if lengths.size and (lengths.min() < 0 or lengths.max() > records.gamma):
        raise RecordError("policy_lengths", "a length outside", f"give 0 … {records.gamma}")
    wrong = (lengths < records.verified) & ~records.explored & ~_by_load(records)
    if wrong.any():
        row = int(np.argmax(wrong))
        remedy = "give the lengths of the policy that made the log, or none"
        raise RecordError("policy_lengths", f"row {row}: {int(lengths[row])}", remedy)
    return lengths.astype(np.int64)
