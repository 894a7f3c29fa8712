"""How long rows are cut among programs.

The cut depends on the vocabulary alone, never on the batch: sums over a row are then added in the
same order whatever stands beside it, and a row gives the same bits in every batch.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

_WARPS = 4
_BLOCK = 2048  # tokens a tile: 16 a thread and side
_SPAN = 8192  # 7 rows of 151,936 tokens give 133 programs, one for each SM of an H200
_MOST_SPANS = 32

# Launch options. Contraction is written out (fma) where it is meant: left to the compiler it could
# differ between the two sides of a row, and equal rows must be exactly equal.
STREAMING = {"num_warps": _WARPS, "enable_fp_fusion": False}
SMALL = {"num_warps": 1, "enable_fp_fusion": False}


@dataclass(frozen=True, slots=True)
class RowSpans:
    """A cut.

    Attributes:
        block: tokens a tile, a power of two.
        span: tokens a program, whole tiles.
        splits: programs a row.
    """

    block: int
    span: int
    splits: int

    @property
    def padded(self) -> int:
        """Programs a row, as the power of two that a tile of them needs."""
        return _power_of_two(self.splits)


def spans_of(vocabulary: int, block: int | None = None, span: int | None = None) -> RowSpans:
    """The cut of a vocabulary.

    Args:
        vocabulary: tokens of a row, 1 or more.
        block: tokens a tile, a power of two; None takes what was found to fit the registers.
        span: tokens a program, at least.
    """
    tile = block or max(32 * _WARPS, min(_BLOCK, _power_of_two(vocabulary)))
    wanted = max(span or _SPAN, -(-vocabulary // _MOST_SPANS))
    length = -(-wanted // tile) * tile
    return RowSpans(tile, length, -(-vocabulary // length))


def step_of(column: Tensor) -> int:
    """Step from one row's value to the next: 0 where one value serves all rows."""
    return column.stride(0) if column.numel() > 1 else 0


def dense(column: Tensor | None) -> Tensor | None:
    """A column without gaps between its rows; a copy only where there are some."""
    return None if column is None else column.contiguous()


def _power_of_two(number: int) -> int:
    """The smallest power of two that is not below a number of 1 or more."""
    return 1 << (number - 1).bit_length()
