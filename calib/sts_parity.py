"""Sequential Temperature Scaling exactly as SGLang's fitter does it, at a fraction of its cost.

Reproduced: fp64 arithmetic on fp32 logits; the grid of 41 temperatures that an fp32 log-spaced
range from 0.1 to 10 gives; probabilities clamped to [1e-8, 1 - 1e-8] for binning but multiplied
unclamped; bins floor(p·B) of equal width; ties to the smallest temperature, because a candidate
must be strictly better (facts of SGLang 0.5.23, ``benchmark/dspark_sts_fit.py``).

Cheaper because :class:`calib.sts_screen.SurvivalScreen` proves most of the 41 candidates worse than
an evaluated one, so only two or three a position are evaluated; and those run in cache-sized chunks
without temporaries. ``histogram=True`` trusts the screen's estimates and evaluates none.

**How equal.** Temperatures are identical. Errors agree to about 1e-12 and not to the last bit: the
exponential of NumPy and that of a vectorised torch differ in the last place for some arguments, and
torch's own differs between vector units. Where two grid temperatures tie to within such rounding
the choice is theirs by accident; those positions are marked in ``ParityFit.near_ties``.

Like SGLang's, this fit reads every unverified position as a rejection: give it fully verified rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib.errors import FitRefusedError, InvalidInputError
from calib.reliability import DEFAULT_BINS, check_bins
from calib.statuses import Refusal
from calib.sts_candidates import CandidateOrder
from calib.sts_screen import SCREENING_ROWS, SurvivalScreen

__all__ = ["ParityFit", "fit_sts_parity", "parity_grid"]

Floats = NDArray[np.float64]
Labels = NDArray[np.uint8] | Floats  # hard as uint8, anything else as fp64
_Float = TypeVar("_Float", np.float32, np.float64)

_CLAMP = 1e-8
_CHUNK = 32768  # rows a pass; fastest of 2^10 … 2^17, where buffers still fit the outer caches
_NEAR_TIE = 1e-12  # errors closer than this are ordered by rounding


def parity_grid() -> Floats:
    """The 41 candidate temperatures, ascending from 0.1 to 10, each an fp32 value held in fp64.

    Examples:
        >>> grid = parity_grid()
        >>> len(grid), float(grid[20]), float(grid[24])
        (41, 1.0, 1.5848932266235352)
    """
    # Powers in fp64, rounded once to fp32: bit for bit what torch.logspace(-1, 1, 41) gives.
    return (10.0 ** np.linspace(-1.0, 1.0, 41)).astype(np.float32).astype(np.float64)


@dataclass(frozen=True, slots=True)
class ParityFit:
    """What the fit found; all tuples have one entry per position.

    Attributes:
        temperatures: chosen grid values.
        ece_before: survival ECE in [0, 1] with all temperatures 1; empty in histogram mode.
        ece_after: survival ECE with the chosen ones; an estimate in histogram mode.
        near_ties: another temperature's error was within 1e-12 of the chosen one's.
        evaluations: candidates evaluated exactly, of 41 a position.
    """

    temperatures: tuple[float, ...]
    ece_before: tuple[float, ...]
    ece_after: tuple[float, ...]
    near_ties: tuple[bool, ...]
    evaluations: int


def fit_sts_parity(
    confidence_logits: ArrayLike,  # [N, gamma] raw, finite
    prefix_mask: ArrayLike,  # [N, gamma] 1 where n >= k, else 0; soft values in [0, 1] allowed
    *,
    n_bins: int = DEFAULT_BINS,
    grid: ArrayLike | None = None,
    histogram: bool = False,
) -> ParityFit:
    """Fit one temperature per position, left to right (paper §3.2.1, as SGLang implements it).

    Args:
        confidence_logits: raw logits of fully verified rows.
        prefix_mask: survival labels of the same rows.
        n_bins: equal-width bins.
        grid: ascending candidate temperatures; SGLang's 41 when None.
        histogram: choose by histogram estimates instead of exact errors: about three times cheaper,
            within one grid step, and without ``ece_before``. Below 20,000 rows exact errors are
            cheap and used all the same.

    Raises:
        FitRefusedError: no rows.
        InvalidInputError: shapes that differ, logits that are not finite, labels outside [0, 1],
            temperatures that are not positive and ascending.
    """
    logits, labels = _checked(confidence_logits, prefix_mask)
    candidates = _checked_grid(grid)
    bins = check_bins(n_bins)
    if histogram and len(logits) >= SCREENING_ROWS:
        return _fit_by_histogram(logits, labels, candidates, bins)
    evaluate = _Evaluator(len(logits), bins)
    fitted = np.ones(len(logits))
    at_one = np.ones(len(logits))
    spare = np.empty(len(logits))
    choices: list[_Choice] = []
    before: list[float] = []
    for position in range(logits.shape[1]):
        column = np.ascontiguousarray(logits[:, position], dtype=np.float64)
        target = labels[:, position].copy()  # contiguous
        before.append(evaluate(at_one, column, 1.0, target, at_one))
        choice, fitted, spare = _choose(evaluate, candidates, fitted, column, target, spare)
        choices.append(choice)
    return ParityFit(
        temperatures=tuple(choice.temperature for choice in choices),
        ece_before=tuple(before),
        ece_after=tuple(choice.error for choice in choices),
        near_ties=tuple(choice.near_tie for choice in choices),
        evaluations=evaluate.calls - len(before),
    )


def _fit_by_histogram(
    logits: NDArray[np.floating], labels: Labels, grid: Floats, n_bins: int
) -> ParityFit:
    """The fit in which the likeliest candidate by histogram estimates is taken, in fp32."""
    survival = np.ones(len(logits), dtype=np.float32)
    temperatures, errors = [], []
    for position in range(logits.shape[1]):
        column = np.ascontiguousarray(logits[:, position], dtype=np.float32)
        target = labels[:, position].copy()  # contiguous
        screen = SurvivalScreen.build(survival, column, target, n_bins)
        # Without a screen the logits are beyond all temperatures, so all leave the same error.
        estimates = np.zeros(len(grid)) if screen is None else screen.estimates(grid)
        best = int(np.argmin(estimates))
        temperatures.append(float(grid[best]))
        errors.append(float(estimates[best]))
        with np.errstate(over="ignore"):
            for start in range(0, len(column), _CHUNK):
                part = slice(start, start + _CHUNK)
                _survive(survival[part], column[part], temperatures[-1], survival[part])
    return ParityFit(
        temperatures=tuple(temperatures),
        ece_before=(),
        ece_after=tuple(errors),
        near_ties=(False,) * len(temperatures),
        evaluations=0,
    )


@dataclass(frozen=True, slots=True)
class _Choice:
    temperature: float
    error: float
    near_tie: bool = False


class _Evaluator:
    """Exact survival ECE at one temperature, in chunks and without temporaries."""

    def __init__(self, rows: int, n_bins: int) -> None:
        self.calls = 0
        self.n_bins = n_bins
        self._rows = rows
        self._values = np.empty(min(rows, _CHUNK))
        self._bins = np.empty(min(rows, _CHUNK), dtype=np.intp)

    def __call__(
        self,
        survival: Floats,  # [N] of the positions before
        logits: Floats,  # [N]
        temperature: float,
        labels: Labels,  # [N]
        out: Floats,  # [N] receives survival * sigma(z / T); may be ``survival`` itself
    ) -> float:
        """ECE of survival * sigma(z / T) against the labels."""
        self.calls += 1
        predicted = np.zeros(self.n_bins)
        counted = np.zeros((self.n_bins, 2))  # rejected and accepted, or rows and label sum
        with np.errstate(over="ignore"):  # exp may reach infinity: sigma is 0
            for start in range(0, self._rows, _CHUNK):
                part = slice(start, start + _CHUNK)
                product = _survive(survival[part], logits[part], temperature, out[part])
                values = self._clamped(product)
                bins = self._bins[: product.size]
                # Truncation is the floor, and the clamp keeps p·B below B.
                np.multiply(values, self.n_bins, out=bins, casting="unsafe")
                # Adds row by row in order, as a scatter-add does: equal sums to the last bit.
                np.add.at(predicted, bins, values)
                _count(counted, bins, labels[part])
        rows = counted.sum(axis=1) if labels.dtype == np.uint8 else counted[:, 0]
        divisor = np.maximum(rows, 1.0)
        gap = np.abs(predicted / divisor - counted[:, 1] / divisor)
        return float((gap * rows).sum() / self._rows)

    def _clamped(self, product: Floats) -> Floats:
        if product.min() >= _CLAMP and product.max() <= 1.0 - _CLAMP:
            return product
        return np.clip(product, _CLAMP, 1.0 - _CLAMP, out=self._values[: product.size])


def _survive(
    survival: NDArray[_Float], logits: NDArray[_Float], temperature: float, out: NDArray[_Float]
) -> NDArray[_Float]:
    """Write survival * sigma(z / T) to ``out``, which may be ``survival``."""
    # z / -T is exactly -(z / T); the factor is rounded before it is multiplied, as in SGLang.
    factor = logits / -temperature
    np.exp(factor, out=factor)
    factor += 1.0
    np.reciprocal(factor, out=factor)
    np.multiply(survival, factor, out=out)
    return out


def _count(counted: Floats, bins: NDArray[np.intp], labels: Labels) -> None:
    """Add a chunk's counts; overwrites ``bins``."""
    n_bins = len(counted)
    if labels.dtype == np.uint8:
        bins *= 2
        np.add(bins, labels, out=bins, casting="unsafe")  # uint8 into intp
        counted += np.bincount(bins, minlength=2 * n_bins).reshape(n_bins, 2)
    else:
        counted[:, 0] += np.bincount(bins, minlength=n_bins)
        np.add.at(counted[:, 1], bins, labels)


def _choose(
    evaluate: _Evaluator,
    grid: Floats,
    survival: Floats,
    logits: Floats,
    labels: Labels,
    spare: Floats,
) -> tuple[_Choice, Floats, Floats]:
    """The best temperature, the survival it gives, and a buffer for the next position.

    Three buffers rotate: the survival before, the best so far and the one being evaluated.
    """
    screen = SurvivalScreen.build(survival, logits, labels, evaluate.n_bins)
    order = CandidateOrder(grid, screen)
    errors: dict[int, float] = {}
    best, best_survival, trial = -1, spare, np.empty_like(spare)
    while (index := order.next(errors.get(best, np.inf))) is not None:
        errors[index] = evaluate(survival, logits, float(grid[index]), labels, trial)
        if best < 0 or (errors[index], index) < (errors[best], best):
            best, best_survival, trial = index, trial, best_survival
    lowest = errors[best]
    near = sum(error <= lowest + _NEAR_TIE for error in errors.values()) > 1
    return _Choice(float(grid[best]), lowest, near), best_survival, survival


def _checked(logits: ArrayLike, labels: ArrayLike) -> tuple[NDArray[np.floating], Labels]:
    """Logits as floats and labels as uint8 (hard) or fp64 (soft), of one shape."""
    values = np.asarray(logits)
    if values.dtype.kind != "f":
        values = values.astype(np.float64)
    mask = np.asarray(labels)
    if values.ndim != 2 or values.shape != mask.shape or values.shape[1] == 0:
        raise InvalidInputError(
            "prefix_mask", mask.shape, f"logits {values.shape} and labels must both be [N, gamma]"
        )
    if len(values) == 0:
        raise FitRefusedError(Refusal.NO_ROWS, "0 rows; fully verified rows are needed")
    if not np.isfinite(values).all():
        raise InvalidInputError(
            "confidence_logits", float(values[~np.isfinite(values)][0]), "give finite logits"
        )
    low, high = mask.min(), mask.max()
    if not (low >= 0 and high <= 1):
        wrong = float(high if high > 1 else low)
        raise InvalidInputError("prefix_mask", wrong, "labels must lie in [0, 1]")
    hard = mask.astype(np.uint8)
    return values, hard if np.array_equal(hard, mask) else mask.astype(np.float64)


def _checked_grid(grid: ArrayLike | None) -> Floats:
    if grid is None:
        return parity_grid()
    values = np.asarray(grid, dtype=np.float64)
    ascending = values.ndim == 1 and values.size > 0 and bool((np.diff(values) > 0).all())
    if not ascending or not (values[0] > 0 and np.isfinite(values[-1])):
        raise InvalidInputError("grid", grid, "give ascending positive temperatures")
    return values
