"""Likelihood-ratio e-CUSUM: is the conditional confidence still within δ of the truth?

Null H0(δ): at every observed label, P(y_k = 1 | past, z_{≤k}, ℓ ≥ k) lies in [c_k − δ, c_k + δ].
It says nothing about the distribution of logits, tags or lengths: traffic may change as it likes.

An alternative claims q = σ(s·logit(c) + b), at all positions or at one. Against the band it is
worth, with p0 the point of the band nearest to q (the reverse information projection),

    E = (q/p0)^y · ((1 − q)/(1 − p0))^(1 − y),       E = 1 where |q − c| ≤ δ.

E = 1 + λ(y − p0) with λ of the sign of q − p0, so its mean is at most 1 for every truth in the
band, and no other e-value grows faster under q. Factors multiply along the observed prefix, since
y_k is calibrated given z_{≤k} and the labels before it; nothing here uses the value of ℓ.

The factor depends on c through one of 2,048 cells only: q is taken at the middle of the cell, and
p0 at the far end of the union of its bands, so the e-value stays valid for every c in the cell
and costs 0.0002 of tolerance on average. A batch is then a sparse matrix of label counts times a
table, which is what makes a million rows a CPU-second possible in NumPy.

References: statistics.md D1; Grünwald, de Heide, Koolen, Safe testing, arXiv 1906.07801.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.special import expit, logit

from calib.canonical_json import sha256_hex
from calib.errors import ConfigurationError
from calib.record_schema import check_gamma
from monitoring.detectors.e_cusum import (
    BLOCK_ROWS,
    CusumSegment,
    CusumState,
    EvidenceCusum,
    Floats,
    Step,
    block_offsets,
    round_down,
)
from monitoring.detectors.observations import Observations

CELLS = 2048  # a power of two: c · CELLS is exact in fp32
_CHUNK = 512 * BLOCK_ROWS  # rows a pass, so that its temporaries stay in a second-level cache

# Slopes on both sides of 1, dense near it: with the nearest at .8, a true .91 took 12,300 rows
# instead of 3,200. The .3 is for heads that saturate: with c within δ of 0 or 1 every milder claim
# lies in the band, and a certain head could be wrong half the time unseen. Shifts from what is just
# worth acting on to a broken head.
_SLOPES = (0.3, 0.6, 0.75, 0.85, 0.92, 1.09, 1.18, 1.33, 1.6)
_SHIFTS = (-0.9, -0.4, -0.2, -0.1, 0.1, 0.2, 0.4, 0.9)
_BOTH = ((0.8, -0.25), (0.8, 0.25), (1.25, -0.25), (1.25, 0.25))
_ONE_POSITION_SHIFTS = (-0.5, 0.5)
_ONE_POSITION_WEIGHT = 0.25


@dataclass(frozen=True, slots=True)
class Alternative:
    """A way to be miscalibrated: q = σ(slope · logit(c) + shift).

    Attributes:
        slope: above 0; below 1 the head is over-confident at both ends.
        shift: on the logit scale.
        position: k, from 1, where it applies; None for all positions.
        weight: prior weight in the mixture.
    """

    slope: float
    shift: float
    position: int | None
    weight: float

    @property
    def name(self) -> str:
        """The alternative in words."""
        parts = [f"slope {self.slope:g}"] if self.slope != 1.0 else []
        parts += [f"shift {self.shift:+g}"] if self.shift != 0.0 else []
        where = "all positions" if self.position is None else f"position {self.position}"
        return f"{', '.join(parts)} at {where}"


def standard_alternatives(gamma: int) -> tuple[Alternative, ...]:
    """21 alternatives on all positions (weight 0.75) and two shifts of each one (0.25)."""
    pairs = [(slope, 0.0) for slope in _SLOPES] + [(1.0, shift) for shift in _SHIFTS]
    pairs += _BOTH
    share = (1.0 - _ONE_POSITION_WEIGHT) / len(pairs)
    everywhere = [Alternative(slope, shift, None, share) for slope, shift in pairs]
    single = _ONE_POSITION_WEIGHT / (len(_ONE_POSITION_SHIFTS) * gamma)
    at_one = [
        Alternative(1.0, shift, k, single)
        for k in range(1, gamma + 1)
        for shift in _ONE_POSITION_SHIFTS
    ]
    return (*everywhere, *at_one)


def log_factor_table(
    slopes: Floats,  # [M]
    shifts: Floats,  # [M]
    tolerance: float,
) -> Floats:
    """Log e-values by cell of c and label, [2 · CELLS, M]; row 2i + y belongs to cell i, label y.

    Rounded down to multiples of 2^-16.
    """
    edges = np.arange(CELLS + 1) / CELLS
    low, high = edges[:-1, None] - tolerance, edges[1:, None] + tolerance
    middle = (edges[:-1, None] + edges[1:, None]) / 2.0
    claimed = expit(slopes * logit(middle) + shifts)  # q [CELLS, M]
    nearest = np.clip(claimed, low, high)  # p0; equal to q inside the band: factor 1
    table = np.empty((2 * CELLS, len(slopes)))
    table[0::2] = np.log1p(-claimed) - np.log1p(-nearest)
    table[1::2] = np.log(claimed) - np.log(nearest)
    return round_down(table)


@dataclass(frozen=True)
class LikelihoodRatioDetector:
    """Alarm when conditional confidences leave the tolerance band.

    Attributes:
        gamma: γ.
        tolerance: δ in [0, 0.5): half-width of the band.
        threshold: A: the mean number of rows to a false alarm is at least A.
        minimum_rows: rows before which the verdict is ``insufficient``.
        alternatives: the mixture; None for :func:`standard_alternatives`.
        name: of the detector, for verdicts.

    Raises:
        ConfigurationError: an option outside its range.

    Examples:
        >>> rng = np.random.default_rng(1)
        >>> c = rng.uniform(0.3, 0.95, (4000, 1)).astype(np.float32)
        >>> truth = np.where(np.arange(4000) < 3000, c[:, 0], expit(logit(c[:, 0]) - 0.8))
        >>> n = (rng.random(4000) < truth).astype(np.uint8)
        >>> detector = LikelihoodRatioDetector(gamma=1, tolerance=0.01, threshold=1e6)
        >>> step = detector.update(detector.start(), Observations(c, np.ones(4000, np.uint8), n))
        >>> step.verdict.alarm.row, step.verdict.alarm.change_point.row
        (3231, 3040)
    """

    gamma: int
    tolerance: float
    threshold: float
    minimum_rows: int = 64
    alternatives: tuple[Alternative, ...] | None = None
    name: str = "likelihood_ratio"

    def __post_init__(self) -> None:
        check_gamma(self.gamma)
        if not 0.0 <= self.tolerance < 0.5:
            raise ConfigurationError("tolerance", self.tolerance, "give a gap in [0, 0.5)")
        for alternative in self._alternatives:
            position = alternative.position
            if position is not None and not 1 <= position <= self.gamma:
                raise ConfigurationError("position", position, f"give 1 to {self.gamma}")
            if not alternative.slope > 0.0:
                raise ConfigurationError("slope", alternative.slope, "give a slope above 0")
        self._cusum.start()  # weights and threshold are checked there

    @cached_property
    def _alternatives(self) -> tuple[Alternative, ...]:
        chosen = self.alternatives
        if chosen is None:
            chosen = standard_alternatives(self.gamma)
        # Positions last: they are summed in another way.
        return tuple(sorted(chosen, key=lambda item: item.position is not None))

    @cached_property
    def _cusum(self) -> EvidenceCusum:
        settings = {
            "detector": "likelihood_ratio/1",
            "gamma": self.gamma,
            "tolerance": self.tolerance,
            "threshold": float(self.threshold),
            "minimum_rows": self.minimum_rows,
            "alternatives": [asdict(item) for item in self._alternatives],
        }
        return EvidenceCusum(
            self.name,
            sha256_hex(settings),
            tuple(item.name for item in self._alternatives),
            np.array([item.weight for item in self._alternatives]),
            self.threshold,
            self.minimum_rows,
        )

    @cached_property
    def _everywhere(self) -> Floats:
        """Table of the alternatives on all positions, [2 · CELLS, those]."""
        return self._table([item for item in self._alternatives if item.position is None])

    @cached_property
    def _single(self) -> list[tuple[Floats, list[tuple[int, int]]]]:
        """Tables [2 · CELLS] of one-position alternatives, each with its (index, k - 1) uses."""
        users: dict[tuple[float, float], list[tuple[int, int]]] = {}
        for index, item in enumerate(self._alternatives):
            if item.position is not None:
                pair = (item.slope, item.shift)
                users.setdefault(pair, []).append((index, item.position - 1))
        return [
            (self._table([self._alternatives[uses[0][0]]])[:, 0], uses) for uses in users.values()
        ]

    def _table(self, alternatives: list[Alternative]) -> Floats:
        slopes = np.array([item.slope for item in alternatives])
        shifts = np.array([item.shift for item in alternatives])
        return log_factor_table(slopes, shifts, self.tolerance)

    def start(self) -> CusumState:
        """The state of a fresh baseline."""
        return self._cusum.start()

    def update(self, state: CusumState, observations: Observations) -> Step:
        """The state and verdict after a batch; the same however the rows are cut into batches.

        Raises:
            ConfigurationError: observations of another γ.
            FormatError: a state of a detector with other settings.
        """
        self._check(observations)
        return self._cusum.advance(state, self._block_sums(observations, state.rows))

    def summarise(self, observations: Observations) -> CusumSegment:
        """A stretch of whole blocks as a segment, to be joined in time and appended.

        Raises:
            ConfigurationError: rows that are no whole blocks, or another γ.
        """
        self._check(observations)
        if len(observations) % BLOCK_ROWS:
            raise ConfigurationError("observations", len(observations), "give whole blocks")
        parts = [self._cusum.summarise(n, sums) for n, sums in self._block_sums(observations, 0)]
        joined = self._cusum.summarise(0, np.zeros((0, len(self._alternatives))))
        for part in parts:
            joined = joined.later(part)
        return joined

    def append(self, state: CusumState, segment: CusumSegment) -> Step:
        """The state and verdict after a joined stretch; the alarm row is its last row.

        Raises:
            FormatError: a state or segment of a detector with other settings.
            ConfigurationError: a state in the middle of a block.
        """
        return self._cusum.append(state, segment)

    def _check(self, observations: Observations) -> None:
        if observations.gamma != self.gamma:
            raise ConfigurationError("gamma", observations.gamma, f"this detector has {self.gamma}")

    def _block_sums(
        self, observations: Observations, rows_before: int
    ) -> Iterator[tuple[int, Floats]]:
        """Rows and block sums of log factors [blocks, M] of each chunk."""
        start = 0
        while start < len(observations):
            stop = start + _CHUNK - (rows_before + start) % BLOCK_ROWS
            chunk = observations.select(slice(start, stop))
            yield len(chunk), self._chunk_sums(chunk, rows_before + start)
            start = stop

    def _chunk_sums(self, chunk: Observations, rows_before: int) -> Floats:
        entries, observed, labels = _label_entries(chunk)
        offsets = np.append(block_offsets(rows_before, len(chunk)), len(chunk))
        blocks = len(offsets) - 1
        chosen = entries[observed]
        bounds = np.concatenate([[0], np.cumsum(labels, dtype=np.int32)])[offsets]
        counts = csr_array(
            (np.ones(len(chosen)), chosen, bounds.astype(np.int32)), shape=(blocks, 2 * CELLS)
        )
        sums = np.empty((blocks, len(self._alternatives)))
        sums[:, : self._everywhere.shape[1]] = counts @ self._everywhere
        if self._single:
            block = np.repeat(np.arange(blocks) * self.gamma, np.diff(offsets))
            groups = (block[:, None] + np.arange(self.gamma))[observed]
            for table, uses in self._single:
                by_position = np.bincount(groups, table[chosen], blocks * self.gamma)
                for index, position in uses:
                    sums[:, index] = by_position[position :: self.gamma]
        return sums


def _label_entries(
    chunk: Observations,
) -> tuple[NDArray[np.int32], NDArray[np.bool_], NDArray[np.int16]]:
    """Table rows [n, γ], where a label was observed [n, γ], and labels per row [n]."""
    entries = (chunk.conditional * np.float32(CELLS)).astype(np.int32)
    np.minimum(entries, CELLS - 1, out=entries)
    entries *= 2
    index = np.arange(chunk.gamma, dtype=np.uint8)
    entries += index < chunk.accepted[:, None]
    labels = np.minimum(chunk.accepted.astype(np.int16) + 1, chunk.verified)
    return entries, index < labels[:, None], labels
