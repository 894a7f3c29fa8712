"""How much the rows of one request depend on each other, measured from the rows as they are folded.

Rows of a request share luck that no head sees. Detectors take rows as calibrated given all before
them, and the variance of sums over requests says how far that is from true:

    design effect = Σ_r (Σ_{i in r} x_i)² / Σ_i x_i²,      x = Σ (y − c) over observed labels,

1 for independent rows; the intraclass correlation is what a pair of rows of one request shares. x
is centred on its mean over the newest rows, so that a drift of all traffic is no dependence; one of
a few segments is told as such, since their requests are off together.

Engines interleave requests, and a request spans folds: :data:`OPEN_REQUESTS` of them are kept open.
The one without a row for longest is closed when there are more; if it comes back it counts as
another, which makes the design effect smaller. Sums of closed requests add up over engines and
hours.

Letters: N rows, U open requests.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from calib.records import AcceptanceRecords
from monitoring.detectors.observations import Observations
from monitoring.detectors.residuals import conditional_residual
from monitoring.monitor_deduplication import request_keys

__all__ = ["MINIMUM_REQUESTS", "OPEN_REQUESTS", "Dependence", "RequestDependence"]

OPEN_REQUESTS: Final = 2048
MINIMUM_REQUESTS: Final = 50
"""Requests below which nothing is said."""

_MEAN_ROWS: Final = 2000.0  # rows that the running mean looks back on

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Dependence:
    """What was measured.

    Attributes:
        intraclass: correlation of two rows of one request.
        design_effect: variance of a request's sum over that of as many independent rows.
        requests: requests behind it.
        rows: rows behind it.
    """

    intraclass: float
    design_effect: float
    requests: int
    rows: int


@dataclass(frozen=True, slots=True, eq=False)
class RequestDependence:
    """Sums so far; immutable.

    Attributes:
        rows: rows whose request is known.
        mean: of x over the newest rows.
        squares: Σ x² over rows, centred.
        requests: closed requests.
        request_squares: Σ over closed requests of their sum of x, squared.
        request_pairs: Σ over closed requests of their rows, squared.
        keys: [U] of open requests, ascending.
        counts: [U] their rows.
        sums: [U] their sums of x.
        newest: [U] number of their newest row.
    """

    rows: int = 0
    mean: float = 0.0
    squares: float = 0.0
    requests: int = 0
    request_squares: float = 0.0
    request_pairs: int = 0
    keys: NDArray[np.uint64] = field(default_factory=lambda: np.zeros(0, dtype=np.uint64))
    counts: Integers = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    sums: Floats = field(default_factory=lambda: np.zeros(0))
    newest: Integers = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    def add(self, observations: Observations, records: AcceptanceRecords) -> Self:
        """With more rows; ``records`` are the same rows and name their requests."""
        found = request_keys(records)
        if found is None:
            return self
        codes, keys = found
        residual = conditional_residual(observations) * observations.gamma
        if (codes < 0).any():  # rows of no known request
            residual, codes = residual[codes >= 0], codes[codes >= 0]
        if not len(codes):
            return self
        weight = min(float(self.rows), _MEAN_ROWS)
        mean = (weight * self.mean + float(residual.sum())) / (weight + len(codes))
        residual = residual - mean
        newest = np.zeros(len(keys), dtype=np.int64)
        newest[codes] = self.rows + np.arange(len(codes))
        merged = self._merged(
            keys,
            np.bincount(codes, minlength=len(keys)).astype(np.int64),
            np.bincount(codes, residual, len(keys)).astype(np.float64),
            newest,
        )
        return replace(
            merged,
            rows=self.rows + len(codes),
            mean=mean,
            squares=self.squares + float(residual @ residual),
        )._bounded()

    def estimate(self) -> Dependence | None:
        """Dependence over closed and open requests; None below :data:`MINIMUM_REQUESTS`."""
        requests = self.requests + len(self.keys)
        pairs = self.request_pairs + int(self.counts @ self.counts) - self.rows
        if requests < MINIMUM_REQUESTS or pairs <= 0 or self.squares <= 0.0:
            return None
        squares = self.request_squares + float(self.sums @ self.sums)
        shared = (squares - self.squares) / pairs
        return Dependence(
            intraclass=shared * self.rows / self.squares,
            design_effect=squares / self.squares,
            requests=requests,
            rows=self.rows,
        )

    def _merged(
        self, keys: NDArray[np.uint64], counts: Integers, sums: Floats, newest: Integers
    ) -> Self:
        every, place = np.unique(np.concatenate([self.keys, keys]), return_inverse=True)
        known, fresh = place[: len(self.keys)], place[len(self.keys) :]
        total = np.zeros(len(every), dtype=np.int64)
        total[known] = self.counts
        total[fresh] += counts
        summed = np.zeros(len(every))
        summed[known] = self.sums
        summed[fresh] += sums
        latest = np.zeros(len(every), dtype=np.int64)
        latest[known] = self.newest
        latest[fresh] = newest
        return replace(self, keys=every, counts=total, sums=summed, newest=latest)

    def _bounded(self) -> Self:
        """With the requests closed that have been without a row for longest."""
        excess = len(self.keys) - OPEN_REQUESTS
        if excess <= 0:
            return self
        closed = np.argsort(self.newest, kind="stable")[:excess]
        left = np.ones(len(self.keys), dtype=np.bool_)
        left[closed] = False
        counts, sums = self.counts[closed], self.sums[closed]
        return replace(
            self,
            requests=self.requests + excess,
            request_squares=self.request_squares + float(sums @ sums),
            request_pairs=self.request_pairs + int(counts @ counts),
            keys=self.keys[left],
            counts=self.counts[left],
            sums=self.sums[left],
            newest=self.newest[left],
        )
