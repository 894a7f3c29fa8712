"""Where along the block drafts fail, and what a static confidence threshold would do about it.

By position, over all rows and by domain: conditional acceptance (of positions that were reached and
verified), survival (of rows verified that far), coverage, and what became of the drafted tokens:
accepted, rejected, verified in vain after a rejection, not verified. Over thresholds on the raw
conditional confidence: tokens verified, accepted and wasted per block, the acceptance rate and the
accepted length. A threshold raises the acceptance *rate* and lowers the accepted *length*: only a
cost table says which of the two is worth more (:mod:`calib.throughput_study`).

Letters: N rows, γ positions, n accepted length, ℓ verified length.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from calib.errors import CalibrationError, ConfigurationError, FitRefusedError
from calib.labels import observed_mask
from calib.log_replay import log_outcomes
from calib.records import AcceptanceRecords
from calib.replay_outcomes import FullyVerified, ReplayOutcomes
from calib.sigmoid import sigmoid_fp32
from calib.statuses import Refusal
from calib.throughput_study import lengths_above

__all__ = [
    "ALL_ROWS",
    "THRESHOLDS",
    "BlockDiagnosis",
    "GroupDiagnosis",
    "PositionDiagnosis",
    "ThresholdPoint",
    "diagnose_blocks",
]

ALL_ROWS: Final = "all"
THRESHOLDS: Final = tuple(round(0.05 * step, 2) for step in range(20))
_Z95 = 1.959963984540054
_MOST_GROUPS = 12

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class PositionDiagnosis:
    """One position of a group.

    Attributes:
        position: k, from 1.
        observed: rows that reached and verified it, k ≤ min(n + 1, ℓ).
        acceptance: share of these that accepted it; None without rows.
        acceptance_low: lower end of its 95 % interval (Wilson); None without rows.
        acceptance_high: upper end.
        confidence: mean raw conditional confidence of these rows; None without rows.
        coverage: share of all rows with ℓ ≥ k.
        survival: share with n ≥ k of the rows with ℓ ≥ k; None without rows.
        accepted: share of all rows that accepted it.
        rejected: share that rejected it.
        in_vain: share that verified it after an earlier rejection.
        not_verified: share that did not verify it.
    """

    position: int
    observed: int
    acceptance: float | None
    acceptance_low: float | None
    acceptance_high: float | None
    confidence: float | None
    coverage: float
    survival: float | None
    accepted: float
    rejected: float
    in_vain: float
    not_verified: float


@dataclass(frozen=True, slots=True)
class ThresholdPoint:
    """What one static threshold would have done.

    Attributes:
        threshold: blocks are cut at their first raw confidence below it; 0 cuts nothing.
        verified: drafted tokens verified per block.
        accepted: of these, accepted per block.
        wasted: verified and not accepted, per block.
        acceptance_rate: accepted / verified; None where nothing is verified.
        accepted_length: 1 + accepted, bonus counted.
        modelled_share: share of the accepted tokens that rests on a model alone.
    """

    threshold: float
    verified: float
    accepted: float
    wasted: float
    acceptance_rate: float | None
    accepted_length: float
    modelled_share: float


@dataclass(frozen=True, slots=True)
class GroupDiagnosis:
    """All rows, or those of one domain.

    Attributes:
        name: the domain, or ``all``.
        rows: N.
        accepted_length: mean of 1 + n as it was, under the verified lengths as they were.
        accepted_length_error: its standard error over rows; None with fewer than two.
        verified: mean ℓ.
        length_shares: share of rows by n, 0 … γ.
        positions: by position.
        sweep: by threshold; empty where outcomes of trimmed rows are unknown.
        sweep_reason: why it is empty.
    """

    name: str
    rows: int
    accepted_length: float
    accepted_length_error: float | None
    verified: float
    length_shares: tuple[float, ...]
    positions: tuple[PositionDiagnosis, ...]
    sweep: tuple[ThresholdPoint, ...]
    sweep_reason: str | None = None


@dataclass(frozen=True, slots=True)
class BlockDiagnosis:
    """The diagnosis of a log.

    Attributes:
        gamma: γ.
        groups: all rows first, then domains by size; small ones beyond a dozen are left out.
        excluded: rows left out, by reason.
        fully_verified: share of the rows whose every position was verified.
    """

    gamma: int
    groups: tuple[GroupDiagnosis, ...]
    excluded: dict[str, int]
    fully_verified: float

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; nulls where there are no rows."""
        return asdict(self)


def diagnose_blocks(
    records: AcceptanceRecords, *, thresholds: Sequence[float] = THRESHOLDS
) -> BlockDiagnosis:
    """Diagnose the usable rows of a log.

    Args:
        records: telemetry.
        thresholds: of the sweep, 0 … 1.

    Raises:
        FitRefusedError: ``no_rows``: nothing usable.
        ConfigurationError: thresholds outside 0 … 1.
    """
    if not all(0.0 <= threshold <= 1.0 for threshold in thresholds):
        raise ConfigurationError("thresholds", list(thresholds), "give shares from 0 to 1")
    usable = records.fitting_rows()
    if not len(usable):
        raise FitRefusedError(Refusal.NO_ROWS, f"none of {len(records)} rows is usable")
    outcomes: ReplayOutcomes | None = None
    reason = None
    try:
        outcomes = log_outcomes(usable)
    except CalibrationError as error:
        reason = str(error)
    groups = [
        _group(usable, member, name, outcomes, thresholds, reason)
        for name, member in _groups(usable)
    ]
    known = FullyVerified(usable).known
    return BlockDiagnosis(
        records.gamma, tuple(groups), records.exclusion_counts(), float(known.mean())
    )


def _groups(records: AcceptanceRecords) -> list[tuple[str, Mask]]:
    everything = [(ALL_ROWS, np.full(len(records), True))]
    if records.domain is None:
        return everything
    names = np.array(["" if name is None else str(name) for name in records.domain.tolist()])
    found, counts = np.unique(names[names != ""], return_counts=True)
    largest = found[np.argsort(-counts, kind="stable")][:_MOST_GROUPS]
    return everything + [(str(name), names == name) for name in largest]


def _group(
    records: AcceptanceRecords,
    member: Mask,
    name: str,
    outcomes: ReplayOutcomes | None,
    thresholds: Sequence[float],
    reason: str | None,
) -> GroupDiagnosis:
    rows = np.flatnonzero(member)
    chosen = records.select(rows)
    lengths = 1.0 + chosen.accepted.astype(np.float64)
    shares = np.bincount(chosen.accepted, minlength=records.gamma + 1) / len(rows)
    error = float(lengths.std(ddof=1)) / math.sqrt(len(rows)) if len(rows) > 1 else None
    sweep: list[ThresholdPoint] = []
    if outcomes is not None:
        sweep = [_point(chosen, rows, outcomes, threshold) for threshold in thresholds]
    return GroupDiagnosis(
        name=name,
        rows=len(rows),
        accepted_length=float(lengths.mean()),
        accepted_length_error=error,
        verified=float(chosen.verified.mean()),
        length_shares=tuple(shares.tolist()),
        positions=tuple(_positions(chosen)),
        sweep=tuple(sweep),
        sweep_reason=reason,
    )


def _positions(records: AcceptanceRecords) -> list[PositionDiagnosis]:
    position = np.arange(1, records.gamma + 1)
    verified = position <= records.verified[:, None]
    accepted = position <= records.accepted[:, None]
    observed = observed_mask(records)
    confidence = sigmoid_fp32(records.confidence_logits)
    total = len(records)
    found = []
    for index in range(records.gamma):
        seen = observed[:, index]
        count, kept = int(seen.sum()), int(accepted[:, index].sum())
        reached = int(verified[:, index].sum())
        low, high = _wilson(kept, count)
        found.append(
            PositionDiagnosis(
                position=index + 1,
                observed=count,
                acceptance=kept / count if count else None,
                acceptance_low=low,
                acceptance_high=high,
                confidence=float(confidence[seen, index].mean(dtype=float)) if count else None,
                coverage=reached / total,
                survival=kept / reached if reached else None,
                accepted=kept / total,
                rejected=(count - kept) / total,
                in_vain=(reached - count) / total,
                not_verified=(total - reached) / total,
            )
        )
    return found


def _point(
    chosen: AcceptanceRecords,
    rows: NDArray[np.intp],
    outcomes: ReplayOutcomes,
    threshold: float,
) -> ThresholdPoint:
    lengths = lengths_above(chosen, threshold)
    accepted = float(outcomes.accepted(rows, lengths).mean())
    modelled = float(outcomes.modelled(rows, lengths).mean())
    verified = float(lengths.mean())
    return ThresholdPoint(
        threshold=threshold,
        verified=verified,
        accepted=accepted,
        wasted=verified - accepted,
        acceptance_rate=accepted / verified if verified > 0.0 else None,
        accepted_length=1.0 + accepted,
        modelled_share=modelled / accepted if accepted > 0.0 else 0.0,
    )


def _wilson(positive: int, count: int) -> tuple[float | None, float | None]:
    """95 % interval of a share."""
    if count == 0:
        return None, None
    share, square = positive / count, _Z95**2 / count
    center = (share + square / 2.0) / (1.0 + square)
    half = _Z95 * math.sqrt(share * (1.0 - share) / count + square / (4.0 * count))
    half /= 1.0 + square
    return max(0.0, center - half), min(1.0, center + half)
