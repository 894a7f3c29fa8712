"""Rows as detectors read them: predictions of the current champion beside what happened.

What a bet may know. The bet on position k of a row may use the past, the row's tags, its logits
z_1 … z_k and the fact {ℓ ≥ k}. It may not use the value of ℓ, nor z_{k+1} and later: those reveal
the token x_k and with it y_k (given ℓ, y_k is off by up to 0.1 though the head is perfect). So
every quantity here is per position, labels are taken where k ≤ min(n + 1, ℓ), and nothing is ever
divided by, binned by or stratified by ℓ.

Letters: N rows, γ (gamma) positions; arrays use index 0 for position 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib.calibration import Calibration
from calib.errors import RecordError
from calib.labels import checked_lengths
from calib.records import AcceptanceRecords


@dataclass(frozen=True, eq=False)
class Observations:
    """A batch of rows in the order of the stream.

    Interleave the fleet's requests (order by step): within one request residuals are correlated
    through what the head cannot see. See :mod:`monitoring.detectors.e_cusum` for what is claimed
    then, and what a design effect does about it.

    Attributes:
        conditional: [N, γ] conditional confidences c of the champion's model, fp32 in [0, 1].
        verified: [N] ℓ.
        accepted: [N] n ≤ ℓ.
        survival: [N, γ] survival S of the champion's survival model, or None. Never a bare
            product of conditionals, unless the model is the product.

    Raises:
        RecordError: shapes that do not fit, probabilities outside [0, 1], or lengths that do not
            keep 0 ≤ n ≤ ℓ ≤ γ.
    """

    conditional: NDArray[np.float32]
    verified: NDArray[Any]
    accepted: NDArray[Any]
    survival: NDArray[np.float32] | None = None

    def __post_init__(self) -> None:
        conditional = _probabilities("conditional", self.conditional)
        rows, gamma = conditional.shape
        verified, accepted = checked_lengths(self.verified, self.accepted, gamma)
        if len(verified) != rows:
            raise RecordError("verified", len(verified), f"give {rows} rows, as in conditional")
        object.__setattr__(self, "conditional", conditional)
        object.__setattr__(self, "verified", verified)
        object.__setattr__(self, "accepted", accepted)
        if self.survival is not None:
            survival = _probabilities("survival", self.survival)
            if survival.shape != conditional.shape:
                raise RecordError("survival", survival.shape, f"give {conditional.shape}")
            object.__setattr__(self, "survival", survival)

    @classmethod
    def from_records(
        cls,
        records: AcceptanceRecords,
        champion: Calibration,
        survival: ArrayLike | None = None,  # [N, γ] of the same records
    ) -> Self:
        """The usable rows, scored from their raw logits under ``champion``.

        The conditional model is the affine form where the champion has one.

        Raises:
            RecordError: as the class, and for a champion of another γ.
        """
        if champion.gamma != records.gamma:
            raise RecordError("champion.gamma", champion.gamma, f"records have γ {records.gamma}")
        usable = records.usable()
        chosen = records.select(usable)
        form = champion.slopes is not None
        return cls(
            champion.conditional(
                chosen.confidence_logits, form="affine" if form else "temperatures"
            ),
            chosen.verified,
            chosen.accepted,
            None if survival is None else np.asarray(survival, dtype=np.float32)[usable],
        )

    def __len__(self) -> int:
        return len(self.verified)

    @property
    def gamma(self) -> int:
        """γ."""
        return int(self.conditional.shape[1])

    def select(self, rows: slice | NDArray[np.intp]) -> Self:
        """The given rows, in the given order; views of a slice."""
        chosen = object.__new__(type(self))  # checked already
        for name in ("conditional", "verified", "accepted"):
            object.__setattr__(chosen, name, getattr(self, name)[rows])
        survival = None if self.survival is None else self.survival[rows]
        object.__setattr__(chosen, "survival", survival)
        return chosen


def _probabilities(name: str, values: ArrayLike) -> NDArray[np.float32]:
    array = np.ascontiguousarray(values, dtype=np.float32)
    if array.ndim != 2 or array.shape[1] == 0:
        raise RecordError(name, array.shape, "give an array [rows, gamma]")
    # NaN fails both comparisons, so one pass over extremes finds it too.
    if array.size and not (array.min() >= 0.0 and array.max() <= 1.0):
        wrong = array[~((array >= 0.0) & (array <= 1.0))]
        raise RecordError(name, float(wrong[0]), "give probabilities in [0, 1]")
    return array
