"""What a replay knows of the tokens a block would have had accepted at another verified length.

A replay asks one thing of a log: how many drafted tokens of a block are accepted if its first ℓ
are verified. Fully verified blocks answer it themselves. Trimmed blocks need a model for what was
not verified; an estimator that has one implements the same protocol.

Letters: N rows, γ positions, M of the rows, n accepted length, ℓ verified length.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib.errors import RecordError
from calib.record_schema import Flag
from calib.records import AcceptanceRecords

__all__ = ["ExpectedOutcomes", "FullyVerified", "ReplayOutcomes"]


class ReplayOutcomes(Protocol):
    """Accepted tokens of the rows of one log at any verified length."""

    @property
    def known(self) -> NDArray[np.bool_]:
        """[N] rows it can speak of. May depend on what was verified, never on what was accepted."""

    def accepted(
        self,
        rows: NDArray[np.intp],  # [M] row numbers, all known
        lengths: NDArray[np.int64],  # [M] ℓ to be verified
        /,
    ) -> NDArray[np.float64]:
        """[M] accepted drafted tokens, or their expectation; anchor and bonus not counted."""

    def modelled(
        self, rows: NDArray[np.intp], lengths: NDArray[np.int64], /
    ) -> NDArray[np.float64]:
        """[M] how many of these tokens rest on a model alone, with no observation behind them."""


class FullyVerified:
    """Counted outcomes of fully verified rows: min(n, ℓ).

    A row is fully verified when ℓ = γ, and when only a stop token cut it: what follows a stop token
    is never emitted, whatever would have been verified.
    """

    def __init__(self, records: AcceptanceRecords) -> None:
        full = records.verified == records.gamma
        if records.scheduled is not None:
            cut = (records.flags & np.uint8(Flag.STOP_TRUNCATED)) != 0
            full |= cut & (records.scheduled == records.gamma)
        self._known: NDArray[np.bool_] = full
        self._accepted = records.accepted

    @property
    def known(self) -> NDArray[np.bool_]:
        """[N] fully verified rows."""
        return self._known

    def accepted(
        self, rows: NDArray[np.intp], lengths: NDArray[np.int64], /
    ) -> NDArray[np.float64]:
        """[M] min(n, ℓ)."""
        return np.minimum(self._accepted[rows], lengths).astype(np.float64)

    def modelled(
        self, rows: NDArray[np.intp], lengths: NDArray[np.int64], /
    ) -> NDArray[np.float64]:
        """[M] zeros: everything was counted."""
        return np.zeros(len(rows))


class ExpectedOutcomes:
    """Expected outcomes under a survival that is taken as true: Σ_{k≤ℓ} S_k.

    For simulations, where the truth is known, and for forecasts; not for judging the model that
    the survival comes from.

    Args:
        survival: [N, γ] in [0, 1].

    Raises:
        RecordError: another shape, or values outside [0, 1].
    """

    def __init__(self, survival: ArrayLike) -> None:
        values = np.asarray(survival, dtype=np.float64)
        if values.ndim != 2 or not ((values >= 0.0) & (values <= 1.0)).all():
            raise RecordError("survival", values.shape, "give [N, gamma] values in [0, 1]")
        self._total = np.zeros((len(values), values.shape[1] + 1))
        np.cumsum(values, axis=1, out=self._total[:, 1:])

    @property
    def known(self) -> NDArray[np.bool_]:
        """[N] all rows."""
        return np.ones(len(self._total), dtype=np.bool_)

    def accepted(
        self, rows: NDArray[np.intp], lengths: NDArray[np.int64], /
    ) -> NDArray[np.float64]:
        """[M] Σ_{k≤ℓ} S_k."""
        return np.asarray(self._total[rows, lengths])

    def modelled(
        self, rows: NDArray[np.intp], lengths: NDArray[np.int64], /
    ) -> NDArray[np.float64]:
        """[M] all of it."""
        return self.accepted(rows, lengths)
