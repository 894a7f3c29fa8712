"""Cells of a squashed logit, and the fixed point in which sketches count.

u = v / (1 + |v| / 4) with v = z / scale maps every finite logit into (-4, 4): cells are narrow
around 0, where the confidence moves, and wide in the tails, where it does not. The scale is a power
of two, so scaling is exact; 1 suits every head whose logits are of ordinary size.

Logits count in units of scale·2^-16, labels in units of 2^-30. All of it is IEEE arithmetic that
rounds the same everywhere, so the same row falls into the same cell on every machine.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from calib.errors import InvalidInputError, RecordError
from calib.reliability import FRACTION_BITS

__all__ = [
    "CHUNK_ROWS",
    "HALF_RANGE",
    "LABEL_UNIT",
    "LOGIT_UNIT",
    "check_scale_exponent",
    "in_range",
    "in_short_range",
    "label_units",
    "logit_units",
    "scale_exponent",
    "scaled_logits",
    "squash_cells",
    "unchecked_logits",
]

LOGIT_UNIT = float(1 << 16)
LABEL_UNIT = float(1 << FRACTION_BITS)
CHUNK_ROWS = 1 << 15  # rows a pass: temporaries stay in cache, sums exact in fp64
HALF_RANGE = 4.0  # of the squashed logit
_LARGEST = 65536.0  # |z| / scale above which sigma is 0 or 1 for every T that may be published
_SHORT = 32768.0  # in units of 2^-16 such logits fit 32 bits
_USUAL = (1.0 / 16.0, 16.0)  # mean |z| that scale 1 resolves as well as any other
_EXPONENTS = 100  # keeps z / scale a normal fp32 number for all but absurd logits


def check_scale_exponent(exponent: int) -> int:
    """``exponent`` as a whole number in -100 … 100.

    Raises:
        InvalidInputError: for anything else.
    """
    if isinstance(exponent, bool) or int(exponent) != exponent or abs(exponent) > _EXPONENTS:
        raise InvalidInputError("scale_exponent", exponent, "give a whole number, -100 … 100")
    return int(exponent)


def scale_exponent(logits: NDArray[np.floating]) -> int:
    """The exponent e for which 2^e suits these logits; 0 for any of ordinary size."""
    parts = (logits[start : start + CHUNK_ROWS] for start in range(0, len(logits), CHUNK_ROWS))
    total = sum(float(np.abs(part).sum(dtype=np.float64)) for part in parts)
    size = total / logits.size if logits.size else 0.0
    if size == 0.0 or not math.isfinite(size) or _USUAL[0] <= size <= _USUAL[1]:
        return 0
    # A typical |z| of two scales lies where cells are still narrow.
    return max(-_EXPONENTS, min(_EXPONENTS, round(math.log2(size)) - 1))


def scaled_logits(logits: NDArray[np.floating], exponent: int) -> NDArray[np.float32]:
    """z / 2^exponent in fp32, within ±65,536.

    Raises:
        RecordError: logits that are not finite in fp32.
    """
    value = unchecked_logits(logits, exponent)
    if in_range(value):
        return value
    finite = np.isfinite(np.asarray(logits, dtype=np.float64))
    if not finite.all():
        raise RecordError("confidence_logits", float(logits[~finite][0]), "give finite fp32 logits")
    return np.clip(value, -_LARGEST, _LARGEST)


def unchecked_logits(logits: NDArray[np.floating], exponent: int) -> NDArray[np.float32]:
    """z / 2^exponent in fp32, whatever its size."""
    with np.errstate(over="ignore", under="ignore"):
        value = np.asarray(logits, dtype=np.float32)
        return value * np.float32(2.0**-exponent) if exponent else value


def in_range(scaled: NDArray[np.float32]) -> bool:
    """Whether all scaled logits are finite and within ±65,536; NaN is not."""
    with np.errstate(over="ignore", invalid="ignore"):
        if in_short_range(scaled):
            return True
        return bool(scaled.max() <= _LARGEST and scaled.min() >= -_LARGEST)


def in_short_range(scaled: NDArray[np.float32]) -> bool:
    """Whether one reduction already says that all are within ±32,768; False says nothing."""
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.vdot(scaled, scaled) < _SHORT**2)


def squash_cells(scaled: NDArray[np.float32], cells: int) -> NDArray[np.intp]:
    """Cell 0 … cells - 1 of each scaled logit; a non-negative logit is in the upper half."""
    squashed = np.abs(scaled)
    squashed *= np.float32(1.0 / HALF_RANGE)
    squashed += np.float32(1.0)
    np.divide(scaled, squashed, out=squashed)
    squashed += np.float32(HALF_RANGE)
    squashed *= np.float32(cells / (2.0 * HALF_RANGE))
    index = squashed.astype(np.intp)
    return np.minimum(index, cells - 1, out=index)


def logit_units(scaled: NDArray[np.float32]) -> NDArray[np.float64]:
    """Scaled logits in whole units of 2^-16; at most 2^32, so a chunk's sum is exact."""
    return np.rint(scaled.astype(np.float64) * LOGIT_UNIT)


def label_units(labels: NDArray[np.floating] | NDArray[np.bool_]) -> NDArray[np.float64]:
    """Labels in whole units of 2^-30.

    Raises:
        RecordError: a label outside [0, 1].
    """
    if labels.dtype == np.bool_:
        return labels.astype(np.float64) * LABEL_UNIT
    values = np.asarray(labels, dtype=np.float64)
    if values.size and not (values.min() >= 0.0 and values.max() <= 1.0):
        wrong = values[~((values >= 0.0) & (values <= 1.0))]
        raise RecordError("labels", float(wrong[0]), "labels must lie in [0, 1]")
    return np.rint(values * LABEL_UNIT)
