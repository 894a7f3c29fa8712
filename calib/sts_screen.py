"""Proven lower bounds of a survival ECE at many temperatures, from one histogram of the rows.

Sequential Temperature Scaling asks for the temperature with the smallest binned error, and every
exact evaluation reads all rows. This module reads them once per position, into cells of (survival
so far, logit), and then bounds the error at any temperature from the cells alone. Candidates whose
bound exceeds the error of an evaluated one cannot win and are never evaluated.

**Bound.** Let C_e be the sum of p - y over the rows with p below bin edge e. For edges
0 = e_0 < … < e_m = 1 the triangle inequality gives N·ECE >= sum_j |C_{e_j} - C_{e_{j-1}}|, because
merging bins can only cancel. A cell of rows in [s0, s1] x [z0, z1] has p within
[s0·sigma(z0/T), s1·sigma(z1/T)]: that bounds the error of each cell's sum by half its width, and
a cell across an edge can shift C_e by at most max(p·#rejected, (1 - p)·#accepted). Both are
subtracted; the best choice of edges is found by dynamic programming. Cells are widened by more than
the rounding of their indices, so the bound also holds in floating point.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

__all__ = ["SCREENING_ROWS", "ScreenLevel", "SurvivalScreen"]

Floats = NDArray[np.float64]

SCREENING_ROWS = 20_000  # below this, evaluating every candidate costs less than screening
_FINE_ROWS = 200_000  # from here on the fine level repays its 0.6 ms per temperature
_COARSE = (64, 128)  # survival x logit cells
_FINE = (256, 512)
_JOINED = (2, 4)  # cells joined along each axis to make one coarser level after the other
_ONE_SURVIVAL_CELLS = 8192  # logit cells where all survivals are equal, as at position 1
_BLOCK = 1 << 20  # rows counted at once; amortises the 2 MB that np.bincount allocates
_PASS = 1 << 15  # rows whose cells are computed at once; temporaries stay in cache
_SURVIVAL_MARGIN = 1e-6  # fp32 cell indices are off by at most 2e-7 of survival …
_SQUASH_MARGIN = 2e-6  # … and 5e-7 of the squashed logit
_PROBABILITY_MARGIN = 1e-6  # covers the clamp at 1e-8 and fp32 probabilities
_LIKELY = 4  # best coarse estimates that are worth a fine one
_LARGEST_SCALE = 1e30  # beyond this, scale + |z| could overflow fp32; below, it rounds to |z|


@dataclass(frozen=True, eq=False, slots=True)
class ScreenLevel:
    """The non-empty cells of one histogram; M cells, Z cells along the logit axis.

    Attributes:
        accepted: [M] sum of labels.
        rejected: [M] rows minus ``accepted``.
        survival_low, survival_high: [M] survival edges of each cell.
        logit_cell: [M] index along the logit axis.
        logit_low, logit_high: [Z] logit edges; the outermost are infinite.
    """

    accepted: Floats
    rejected: Floats
    survival_low: Floats
    survival_high: Floats
    logit_cell: NDArray[np.intp]
    logit_low: Floats
    logit_high: Floats

    def cell_sums(self, temperature: float, n_bins: int) -> tuple[Floats, Floats, float]:
        """Residuals and slacks of one temperature.

        Returns:
            [B + 1] estimated C_e, [B + 1] how far cells across edge e may shift it (0 at both
            ends), and the error of all cells' sums together.
        """
        low, high = self._edges(temperature)
        middle = 0.5 * (low + high)
        rows = self.accepted + self.rejected
        residual = np.bincount(_bins(middle, n_bins), rows * middle - self.accepted, n_bins)
        first, last = _bins(low, n_bins), _bins(high, n_bins)
        across = np.flatnonzero(first < last)
        shift = np.maximum(
            high[across] * self.rejected[across], (1.0 - low[across]) * self.accepted[across]
        )
        # The cell straddles edges first + 1 … last: add there, take back after.
        opens = np.bincount(first[across] + 1, shift, n_bins + 2)
        closes = np.bincount(last[across] + 1, shift, n_bins + 2)
        slack = np.cumsum(opens - closes)[: n_bins + 1]
        slack[-1] = 0.0
        cumulative = np.concatenate([[0.0], np.cumsum(residual)])
        return cumulative, slack, 0.5 * float(np.dot(rows, high - low))

    def estimated_error(self, temperature: float, n_bins: int) -> float:
        """Estimated N·ECE, at half the cost of :meth:`cell_sums`."""
        low, high = self._edges(temperature)
        middle = 0.5 * (low + high)
        rows = self.accepted + self.rejected
        residual = np.bincount(_bins(middle, n_bins), rows * middle - self.accepted, n_bins)
        return float(np.abs(residual).sum())

    def _edges(self, temperature: float) -> tuple[Floats, Floats]:
        """[M] smallest and largest p of each cell."""
        low, high = (_sigmoid(edges / temperature) for edges in (self.logit_low, self.logit_high))
        return (
            self.survival_low * low[self.logit_cell] - _PROBABILITY_MARGIN,
            self.survival_high * high[self.logit_cell] + _PROBABILITY_MARGIN,
        )


@dataclass(frozen=True, eq=False, slots=True)
class _Dense:
    """A whole histogram: S survival cells x Z logit cells and their edges."""

    rows: Floats  # [S, Z]
    accepted: Floats  # [S, Z]
    survival_edges: tuple[Floats, Floats]  # low and high, [S] each
    logit_edges: tuple[Floats, Floats]  # low and high, [Z] each

    def cells(self) -> ScreenLevel:
        """The cells that hold rows."""
        survival_cell, logit_cell = np.nonzero(self.rows)
        taken = self.accepted[survival_cell, logit_cell]
        return ScreenLevel(
            accepted=taken,
            rejected=self.rows[survival_cell, logit_cell] - taken,
            survival_low=self.survival_edges[0][survival_cell],
            survival_high=self.survival_edges[1][survival_cell],
            logit_cell=logit_cell,
            logit_low=self.logit_edges[0],
            logit_high=self.logit_edges[1],
        )

    def joined(self, factor: int) -> _Dense:
        """The histogram in which ``factor`` neighbours are one cell, along each axis."""
        across = factor if self.rows.shape[0] > 1 else 1

        def total(grid: Floats) -> Floats:
            by_logit = np.sum([grid[:, start::factor] for start in range(factor)], axis=0)
            return np.asarray(np.sum([by_logit[start::across] for start in range(across)], axis=0))

        survival_low, survival_high = self.survival_edges
        logit_low, logit_high = self.logit_edges
        return _Dense(
            total(self.rows),
            total(self.accepted),
            (survival_low[::across], survival_high[across - 1 :: across]),
            (logit_low[::factor], logit_high[factor - 1 :: factor]),
        )


class SurvivalScreen:
    """Histogram of one position's rows and the bounds read from it.

    Attributes:
        levels: the coarsest first; more of them where there are rows enough to repay it.
    """

    def __init__(self, levels: list[ScreenLevel], rows: int, n_bins: int) -> None:
        self.levels = levels
        self._rows = rows
        self._n_bins = n_bins

    @classmethod
    def build(
        cls,
        survival: NDArray[np.floating],  # [M] in [0, 1], of the positions before
        logits: NDArray[np.floating],  # [M] raw, finite
        labels: NDArray[np.uint8] | Floats,  # [M] 0/1 as uint8, or soft in [0, 1] as fp64
        n_bins: int,
        *,
        minimum_rows: int = SCREENING_ROWS,
    ) -> Self | None:
        """The screen of these rows; None where evaluating every candidate is cheaper or safer."""
        rows = len(logits)
        if rows < max(1, minimum_rows):
            return None
        scale = 2.0 * float(np.abs(logits[:: 1 + rows // 65536]).mean(dtype=np.float64)) or 1.0
        if scale > _LARGEST_SCALE:
            return None
        edges = float(survival.min()), float(survival.max())
        fine = rows >= _FINE_ROWS
        shape = _FINE if fine else _COARSE
        if edges[1] - edges[0] < _SURVIVAL_MARGIN:
            shape = (1, _ONE_SURVIVAL_CELLS)
        count, accepted = _histogram(survival, logits, labels, shape, edges, scale)
        survival_edges = _survival_edges(shape[0], edges)
        logit_edges = _logit_edges(shape[1], scale)
        dense = _Dense(count, accepted, survival_edges, logit_edges)
        levels = [dense.cells()]
        for factor in _JOINED if fine else _JOINED[:1]:
            dense = dense.joined(factor)
            levels.insert(0, dense.cells())
        return cls(levels, rows, n_bins)

    def bounds(self, temperatures: NDArray[np.floating], level: int = 0) -> tuple[Floats, Floats]:
        """Lower bounds and estimates of the ECE at each temperature, both [len(temperatures)].

        The estimates have no guarantee; they are good to about half a cell.
        """
        sums = [self.levels[level].cell_sums(float(t), self._n_bins) for t in temperatures]
        cumulative = np.array([entry[0] for entry in sums])
        slack = np.array([entry[1] for entry in sums])
        error = np.array([entry[2] for entry in sums])
        estimate = np.abs(np.diff(cumulative, axis=1)).sum(axis=1)
        bound = _best_grouping(cumulative, slack) - error
        return bound / self._rows, estimate / self._rows

    def estimates(self, temperatures: NDArray[np.floating]) -> Floats:
        """[len(temperatures)] estimated ECE, the likeliest few from the finest cells."""
        return self.sharpen(temperatures, self._estimates(temperatures, self.levels[0]))

    def sharpen(self, temperatures: NDArray[np.floating], estimates: Floats) -> Floats:
        """The estimates with the smallest few replaced by those of the finest cells."""
        likely = np.argsort(estimates, kind="stable")[:_LIKELY]
        sharpened = estimates.copy()
        sharpened[likely] = self._estimates(temperatures[likely], self.levels[-1])
        return sharpened

    def _estimates(self, temperatures: NDArray[np.floating], level: ScreenLevel) -> Floats:
        errors = [level.estimated_error(float(t), self._n_bins) for t in temperatures]
        return np.array(errors) / self._rows


def _best_grouping(cumulative: Floats, slack: Floats) -> Floats:
    """[T] largest total of |C_e - C_d| - 2 slack_e over choices of edges, per temperature."""
    best = np.zeros_like(cumulative)
    for edge in range(1, cumulative.shape[1]):
        steps = np.abs(cumulative[:, edge, None] - cumulative[:, :edge])
        best[:, edge] = (best[:, :edge] + steps).max(axis=1) - 2.0 * slack[:, edge]
    return best[:, -1]


def _histogram(
    survival: NDArray[np.floating],
    logits: NDArray[np.floating],
    labels: NDArray[np.uint8] | Floats,
    shape: tuple[int, int],
    edges: tuple[float, float],
    scale: float,
) -> tuple[Floats, Floats]:
    """Rows and label sums per cell, both [S, Z]."""
    cells = shape[0] * shape[1]
    hard = labels.dtype == np.uint8
    totals = np.zeros((cells, 2))
    keys = np.empty(min(len(logits), _BLOCK), dtype=np.intp)
    for block in range(0, len(logits), _BLOCK):
        rows = min(_BLOCK, len(logits) - block)
        for start in range(block, block + rows, _PASS):
            part = slice(start, min(start + _PASS, block + rows))
            key = _squash_cells(logits[part], shape[1], scale)
            if shape[0] > 1:
                key += _survival_cells(survival[part], shape[0], edges) * np.int32(shape[1])
            if hard:
                key *= 2
                key += labels[part].astype(np.uint8)
            keys[start - block : part.stop - block] = key
        if hard:
            found = np.bincount(keys[:rows], minlength=2 * cells)
            totals += found.reshape(cells, 2)
        else:
            totals[:, 0] += np.bincount(keys[:rows], minlength=cells)
            totals[:, 1] += np.bincount(keys[:rows], labels[block : block + rows], cells)
    count = totals.sum(axis=1) if hard else totals[:, 0]
    return count.reshape(shape), totals[:, 1].reshape(shape)


def _squash_cells(logits: NDArray[np.floating], cells: int, scale: float) -> NDArray[np.int32]:
    """Cell of z / (scale + |z|), which spreads both small and large logits."""
    value = np.asarray(logits, dtype=np.float32)
    squashed = np.abs(value)
    squashed += np.float32(scale)
    np.divide(value, squashed, out=squashed)
    squashed += np.float32(1.0)
    squashed *= np.float32(0.5 * cells * (1.0 - 1e-7))  # keeps +1 out of cell ``cells``
    index = squashed.astype(np.int32)
    return np.minimum(index, cells - 1, out=index)


def _survival_cells(
    survival: NDArray[np.floating], cells: int, edges: tuple[float, float]
) -> NDArray[np.int32]:
    value = survival.astype(np.float32)
    value -= np.float32(edges[0])
    value *= np.float32(cells / (edges[1] - edges[0]))
    index = value.astype(np.int32)
    return np.minimum(index, cells - 1, out=index)


def _survival_edges(cells: int, edges: tuple[float, float]) -> tuple[Floats, Floats]:
    corners = np.linspace(edges[0], edges[1], cells + 1)
    low = np.maximum(corners[:-1] - _SURVIVAL_MARGIN, 0.0)
    return low, np.minimum(corners[1:] + _SURVIVAL_MARGIN, 1.0)


def _logit_edges(cells: int, scale: float) -> tuple[Floats, Floats]:
    corners = np.linspace(-1.0, 1.0, cells + 1)
    low = np.maximum(corners[:-1] - _SQUASH_MARGIN, -1.0)
    high = np.minimum(corners[1:] + _SQUASH_MARGIN, 1.0)
    with np.errstate(divide="ignore"):  # the outermost edges are infinite
        return tuple(scale * u / (1.0 - np.abs(u)) for u in (low, high))  # type: ignore[return-value]


def _bins(probability: Floats, n_bins: int) -> NDArray[np.intp]:
    # Values above -1 / n_bins truncate to 0 or more, so only the upper end needs a limit.
    index = (probability * n_bins).astype(np.intp)
    return np.minimum(index, n_bins - 1, out=index)


def _sigmoid(argument: Floats) -> Floats:
    with np.errstate(over="ignore"):
        return np.asarray(1.0 / (1.0 + np.exp(-argument)))
