"""Rows that a recalibration may fit on, and what each is worth.

Nothing here looks at outcomes to decide what a row is worth: a tenant's cap depends on how many
rows it sent, and which rows Sequential Temperature Scaling may read on what was decided before the
block was drafted. Anything else would bias the fit.

Letters: N rows, γ draft positions, ℓ verified length.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from calib.data_quality import QualityFlag, quality_flags
from calib.errors import FitRefusedError
from calib.label_consistency import check_label_consistency
from calib.logit_sketch import LogitSketch
from calib.pair_sketch import PairSketch
from calib.record_schema import UNKNOWN_LENGTH, Flag
from calib.records import AcceptanceRecords
from calib.row_hashes import cluster_hashes, row_hashes
from calib.segment_sketches import tenant_parts
from calib.sketch_cells import LogitCells
from calib.statuses import Refusal, ServingStatus
from calib.tenant_weights import TenantWeights

__all__ = [
    "MOST_TRIMMED",
    "FitRows",
    "PairParts",
    "decided_in_advance",
    "trimmed_mask",
    "trusted_rows",
]

MOST_TRIMMED: Final = 0.002
"""Share of trimmed rows that Sequential Temperature Scaling leaves out without another word: they
move no rate by more than a fifth of a point."""

# What each suspicion means for the person who can mend it.
_FLAG_REASONS: Final = {
    QualityFlag.LOOKS_LIKE_PROBABILITIES: (
        "every confidence logit of the window lies within [0, 1]: the engines seem to send "
        "probabilities; send the head's raw output"
    ),
    QualityFlag.FIRST_POSITION_ALWAYS_ACCEPTED: (
        "position 1 was accepted in every row: slot 0 seems to be the anchor, or acceptance is "
        "forced; send draft positions only"
    ),
}


def trusted_rows(records: AcceptanceRecords, minimum: int) -> AcceptanceRecords:
    """The rows that may enter a fit.

    Args:
        records: a window of telemetry.
        minimum: rows without which no position could be published.

    Raises:
        FitRefusedError: there are none or too few, or something about them is wrong.
    """
    usable = records.fitting_rows()
    if len(usable) == 0:
        excluded = {name: count for name, count in records.exclusion_counts().items() if count}
        held = f" excluded: {excluded};" if excluded else ""
        raise FitRefusedError(
            Refusal.NO_ROWS,
            f"none of {len(records)} stored rows may enter a fit;{held} check that engines send "
            "telemetry and that it is not rejected",
        )
    for flag in quality_flags(usable):
        raise FitRefusedError(str(flag), _FLAG_REASONS[flag])
    check_label_consistency(usable).require()
    if len(usable) < minimum:
        raise FitRefusedError(
            ServingStatus.INSUFFICIENT,
            f"{len(usable)} usable rows; at least {minimum} are needed to publish a position",
        )
    return usable


def trimmed_mask(records: AcceptanceRecords) -> NDArray[np.bool_]:
    """Mask [N] of the rows whose policy verified fewer than γ positions.

    A stop token that cut a fully scheduled block is no trimming. Without the policy's own length
    a row that a stop token cut counts as fully scheduled.
    """
    stopped = (records.flags & np.uint8(Flag.STOP_TRUNCATED)) != 0
    lengths = np.where(stopped, records.gamma, records.verified)
    if records.scheduled is not None:
        known = records.scheduled != UNKNOWN_LENGTH
        lengths = np.where(known, records.scheduled, lengths)
    trimmed: NDArray[np.bool_] = lengths < records.gamma
    return trimmed


def decided_in_advance(records: AcceptanceRecords) -> NDArray[np.bool_]:
    """Mask [N] of the rows whose full verification was decided before the block was drafted.

    By load alone (propensity 1) or by a coin (explored): never because high confidence happened
    to admit everything, which would pick the rows by what is being calibrated.
    """
    decided = records.explored.copy()
    if records.propensity is not None:
        decided |= records.propensity == np.float32(1.0)
    return decided & ~trimmed_mask(records)


class PairParts(NamedTuple):
    """Neighbouring logits of disjoint rows.

    Attributes:
        sketches: one per part.
        weights: of the rows of each part.
        folds: parts of one fold share luck.
    """

    sketches: list[PairSketch]
    weights: list[float]
    folds: list[int]


@dataclass(frozen=True, eq=False)
class FitRows:
    """Rows to fit on, by weight.

    Attributes:
        records: all of them.
        parts: the same rows by weight, weight 1 first.
        tenants: what the cap on a tenant's share did.
    """

    records: AcceptanceRecords
    parts: tuple[tuple[float, AcceptanceRecords], ...]
    tenants: TenantWeights

    @classmethod
    def of(cls, records: AcceptanceRecords, largest_tenant_share: float = 1.0) -> Self:
        """The usable rows, no tenant's weighing more than its share of the whole.

        Raises:
            RecordError: a share outside (0, 1].
        """
        parts, tenants = tenant_parts(records, largest_tenant_share)
        return cls(records.fitting_rows(), tuple(parts), tenants)

    @cached_property
    def thinned(self) -> AcceptanceRecords:
        """Rows for fits that know no weights: of each row's weight the share that is kept.

        Kept by a hash of the raw logits, so the same rows in any order.
        """
        if not self.tenants.capped:
            return self.records
        chance = row_hashes(self.records).astype(np.float64) * 2.0**-64
        return self.records.select(chance < self.tenants.weights)

    @cached_property
    def trimmed_share(self) -> float:
        """Share of rows whose policy verified fewer than γ positions."""
        return float(trimmed_mask(self.records).mean()) if len(self.records) else 0.0

    @property
    def gamma(self) -> int:
        """Draft positions."""
        return self.records.gamma

    def __len__(self) -> int:
        return len(self.records)

    def cells(self) -> LogitCells:
        """Conditional labels by logit, weighted."""
        sketches = [LogitSketch.from_records(part) for _, part in self.parts]
        return LogitCells.weighted(sketches, [weight for weight, _ in self.parts])

    def pairs(self) -> PairParts:
        """Neighbouring logits in two halves, by a hash of the prompt (or request)."""
        found = PairParts([], [], [])
        for weight, part in self.parts:
            half = cluster_hashes(part) % np.uint64(2)  # the same in any order of the rows
            for fold in (0, 1):
                found.sketches.append(PairSketch.from_records(part.select(half == fold)))
                found.weights.append(weight)
                found.folds.append(fold)
        return found

    def logits(self, rows: int) -> NDArray[np.float32]:
        """Logits of at most so many rows, by ascending hash: the same in any order."""
        records = self.thinned
        if len(records) > rows:
            order = np.argsort(row_hashes(records), kind="stable")
            records = records.select(order[:rows])
        return records.confidence_logits

    def survival_rows(self, minimum: int) -> AcceptanceRecords:
        """Rows that Sequential Temperature Scaling may read.

        All that were fully scheduled where (nearly) nothing is trimmed; else those whose full
        verification was decided in advance.

        Raises:
            FitRefusedError: ``trimmed_rows``: fewer than ``minimum`` of those.
        """
        rows = self.thinned
        if self.trimmed_share <= MOST_TRIMMED:
            return rows.select(~trimmed_mask(rows)) if self.trimmed_share else rows
        full = rows.select(decided_in_advance(rows))
        if len(full) < minimum:
            raise FitRefusedError(
                Refusal.TRIMMED_ROWS,
                f"{self.trimmed_share:.1%} of the rows were trimmed, and {len(full)} were verified "
                f"fully by load or by a coin, {minimum} needed: fitted on trimmed rows Sequential "
                "Temperature Scaling is as wrong as no calibration; use method 'survival' (the "
                "same with imputed survival) or 'temperature'",
            )
        return full

    def describe(self) -> dict[str, Any]:
        """Trimming and tenants, as plain JSON values; a tenant is named as its rows name it."""
        shares = self.tenants.shares
        return {
            "rows": len(self.records),
            "trimmed_share": self.trimmed_share,
            "decided_in_advance": int(decided_in_advance(self.records).sum()),
            "tenants": {
                "most_weight": self.tenants.max_share,
                "capped": [
                    {
                        "tenant": tenant,
                        "share": shares[tenant],
                        "weighted_share": self.tenants.weighted_shares[tenant],
                    }
                    for tenant in self.tenants.capped
                ],
            },
        }
