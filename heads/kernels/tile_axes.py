# mypy: allow-untyped-decorators
"""Two forms of a tile in one text: [ids, rows] with tensor cores, [ids] of a single row without.

With rows, what belongs to ids lies along axis 0 and what belongs to rows along axis 1; reductions
over axis 0 leave one number a row. A single row is a scalar, and the same reductions leave one.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def down(x: tl.tensor, ROWS: tl.constexpr) -> tl.tensor:
    """What belongs to ids, along axis 0 of a tile."""
    return x[:, None] if ROWS else x


@triton.jit
def across(x: tl.tensor, ROWS: tl.constexpr) -> tl.tensor:
    """What belongs to rows, along axis 1 of a tile; a scalar for a single row."""
    return x[None, :] if ROWS else x
