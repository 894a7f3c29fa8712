"""Bin rule and additive reliability sums: integers first, one division at the end.

Letters: N rows, g = gamma block positions, B bins, p a predicted probability, y a label in [0, 1].

**Bin rule.** Bin of p is ``min(floor(p * B), B - 1)``: bins are closed below and open above, the
last one also holds p = 1. The product is taken in fp32 after p was cast to fp32, so fp64 input,
fp32 input, kernels and merged shards agree on values that lie on an edge (p = 0.29 with 100 bins
is bin 29 everywhere, although fp64 arithmetic alone would say 28). Empty bins stay in place.

**Exact arithmetic.** Every sum is an int64 count of 2**-30 units (log losses: 2**-24 nats), and
integers merge to the same bits in any split and order. A position x bin holds up to 2**33 rows.

**Equal-mass bins** must merge too, so they are not cut at sample quantiles. The sums are kept on
1,024 equal-width cells and neighbouring cells are grouped to nearly equal counts when read;
equal probabilities therefore always share a bin.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib.bin_sums import BinSums
from calib.errors import ConfigurationError, InvalidInputError

DEFAULT_BINS = 15  # what SGLang's fitter and DeepSpec use
FINE_CELLS = 1024  # cells behind equal-mass bins; 0.001 wide, far below any gap worth reporting
FRACTION_BITS = 30  # probabilities and labels, in units of 2**-30
LOSS_BITS = 24  # log losses, in units of 2**-24 nats
LOSS_CAP = 4096.0  # nats one cell may add to ``sum_log_loss``; keeps chunk sums exact, see below

# One chunk adds at most 2**17 * 4096 * 2**24 = 2**53 to a bin: exact in the fp64 of np.bincount.
_CHUNK_CELLS = 1 << 17
_MAX_BINS = 1 << 16


_Word = TypeVar("_Word", bound=StrEnum)


class Binning(StrEnum):
    """How probabilities are grouped."""

    EQUAL_WIDTH = "equal_width"
    EQUAL_MASS = "equal_mass"


def check_bins(n_bins: int) -> int:
    """Return ``n_bins`` when it is a whole number in 1 … 65,536.

    Raises:
        ConfigurationError: for anything else.
    """
    if isinstance(n_bins, bool) or int(n_bins) != n_bins or not 1 <= n_bins <= _MAX_BINS:
        raise ConfigurationError("n_bins", n_bins, f"give a whole number in 1 … {_MAX_BINS}")
    return int(n_bins)


def one_of(field: str, word: str, kind: type[_Word]) -> _Word:
    """The member of ``kind`` that ``word`` names.

    Raises:
        ConfigurationError: listing the words there are.
    """
    try:
        return kind(word)
    except ValueError:
        words = ", ".join(str(member) for member in kind)
        raise ConfigurationError(field, word, f"give one of {words}") from None


def bin_index(p: ArrayLike, n_bins: int = DEFAULT_BINS) -> NDArray[np.intp]:
    """Bin of each probability: ``min(floor(p * n_bins), n_bins - 1)`` in fp32.

    Args:
        p: probabilities of any shape, each in [0, 1] once cast to fp32.
        n_bins: number of equal-width bins.

    Returns:
        Indices 0 … n_bins - 1 in the shape of ``p``.

    Raises:
        InvalidInputError: for a value outside [0, 1] or NaN.

    Examples:
        >>> bin_index([0.0, 0.29, 1.0], 100).tolist()
        [0, 29, 99]
    """
    values = unit_interval("p", p)
    scaled = values * np.float32(check_bins(n_bins))
    # All values are >= 0, so truncation is the floor.
    return np.asarray(np.minimum(scaled.astype(np.intp), n_bins - 1), dtype=np.intp)


def unit_interval(field: str, values: ArrayLike) -> NDArray[np.float32]:
    """Cast to fp32 and check that every value lies in [0, 1].

    Args:
        field: name to use in the error.
        values: numbers of any shape.

    Raises:
        InvalidInputError: naming the first value that is NaN or outside [0, 1].
    """
    cast = np.asarray(values, dtype=np.float32)
    if cast.size and not (cast.min() >= 0.0 and cast.max() <= 1.0):
        wrong = cast[~((cast >= 0.0) & (cast <= 1.0))]
        raise InvalidInputError(
            field,
            float(wrong.flat[0]),
            f"{wrong.size} of {cast.size} values are outside [0, 1]; mask what is unknown",
        )
    return cast


def equal_mass_groups(mass: NDArray[np.generic], n_bins: int) -> NDArray[np.intp]:
    """Group ordered cells to ``n_bins`` bins of nearly equal mass.

    A cell goes where the middle of its own mass falls, so one heavy cell fills one bin and leaves
    others empty instead of being cut.

    Args:
        mass: [cells] counts or weights of the cells in order, each >= 0.
        n_bins: number of bins.

    Returns:
        [cells] bin of each cell, never decreasing.
    """
    through = np.cumsum(mass)
    total = through[-1]
    if total == 0:
        return np.zeros(mass.shape, dtype=np.intp)
    middle = 2 * through - mass  # twice the middle: stays whole for integer counts
    bins = np.minimum((middle * n_bins) // (2 * total), n_bins - 1)
    return np.asarray(bins, dtype=np.intp)


@dataclass(frozen=True, eq=False, slots=True)
class ReliabilitySums:
    """Additive sums per position x cell; ``+`` merges shards, hours and ranks exactly.

    All arrays are int64 [g, cells]; ``cells`` is ``n_bins`` for equal-width bins and
    ``FINE_CELLS`` for equal-mass bins.

    Attributes:
        n_bins: bins the sums are read as.
        binning: equal-width or equal-mass.
        count: rows.
        sum_p: Σp, in 2**-30.
        sum_y: Σy, in 2**-30.
        sum_squared_residual: Σ(y - p)², in 2**-30.
        sum_variance: Σp(1 - p), the variance of Σy if the labels are hard and p is right.
        sum_label_variance: Σy(1 - y); zero when every label is hard.
        sum_log_loss: Σ log loss in 2**-24 nats, or None when it was not given. One cell adds
            at most ``LOSS_CAP`` nats.
    """

    n_bins: int
    binning: Binning
    count: NDArray[np.int64]
    sum_p: NDArray[np.int64]
    sum_y: NDArray[np.int64]
    sum_squared_residual: NDArray[np.int64]
    sum_variance: NDArray[np.int64]
    sum_label_variance: NDArray[np.int64]
    sum_log_loss: NDArray[np.int64] | None = None

    @classmethod
    def zeros(
        cls,
        gamma: int,
        n_bins: int = DEFAULT_BINS,
        *,
        binning: Binning | str = Binning.EQUAL_WIDTH,
        with_log_loss: bool = False,
    ) -> ReliabilitySums:
        """Sums of no rows: the neutral element of ``+``."""
        kind = one_of("binning", binning, Binning)
        cells = FINE_CELLS if kind is Binning.EQUAL_MASS else check_bins(n_bins)
        names = _SUM_NAMES if with_log_loss else _SUM_NAMES[:-1]
        return cls(
            check_bins(n_bins),
            kind,
            **{name: np.zeros((gamma, cells), dtype=np.int64) for name in names},
        )

    @classmethod
    def from_predictions(
        cls,
        p: ArrayLike,  # [N, g] or [N]
        y: ArrayLike,  # [N, g] or [N], hard or soft
        mask: ArrayLike | None = None,  # [N, g] or [N] bool, True where the label counts
        n_bins: int = DEFAULT_BINS,
        *,
        binning: Binning | str = Binning.EQUAL_WIDTH,
        log_losses: ArrayLike | None = None,  # [N, g] or [N] nats, from logits
    ) -> ReliabilitySums:
        """Sum up predictions and labels; one-dimensional input is one position.

        Args:
            p: predicted probabilities in [0, 1].
            y: labels in [0, 1]; anything, also NaN, where ``mask`` is False.
            mask: cells that count; all when None.
            n_bins: number of bins.
            binning: ``"equal_width"`` or ``"equal_mass"``.
            log_losses: loss of each cell (:func:`calib.proper_scores.log_losses`); from logits,
                because an fp32 probability of 1 has already lost its loss.

        Raises:
            InvalidInputError: for shapes that differ or values outside [0, 1] where they count.
        """
        predicted = _two_dimensional(np.asarray(p))
        gamma = predicted.shape[1]
        total = cls.zeros(gamma, n_bins, binning=binning, with_log_loss=log_losses is not None)
        for chunk in _chunks(predicted, y, mask, log_losses):
            total._accumulate(*chunk)
        return total

    @property
    def gamma(self) -> int:
        """Number of positions."""
        return int(self.count.shape[0])

    def position(self, index: int) -> BinSums:
        """Sums of one position as fp64 bins; equal-mass cells are grouped here.

        Args:
            index: 0 for k = 1.
        """
        scale = 2.0**-FRACTION_BITS
        count = self.count[index]
        columns = [count * 1.0] + [getattr(self, name)[index] * scale for name in _SUM_NAMES[1:6]]
        if self.binning is Binning.EQUAL_MASS:
            groups = equal_mass_groups(count, self.n_bins)
            columns = [np.bincount(groups, weights=c, minlength=self.n_bins) for c in columns]
        weight, sum_p, sum_y, squared, variance, label_variance = columns
        return BinSums.unweighted(weight, sum_p, sum_y, squared, variance, label_variance)

    def mean_log_loss(self, index: int) -> float | None:
        """Mean log loss of one position in nats; None without rows or without losses."""
        rows = int(self.count[index].sum())
        if self.sum_log_loss is None or rows == 0:
            return None
        return float(self.sum_log_loss[index].sum()) * 2.0**-LOSS_BITS / rows

    def __add__(self, other: ReliabilitySums) -> ReliabilitySums:
        """Merge exactly.

        Raises:
            InvalidInputError: for other positions, bins or sums, or past 2**63 units.
        """
        if not isinstance(other, ReliabilitySums):
            return NotImplemented
        if self._shape != other._shape:
            raise InvalidInputError(
                "other", other._shape, f"merge sums of one shape; this one is {self._shape}"
            )
        merged = {
            name: getattr(self, name) + getattr(other, name)
            for name in _SUM_NAMES
            if getattr(self, name) is not None
        }
        for name, values in merged.items():
            if (values < 0).any():  # all sums are >= 0, so a negative one has wrapped
                raise InvalidInputError(name, int(values.min()), "int64 is full; start new sums")
        return ReliabilitySums(self.n_bins, self.binning, **merged)

    def __eq__(self, other: object) -> bool:
        """Whether all sums agree to the last bit."""
        if not isinstance(other, ReliabilitySums):
            return NotImplemented
        return self._shape == other._shape and all(
            np.array_equal(getattr(self, name), getattr(other, name))
            for name in _SUM_NAMES
            if getattr(self, name) is not None
        )

    __hash__ = None  # type: ignore[assignment]  # holds arrays

    @property
    def _shape(self) -> tuple[int, int, str, bool]:
        return self.gamma, self.n_bins, str(self.binning), self.sum_log_loss is not None

    def _accumulate(
        self,
        position: NDArray[np.intp],
        p32: NDArray[np.float32],
        y32: NDArray[np.float32],
        losses: NDArray[np.float64] | None,
    ) -> None:
        """Add one chunk in place; only called on sums that nobody else has seen."""
        cells = self.count.shape[1]
        flat = position * cells + bin_index(p32, cells)
        p, y = p32.astype(np.float64), y32.astype(np.float64)
        residual = y - p
        terms = (p, y, residual * residual, p * (1.0 - p), y * (1.0 - y))
        self.count[...] += np.bincount(flat, minlength=self.count.size).reshape(self.count.shape)
        for name, term in zip(_SUM_NAMES[1:6], terms, strict=True):
            _add_fixed_point(getattr(self, name), flat, term, FRACTION_BITS)
        if self.sum_log_loss is not None and losses is not None:
            _add_fixed_point(self.sum_log_loss, flat, np.minimum(losses, LOSS_CAP), LOSS_BITS)


_SUM_NAMES = tuple(f.name for f in fields(ReliabilitySums))[2:]


def _add_fixed_point(
    total: NDArray[np.int64], flat: NDArray[np.intp], term: NDArray[np.float64], bits: int
) -> None:
    units = np.rint(term * float(1 << bits))
    sums = np.bincount(flat, weights=units, minlength=total.size)
    total[...] += sums.astype(np.int64).reshape(total.shape)


def _two_dimensional(values: NDArray[np.generic]) -> NDArray[np.generic]:
    if values.ndim not in (1, 2):
        raise InvalidInputError("shape", values.shape, "give [rows] or [rows, positions]")
    return values[:, None] if values.ndim == 1 else values


def _matching(field: str, values: ArrayLike, shape: tuple[int, ...]) -> NDArray[np.generic]:
    matrix = _two_dimensional(np.asarray(values))
    if matrix.shape != shape:
        raise InvalidInputError(field, matrix.shape, f"must have the shape of p, {shape}")
    return matrix


def _chunks(
    p: NDArray[np.generic], y: ArrayLike, mask: ArrayLike | None, log_losses: ArrayLike | None
) -> Iterator[
    tuple[NDArray[np.intp], NDArray[np.float32], NDArray[np.float32], NDArray[np.float64] | None]
]:
    """Yield (position, p, y, losses) of the cells that count, in pieces that fit a cache."""
    labels = _matching("y", y, p.shape)
    used = None if mask is None else _matching("mask", mask, p.shape).astype(np.bool_)
    losses = None if log_losses is None else _matching("log_losses", log_losses, p.shape)
    gamma = max(1, p.shape[1])
    rows = max(1, _CHUNK_CELLS // gamma)
    for start in range(0, p.shape[0], rows):
        part = slice(start, start + rows)
        size = p[part].shape
        keep = np.ones(size, dtype=np.bool_) if used is None else used[part]
        position = np.broadcast_to(np.arange(size[1]), size)[keep]
        yield (
            position,
            unit_interval("p", p[part][keep]),
            unit_interval("y", labels[part][keep]),
            None if losses is None else losses[part][keep].astype(np.float64),
        )
