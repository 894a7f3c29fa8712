"""Validation of the numbers a calibration may hold: rounded first, then checked.

Temperatures and slopes lie in [0.05, 20] (what may be published), intercepts are finite. Booleans
and text are no numbers, even where Python would convert them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from calib.canonical_json import round_significant
from calib.errors import CalibrationValueError
from calib.record_schema import MAX_GAMMA

__all__ = [
    "LARGEST_SCALE",
    "SMALLEST_SCALE",
    "checked_gamma",
    "checked_numbers",
    "checked_scales",
    "finite_number",
]

SMALLEST_SCALE = 0.05  # smallest temperature or slope that may be published
LARGEST_SCALE = 20.0  # largest one; its inverse is SMALLEST_SCALE


def checked_gamma(value: Any, field: str = "gamma") -> int:
    """``value`` as a block size: a whole number from 1 to 254, as in telemetry.

    Raises:
        CalibrationValueError: for anything else, booleans and floats included.
    """
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not whole or not 1 <= value <= MAX_GAMMA:
        raise CalibrationValueError(field, value, f"give the block size, 1 … {MAX_GAMMA}")
    return int(value)


def finite_number(field: str, value: Any) -> float:
    """``value`` as a finite float; booleans, text and None are refused.

    Raises:
        CalibrationValueError: naming ``field`` and the value.
    """
    is_number = isinstance(value, int | float | np.integer | np.floating)
    if not is_number or isinstance(value, bool):
        raise CalibrationValueError(field, value, "give a number")
    try:
        number = float(value)
    except OverflowError:
        number = float("inf")
    if not np.isfinite(number):
        raise CalibrationValueError(field, value, "give a finite number")
    return number


def checked_numbers(field: str, values: Any, gamma: int) -> tuple[float, ...]:
    """``gamma`` finite numbers, each rounded to six significant digits.

    Raises:
        CalibrationValueError: for text, maps, wrong lengths and elements that are no numbers.
    """
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise CalibrationValueError(field, values, f"give a list of {gamma} numbers")
    items = list(values)
    if len(items) != gamma:
        raise CalibrationValueError(
            field, items, f"has {len(items)} entries where gamma is {gamma}; give one per position"
        )
    numbers = (finite_number(f"{field}[{index}]", item) for index, item in enumerate(items))
    return tuple(round_significant(number) for number in numbers)


def checked_scales(field: str, values: Any, gamma: int) -> tuple[float, ...]:
    """Temperatures or slopes: :func:`checked_numbers` that lie in [0.05, 20] after rounding.

    Raises:
        CalibrationValueError: as :func:`checked_numbers`, and outside the bounds.
    """
    numbers = checked_numbers(field, values, gamma)
    for index, number in enumerate(numbers):
        if not SMALLEST_SCALE <= number <= LARGEST_SCALE:
            raise CalibrationValueError(
                f"{field}[{index}]",
                number,
                f"give a number within [{SMALLEST_SCALE}, {LARGEST_SCALE:g}]",
            )
    return numbers
