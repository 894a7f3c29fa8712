"""The e-CUSUM of a mixture: how evidence accumulates, resets, alarms, merges and is stored.

Each alternative m multiplies e-values: E_i^m ≥ 0 with conditional mean at most 1 while the null
holds. Rows are taken in blocks of b = 32 by their number in the stream. With E the product over a
block,

    M^m := max(M^m, b) · E^m at the end of every block,      evidence := Σ_m w_m M^m,  Σ w_m = 1,

and the alarm is raised at the last row of the first block with evidence ≥ A.

Why a run starts with b and not with 1. Every block stakes what its rows are worth on a run that
begins with it: (M + b)·E would be the e-detector of Shiryaev–Roberts type (Shin, Ramdas, Rinaldo,
arXiv 2203.03532), for which Σ w_m M^m − rows is a supermartingale, and max(M, b) ≤ M + b. Hence,
counted in rows and whatever the traffic does while the null holds,

    mean rows to a false alarm ≥ A,      P(alarm within t rows) ≤ t / A.

Compared with resets at every row, ln b less is needed to alarm and up to b rows are waited, which
is faster for every drift that takes more than about a hundred rows to see.

Dependence. All of this is for rows that are calibrated given every row before them. Rows of one
request share luck that no head sees, so given the request's earlier rows they are not, and evidence
grows on that luck. A detector's ``design_effect`` d divides every log factor:

* it costs nothing in validity: E^(1/d) has mean at most 1 where E has (Jensen), whatever d ≥ 1;
* where each row is calibrated on average over requests and at most d rows share luck, the product
  of their tempered factors still has mean at most 1, however they depend on each other (Hölder);
* where requests are longer and share a little, d = variance of a request's sum of residuals over
  that of as many independent rows makes the mean about 1 (exactly so for normal sums). This is an
  approximation, and d is measured, not known;
* a drift takes about d times as many rows to see.

Nothing is claimed about traffic of a single request, or about requests that are all off together:
that is drift.

Exactness. Log factors are rounded down to multiples of 2^-16 (which keeps them valid), so every
sum below is exact in a double. Blocks lie at fixed rows of the stream. Both together make the
alarm row independent of how the stream was cut into batches, and of restarts.

Merging in time. A stretch of whole blocks acts on M as M := max(M·P, Q), with P the product of its
factors and Q the value it reaches by its own starts. Stretches compose associatively, so engines
or hours can be folded apart and joined. Within a joined stretch the first crossing is lost: the
mixture is evaluated at its end, and that is the alarm row.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from calib.errors import ConfigurationError, FormatError
from monitoring.detectors.change_point import estimate_change_point
from monitoring.detectors.verdict import Alarm, Verdict, VerdictStatus

BLOCK_ROWS = 32
_LOG_BLOCK = math.log(BLOCK_ROWS)
_UNIT = 2.0**-16

Floats = NDArray[np.float64]


def round_down(log_factors: Floats) -> Floats:
    """Multiples of 2^-16 at or below the given logarithms: sums of them are exact."""
    scaled: Floats = log_factors * (1.0 / _UNIT)  # a power of two: exact, like the division
    np.floor(scaled, out=scaled)
    scaled *= _UNIT
    return scaled


def tempering(design_effect: float) -> dict[str, float]:
    """What a design effect adds to a detector's settings; nothing where it is 1.

    Raises:
        ConfigurationError: outside [1, 100].
    """
    if not 1.0 <= design_effect <= 100.0:
        raise ConfigurationError("design_effect", design_effect, "give a number from 1 to 100")
    return {} if design_effect == 1.0 else {"design_effect": float(design_effect)}


def block_offsets(rows_before: int, rows: int) -> NDArray[np.intp]:
    """Where the blocks of the stream begin within a batch, [blocks]; the first is always 0.

    Examples:
        >>> block_offsets(40, 64).tolist()  # rows 40 … 103: the blocks end at 63 and 95
        [0, 24, 56]
    """
    first = BLOCK_ROWS - rows_before % BLOCK_ROWS
    return np.concatenate([[0], np.arange(first, rows, BLOCK_ROWS)]).astype(np.intp)


@dataclass(frozen=True, eq=False, slots=True)
class CusumState:
    """Everything a stream has to remember; immutable.

    Attributes:
        signature: of the detector that made it; another detector refuses to go on with it.
        rows: rows seen.
        log_values: [M] ln(M^m / b) at the last complete block.
        starts: [M] row with which the present run of each alternative began.
        log_open: [M] log product over the rows of the block that is not complete yet.
        alarm: the alarm in force.
    """

    signature: str
    rows: int
    log_values: Floats
    starts: NDArray[np.int64]
    log_open: Floats
    alarm: Alarm | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; :meth:`from_dict` restores the very same state."""
        return {
            "signature": self.signature,
            "rows": self.rows,
            "log_values": self.log_values.tolist(),
            "starts": self.starts.tolist(),
            "log_open": self.log_open.tolist(),
            "alarm": None if self.alarm is None else self.alarm.to_dict(),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The state that :meth:`to_dict` described.

        Raises:
            FormatError: missing or unknown fields.
        """
        try:
            alarm = values["alarm"]
            return cls(
                str(values["signature"]),
                int(values["rows"]),
                np.array(values["log_values"], dtype=np.float64),
                np.array(values["starts"], dtype=np.int64),
                np.array(values["log_open"], dtype=np.float64),
                None if alarm is None else Alarm.from_dict(alarm),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise FormatError("detector state", f"{error}", "write it with to_dict()") from error


@dataclass(frozen=True, eq=False, slots=True)
class CusumSegment:
    """A stretch of whole blocks, ready to be joined in time; ``later`` joins two.

    Attributes:
        signature: of the detector that made it.
        rows: a multiple of :data:`BLOCK_ROWS`.
        log_products: [M] ln P.
        log_own: [M] ln(Q / b); minus infinity without rows.
        own_starts: [M] row, within the stretch, with which the best own run began.
    """

    signature: str
    rows: int
    log_products: Floats
    log_own: Floats
    own_starts: NDArray[np.int64]

    def later(self, other: CusumSegment) -> CusumSegment:
        """This stretch followed by ``other``.

        Raises:
            FormatError: segments of different detectors.
        """
        _check_signature(self.signature, other.signature)
        log_own, starts = _append(self.log_own, self.own_starts, other, self.rows)
        return CusumSegment(
            self.signature,
            self.rows + other.rows,
            self.log_products + other.log_products,
            log_own,
            starts,
        )


@dataclass(frozen=True, slots=True)
class Step:
    """Result of one update: the state to store with the rows, and the verdict."""

    state: CusumState
    verdict: Verdict


@dataclass(frozen=True, eq=False)
class EvidenceCusum:
    """The mixture e-CUSUM that every detector of this package feeds.

    Attributes:
        detector: name, for verdicts.
        signature: digest of the detector's settings.
        names: of the alternatives, in words.
        weights: [M] prior weight of each alternative, summing to at most 1.
        threshold: A, in rows; above :data:`BLOCK_ROWS`.
        minimum_rows: rows before which no alarm is raised and the status is ``insufficient``.

    Raises:
        ConfigurationError: weights or threshold outside their range.
    """

    detector: str
    signature: str
    names: tuple[str, ...]
    weights: Floats
    threshold: float
    minimum_rows: int = 0

    def __post_init__(self) -> None:
        total = float(self.weights.sum())
        if len(self.names) != len(self.weights) or not (self.weights > 0.0).all():
            raise ConfigurationError("weights", self.weights.tolist(), "give one above 0 per name")
        if not 0.0 < total <= 1.0 + 1e-9:
            raise ConfigurationError("weights", total, "weights must sum to at most 1")
        if not BLOCK_ROWS < self.threshold < math.inf:
            remedy = f"give a mean number of rows above {BLOCK_ROWS}, such as 1e6"
            raise ConfigurationError("threshold", self.threshold, remedy)

    @cached_property
    def _log_weights(self) -> Floats:
        weights: Floats = np.log(self.weights)
        return weights

    def start(self) -> CusumState:
        """The state of a stream without rows: the baseline."""
        zeros = np.zeros(len(self.names))
        return CusumState(self.signature, 0, zeros, np.zeros(len(zeros), np.int64), zeros)

    def advance(self, state: CusumState, parts: Iterable[tuple[int, Floats]]) -> Step:
        """The state after more rows.

        Args:
            state: where the stream stands.
            parts: rows, and log factors summed over each block of :func:`block_offsets`,
                [blocks, M], of consecutive pieces of the stream. The sums are overwritten.

        Raises:
            FormatError: a state of another detector.
        """
        _check_signature(self.signature, state.signature)
        new = state
        for rows, sums in parts:
            if rows:
                new = self._advanced(new, rows, sums)
        return Step(new, self._verdict(new, raised=new.alarm is not state.alarm))

    def _advanced(self, state: CusumState, rows: int, sums: Floats) -> CusumState:
        total = state.rows + rows
        complete = total // BLOCK_ROWS - state.rows // BLOCK_ROWS
        sums[0] += state.log_open
        done = sums[:complete]
        is_open = total % BLOCK_ROWS > 0
        log_open = sums[complete].copy() if is_open else np.zeros(len(self.names))
        run = _Run.of(done)
        alarm = state.alarm
        if alarm is None and complete:
            alarm = self._first_alarm(state, done, run)
        log_values, starts = _extended(state, run.summary(self.signature))
        return CusumState(self.signature, total, log_values, starts, log_open, alarm)

    def advance_many(
        self,
        states: Sequence[CusumState],
        rows: NDArray[np.intp],  # [S] more rows of each stream, at least 1
        sums: Floats,  # [blocks, M] as in advance, one stream after the other; overwritten
    ) -> list[CusumState]:
        """States of many streams, each after more rows: what :meth:`advance` gives one by one.

        Raises:
            FormatError: a state of another detector.
        """
        for state in states:
            _check_signature(self.signature, state.signature)
        before = np.array([state.rows for state in states])
        total = before + rows
        complete = total // BLOCK_ROWS - before // BLOCK_ROWS
        ends = np.cumsum(complete + (total % BLOCK_ROWS > 0))
        firsts = np.append(0, ends[:-1])
        sums[firsts] += np.stack([state.log_open for state in states])
        run, valid = _side_by_side(sums, firsts, complete)
        values = np.stack([state.log_values for state in states])
        needed = math.log(self.threshold) - _LOG_BLOCK
        crossed = ((run.values(values).max(axis=-1) >= needed) & valid).any(axis=0)
        found = run.summary(self.signature)
        found.log_own[complete == 0] = -np.inf
        shift = before // BLOCK_ROWS * BLOCK_ROWS - found.rows + complete * BLOCK_ROWS
        starts = np.stack([state.starts for state in states])
        values, starts = _append(values, starts, found, shift[:, None])
        result = []
        for place, state in enumerate(states):
            alarm = state.alarm
            if alarm is None and crossed[place]:
                done = sums[firsts[place] : firsts[place] + complete[place]]
                alarm = self._first_alarm(state, done, _Run.of(done))
            is_open = total[place] % BLOCK_ROWS > 0
            log_open = sums[ends[place] - 1].copy() if is_open else np.zeros(len(self.names))
            entry = (int(total[place]), values[place], starts[place], log_open, alarm)
            result.append(CusumState(self.signature, *entry))
        return result

    def summarise(
        self,
        rows: int,
        sums: Floats,  # [blocks, M] as in advance, from row 0 of the stretch
    ) -> CusumSegment:
        """A stretch as a segment.

        Raises:
            ConfigurationError: rows that are no whole blocks.
        """
        _check_whole(rows)
        return _Run.of(sums[: rows // BLOCK_ROWS]).summary(self.signature)

    def append(self, state: CusumState, segment: CusumSegment) -> Step:
        """The state after a joined stretch; an alarm is looked for at its end only.

        Raises:
            FormatError: a state or segment of another detector.
            ConfigurationError: a state in the middle of a block.
        """
        _check_signature(self.signature, state.signature)
        _check_signature(self.signature, segment.signature)
        _check_whole(state.rows)
        log_values, starts = _append(state.log_values, state.starts, segment, state.rows)
        total = state.rows + segment.rows
        new = replace(state, rows=total, log_values=log_values, starts=starts)
        if state.alarm is None and total >= self.minimum_rows:
            new = replace(new, alarm=self._alarm(total - 1, log_values, starts))
        return Step(new, self._verdict(new, raised=new.alarm is not None and state.alarm is None))

    def log_evidence(self, state: CusumState) -> float:
        """Natural logarithm of the evidence at the last complete block."""
        return float(np.logaddexp.reduce(self._log_weights + state.log_values)) + _LOG_BLOCK

    def _first_alarm(self, state: CusumState, done: Floats, run: _Run) -> Alarm | None:
        # The mixture is at most its largest component, so few blocks need the exponentials.
        needed = math.log(self.threshold) - _LOG_BLOCK
        for block in np.flatnonzero(run.values(state.log_values).max(axis=-1) >= needed).tolist():
            end = (state.rows // BLOCK_ROWS + block + 1) * BLOCK_ROWS
            if end < self.minimum_rows:
                continue
            so_far = _Run.of(done[: block + 1]).summary(self.signature)
            alarm = self._alarm(end - 1, *_extended(state, so_far))
            if alarm is not None:
                return alarm
        return None

    def _alarm(self, row: int, log_values: Floats, starts: NDArray[np.int64]) -> Alarm | None:
        weighted = self._log_weights + log_values
        evidence = float(np.logaddexp.reduce(weighted)) + _LOG_BLOCK
        if evidence < math.log(self.threshold):
            return None
        leading = self.names[int(weighted.argmax())]
        return Alarm(row, estimate_change_point(weighted, starts), leading, evidence)

    def _verdict(self, state: CusumState, *, raised: bool) -> Verdict:
        status = VerdictStatus.QUIET
        if state.alarm is not None:
            status = VerdictStatus.ALARM
        elif state.rows < self.minimum_rows:
            status = VerdictStatus.INSUFFICIENT
        return Verdict(
            detector=self.detector,
            status=status,
            rows=state.rows,
            log_evidence=self.log_evidence(state),
            log_threshold=math.log(self.threshold),
            leading=self.names[int((self._log_weights + state.log_values).argmax())],
            alarm=state.alarm,
            raised=raised,
        )


@dataclass(frozen=True, eq=False, slots=True)
class _Run:
    """Running sums over whole blocks, of one stream [blocks, M] or of many [blocks, S, M].

    Attributes:
        path: [blocks + 1, …, M] log product before each block, and at the end.
        lowest: [blocks + 1, …, M] smallest of them so far.
    """

    path: Floats
    lowest: Floats

    @classmethod
    def of(cls, sums: Floats) -> _Run:
        """Of log factors summed over blocks."""
        path = np.zeros((len(sums) + 1, *sums.shape[1:]))
        np.cumsum(sums, axis=0, out=path[1:])
        return cls(path, np.minimum.accumulate(path, axis=0))

    def values(self, log_values: Floats) -> Floats:
        """ln(M / b) at the end of every block, [blocks, …, M], from where a stream stood."""
        values = self.path[1:] - self.lowest[:-1]
        return np.maximum(values, self.path[1:] + log_values, out=values)

    def summary(self, signature: str) -> CusumSegment:
        """P, Q and the own starts; Q = P / min over starts of the product before."""
        blocks, width = len(self.path) - 1, self.path.shape[1:]
        if blocks == 0:
            nothing = np.full(width, -np.inf)
            return CusumSegment(signature, 0, np.zeros(width), nothing, np.zeros(width, np.int64))
        # The last of equal minima: a run is begun anew where the old one is worth no more.
        last = blocks - 1 - self.path[-2::-1].argmin(axis=0)
        log_own = self.path[-1] - self.lowest[-2]
        starts = last.astype(np.int64) * BLOCK_ROWS
        return CusumSegment(signature, blocks * BLOCK_ROWS, self.path[-1], log_own, starts)


def _side_by_side(
    sums: Floats,  # [blocks, M]
    firsts: NDArray[np.intp],  # [S] first block of each stream
    complete: NDArray[np.intp],  # [S] whole blocks of each
) -> tuple[_Run, NDArray[np.bool_]]:
    """Streams of unequal length as one run, and which of its blocks are theirs, [blocks, S].

    All end together. Zeros before a stream change no sum, and a run that began among them is worth
    what one that begins with the stream is.
    """
    most = int(complete.max(initial=0))
    places = np.arange(most)[:, None] - (most - complete)
    valid = places >= 0
    whole = sums[np.maximum(places, 0) + firsts]
    whole[~valid] = 0.0
    return _Run.of(whole), valid


def _extended(state: CusumState, segment: CusumSegment) -> tuple[Floats, NDArray[np.int64]]:
    """Values and starts after more complete blocks, the first of which may have been open."""
    first_row = state.rows // BLOCK_ROWS * BLOCK_ROWS
    return _append(state.log_values, state.starts, segment, first_row)


def _append(
    log_values: Floats,  # [M]
    starts: NDArray[np.int64],  # [M]
    segment: CusumSegment,
    first_row: int | NDArray[np.int64],  # row with which the segment begins
) -> tuple[Floats, NDArray[np.int64]]:
    """M := max(M·P, Q) and the starts that go with it."""
    extended = log_values + segment.log_products
    kept = extended > segment.log_own
    return (
        np.where(kept, extended, segment.log_own),
        np.where(kept, starts, segment.own_starts + first_row),
    )


def _check_signature(mine: str, other: str) -> None:
    if mine != other:
        raise FormatError(
            "detector state",
            f"was made by a detector with other settings ({other[:12]}, not {mine[:12]})",
            "start from a fresh state",
        )


def _check_whole(rows: int) -> None:
    if rows % BLOCK_ROWS:
        raise ConfigurationError("rows", rows, f"join whole blocks of {BLOCK_ROWS} rows")
