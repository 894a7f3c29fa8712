# mypy: allow-untyped-decorators
"""Sigmoid, tanh and the reference of a log-sum-exp, for float32 of any size.

``libdevice`` runs in no interpreter, and ``tl.sigmoid`` overflows its exponential for large
negative arguments; both forms here only ever see exp of what is not positive.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def sigmoid(
    x: tl.tensor,  # [...] float32
) -> tl.tensor:
    """1 / (1 + exp(−x)), within 2e-7; NaN for NaN."""
    e = tl.exp(-tl.abs(x))
    return tl.where(x >= 0.0, 1.0, e) / (1.0 + e)


@triton.jit
def tanh(
    x: tl.tensor,  # [...] float32
) -> tl.tensor:
    """Hyperbolic tangent, within 2e-7 absolute; NaN for NaN."""
    e = tl.exp(-2.0 * tl.abs(x))
    size = (1.0 - e) / (1.0 + e)
    return tl.where(x < 0.0, -size, size)


@triton.jit
def finite_or_zero(
    x: tl.tensor,  # [...] float32
) -> tl.tensor:
    """x where it is finite, else 0: ∞ − ∞ would be NaN, and sums of exponentials without a finite
    largest need no reference."""
    return tl.where(tl.abs(x) < float("inf"), x, 0.0)
