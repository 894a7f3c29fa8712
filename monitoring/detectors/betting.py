"""Betting e-CUSUM: is the mean of a bounded residual still within its tolerance?

For a residual r in [−1, 1] and the null |E[r | past]| ≤ δ, each side s = ±1 and each stake λ < 1
gives the e-value

    L = 1 + λ(s·r − δ),

whose conditional mean is at most 1. No model of the residual's distribution is needed, and the
null is weaker than the pointwise one of the likelihood ratio: local errors may cancel. It is
slower for the same drift (2 to 4 times) and the one to act on where the pointwise null is too
strict for real heads. The best stake on an excess g over δ is about g / (Var r + g²).

Streams that are no number in a row (NaN) sit the row out.

References: statistics.md D2; Waudby-Smith, Ramdas, arXiv 2010.09686.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property

import numpy as np

from calib.canonical_json import sha256_hex
from calib.errors import ConfigurationError, RecordError
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

STAKES = (0.05, 0.1, 0.2, 0.4, 0.8)
_CHUNK = 128 * BLOCK_ROWS  # rows a pass


@dataclass(frozen=True, slots=True)
class Stream:
    """One residual that is bet on.

    Attributes:
        name: in words, for verdicts.
        tolerance: δ in [0, 0.2): means within ±δ are tolerated.
        weight: prior weight in the mixture.
    """

    name: str
    tolerance: float
    weight: float


@dataclass(frozen=True)
class BettingDetector:
    """Alarm when the mean of any stream leaves its tolerance.

    Attributes:
        streams: what is bet on, in the order of the residuals' columns.
        threshold: A: the mean number of rows to a false alarm is at least A.
        minimum_rows: rows before which the verdict is ``insufficient``.
        name: of the detector, for verdicts.
        design_effect: log e-values are divided by it, see :mod:`monitoring.detectors.e_cusum`.

    Raises:
        ConfigurationError: an option outside its range.
    """

    streams: tuple[Stream, ...]
    threshold: float
    minimum_rows: int = 64
    name: str = "betting"
    design_effect: float = 1.0

    def __post_init__(self) -> None:
        for stream in self.streams:
            # The largest stake times (1 + δ) must stay below 1, or an e-value could be negative.
            if not 0.0 <= stream.tolerance < 0.2:
                raise ConfigurationError("tolerance", stream.tolerance, "give a gap in [0, 0.2)")
        self._cusum.start()  # weights and threshold are checked there

    @cached_property
    def _cusum(self) -> EvidenceCusum:
        settings = {
            "detector": "betting/1",
            "streams": [asdict(stream) for stream in self.streams],
            "threshold": float(self.threshold),
            "minimum_rows": self.minimum_rows,
            **tempering(self.design_effect),
        }
        bets = [
            (f"{stream.name} {side} by stake {stake:g}", stream.weight / (2 * len(STAKES)))
            for stream in self.streams
            for side in ("above", "below")
            for stake in STAKES
        ]
        return EvidenceCusum(
            self.name,
            sha256_hex(settings),
            tuple(name for name, _ in bets),
            np.array([weight for _, weight in bets]),
            self.threshold,
            self.minimum_rows,
        )

    def start(self) -> CusumState:
        """The state of a fresh baseline."""
        return self._cusum.start()

    def update(
        self,
        state: CusumState,
        residuals: Floats | Sequence[Floats],  # [N, streams], or one [N] per stream
    ) -> Step:
        """The state and verdict after a batch; the same however the rows are cut into batches.

        Raises:
            RecordError: residuals of another width, or outside [−1, 1].
            FormatError: a state of a detector with other settings.
        """
        checked = self._checked(residuals)
        return self._cusum.advance(state, self._block_sums(checked, state.rows))

    def summarise(self, residuals: Floats | Sequence[Floats]) -> CusumSegment:
        """A stretch of whole blocks as a segment, to be joined in time and appended.

        Raises:
            ConfigurationError: rows that are no whole blocks.
            RecordError: as :meth:`update`.
        """
        checked = self._checked(residuals)
        if len(checked) % BLOCK_ROWS:
            raise ConfigurationError("residuals", len(checked), "give whole blocks")
        joined = self._cusum.summarise(0, np.zeros((0, len(self._cusum.names))))
        for rows, sums in self._block_sums(checked, 0):
            joined = joined.later(self._cusum.summarise(rows, sums))
        return joined

    def append(self, state: CusumState, segment: CusumSegment) -> Step:
        """The state and verdict after a joined stretch; the alarm row is its last row.

        Raises:
            FormatError: a state or segment of a detector with other settings.
            ConfigurationError: a state in the middle of a block.
        """
        return self._cusum.append(state, segment)

    def _checked(self, residuals: Floats | Sequence[Floats]) -> Floats:
        if isinstance(residuals, np.ndarray):
            array = np.asarray(residuals, dtype=np.float64)
        else:
            array = np.stack([np.asarray(item, dtype=np.float64) for item in residuals], axis=1)
        if array.ndim != 2 or array.shape[1] != len(self.streams):
            raise RecordError("residuals", array.shape, f"give [rows, {len(self.streams)}]")
        outside = np.abs(array) > 1.0
        if outside.any():
            raise RecordError("residuals", float(array[outside][0]), "give values in [-1, 1]")
        return array

    def _block_sums(self, residuals: Floats, rows_before: int) -> Iterator[tuple[int, Floats]]:
        """Rows and block sums of log factors, [blocks, streams · sides · stakes], per chunk."""
        start = 0
        while start < len(residuals):
            stop = start + _CHUNK - (rows_before + start) % BLOCK_ROWS
            chunk = residuals[start:stop]
            offsets = block_offsets(rows_before + start, len(chunk))
            yield len(chunk), np.add.reduceat(self._log_factors(chunk), offsets, axis=0)
            start = stop

    def _log_factors(self, residuals: Floats) -> Floats:
        """[N, streams · sides · stakes], 0 where a stream sits the row out."""
        tolerances = np.array([stream.tolerance for stream in self.streams])
        sides = np.stack([residuals - tolerances, -residuals - tolerances], axis=2)
        logs = sides[..., None] * np.array(STAKES)  # [N, streams, 2, stakes]
        np.log1p(logs, out=logs)
        logs /= self.design_effect
        logs = round_down(logs)
        if np.isnan(residuals).any():
            np.nan_to_num(logs, copy=False, nan=0.0)
        return logs.reshape(len(residuals), -1)
