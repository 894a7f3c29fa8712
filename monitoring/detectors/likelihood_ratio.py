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

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
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
    tempering,
)
from monitoring.detectors.label_counts import CELLS, label_counts
from monitoring.detectors.observations import Observations

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
        design_effect: log e-values are divided by it, see :mod:`monitoring.detectors.e_cusum`.

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
    design_effect: float = 1.0

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
            **tempering(self.design_effect),
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
    def _on_all(self) -> int:
        """How many alternatives hold at all positions; they come first."""
        return sum(item.position is None for item in self._alternatives)

    @cached_property
    def _single(self) -> list[list[tuple[int, int]]]:
        """Uses (index, k - 1) of each different claim about one position."""
        users: dict[tuple[float, float], list[tuple[int, int]]] = {}
        for index, item in enumerate(self._alternatives):
            if item.position is not None:
                users.setdefault((item.slope, item.shift), []).append((index, item.position - 1))
        return list(users.values())

    @cached_property
    def table(self) -> Floats:
        """Log e-values [2 · CELLS, claims]: claims on all positions, then those on one."""
        claims = [*self._alternatives[: self._on_all]]
        claims += [self._alternatives[uses[0][0]] for uses in self._single]
        return self._table(claims)

    def _table(self, alternatives: list[Alternative]) -> Floats:
        slopes = np.array([item.slope for item in alternatives])
        shifts = np.array([item.shift for item in alternatives])
        return round_down(log_factor_table(slopes, shifts, self.tolerance) / self.design_effect)

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

    def update_many(
        self,
        states: Sequence[CusumState],
        observations: Observations,
        streams: NDArray[np.intp],  # [N] place of each row's stream in ``states``
    ) -> list[CusumState]:
        """States of streams that share a batch; each is what :meth:`update` makes of its rows.

        Raises:
            ConfigurationError: observations of another γ.
            FormatError: a state of a detector with other settings.
        """
        self._check(observations)
        found = list(states)
        for start in range(0, len(observations), _CHUNK):
            part = streams[start : start + _CHUNK]
            order = np.argsort(part, kind="stable")
            counts = np.bincount(part, minlength=len(found))
            present = np.flatnonzero(counts)
            rows, before = counts[present], np.array([found[i].rows for i in present])
            within = np.arange(len(part)) - np.repeat(np.cumsum(rows) - rows, rows)
            begins = (within + np.repeat(before, rows)) % BLOCK_ROWS == 0
            offsets = np.flatnonzero(begins | (within == 0))
            chosen = observations.select(order + start)
            sums = self.block_sums(label_counts(chosen, offsets) @ self.table)
            after = self._cusum.advance_many([found[i] for i in present], rows, sums)
            for place, state in zip(present.tolist(), after, strict=True):
                found[place] = state
        return found

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
        for chunk, offsets in chunks(observations, rows_before):
            yield len(chunk), self.block_sums(label_counts(chunk, offsets) @ self.table)

    def block_sums(self, worth: Floats) -> Floats:
        """Log factors summed over blocks, [blocks, M].

        Args:
            worth: [γ · blocks, claims] label counts times :attr:`table`.
        """
        by_position = worth.reshape(self.gamma, -1, worth.shape[1])
        sums = np.empty((by_position.shape[1], len(self._alternatives)))
        by_position[:, :, : self._on_all].sum(axis=0, out=sums[:, : self._on_all])
        for claim, uses in enumerate(self._single, self._on_all):
            for index, position in uses:
                sums[:, index] = by_position[position, :, claim]
        return sums


def chunks(
    observations: Observations, rows_before: int
) -> Iterator[tuple[Observations, NDArray[np.intp]]]:
    """Pieces of a batch that fit into a cache, and where the stream's blocks begin in each."""
    start = 0
    while start < len(observations):
        stop = start + _CHUNK - (rows_before + start) % BLOCK_ROWS
        chunk = observations.select(slice(start, stop))
        yield chunk, block_offsets(rows_before + start, len(chunk))
        start = stop


def update_both(
    first: LikelihoodRatioDetector,
    second: LikelihoodRatioDetector,
    before: CusumState,
    other_before: CusumState,
    observations: Observations,
) -> tuple[Step, Step]:
    """Two detectors of one stream after a batch, its labels counted once.

    Raises:
        ConfigurationError: observations of another γ, or states of different numbers of rows.
        FormatError: a state of a detector with other settings.
    """
    first._check(observations)
    second._check(observations)
    if before.rows != other_before.rows:
        rows = (before.rows, other_before.rows)
        raise ConfigurationError("rows", rows, "update the detectors of two streams apart")
    parts: list[tuple[int, Floats]] = []
    others: list[tuple[int, Floats]] = []
    for chunk, offsets in chunks(observations, before.rows):
        counts = label_counts(chunk, offsets)
        parts.append((len(chunk), first.block_sums(counts @ first.table)))
        others.append((len(chunk), second.block_sums(counts @ second.table)))
    return first._cusum.advance(before, parts), second._cusum.advance(other_before, others)
