"""The fp32 sigmoid that every calibrated probability of this project goes through.

The argument is fp32, the exponential fp64, the result is cast to fp32: correctly rounded in all but
about one case in 10^8, so NumPy builds with different vector units agree, which an fp32 exponential
does not give.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["CHUNK", "sigmoid_fp32", "sigmoid_into"]

CHUNK = 16384  # elements a pass: its fp64 temporary (128 kB) stays in a second-level cache


def sigmoid_into(
    argument: NDArray[np.float32],  # [m] contiguous
    scratch: NDArray[np.float64],  # [m] overwritten
    out: NDArray[np.float32],  # [m] may be ``argument`` itself
) -> None:
    """Write sigma(argument) to ``out`` without allocating.

    Call it inside ``np.errstate(over="ignore")``: exp overflows to infinity for arguments below
    -709, which gives the right 0.
    """
    np.negative(argument, out=scratch, dtype=np.float64)
    np.exp(scratch, out=scratch)
    np.add(scratch, 1.0, out=scratch)
    np.reciprocal(scratch, out=scratch)
    np.copyto(out, scratch, casting="same_kind")


def sigmoid_fp32(argument: NDArray[np.float32]) -> NDArray[np.float32]:
    """1 / (1 + exp(-x)) of fp32 values of any shape, as fp32 in [0, 1]; infinities give 0 and 1.

    Examples:
        >>> sigmoid_fp32(np.array([-np.inf, 0.0, 1.0], dtype=np.float32)).round(4).tolist()
        [0.0, 0.5, 0.7311000227928162]
    """
    flat = np.ascontiguousarray(argument, dtype=np.float32).reshape(-1)
    result = np.empty_like(flat)
    scratch = np.empty(min(CHUNK, flat.size), dtype=np.float64)
    with np.errstate(over="ignore"):
        for start in range(0, flat.size, CHUNK):
            part = flat[start : start + CHUNK]
            sigmoid_into(part, scratch[: part.size], result[start : start + part.size])
    return result.reshape(np.shape(argument))
