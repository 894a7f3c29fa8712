"""Options that hold several numbers, with commas between."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from calib.errors import ConfigurationError

Number = TypeVar("Number", int, float)


def number_list(
    kind: Callable[[str], Number], field: str, text: str, example: str
) -> tuple[Number, ...]:
    """The numbers of a text such as ``8,16,22``; empty text gives none.

    Args:
        kind: ``int`` or ``float``.
        field: name of the option, for the error.
        text: what was given.
        example: a good value, for the error.

    Raises:
        ConfigurationError: a part that is no such number.
    """
    try:
        return tuple(kind(part) for part in text.split(",") if part.strip())
    except ValueError as error:
        raise ConfigurationError(
            field, text, f"give numbers with commas between, as {example}"
        ) from error
