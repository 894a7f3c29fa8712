"""Validation of what a calibration carries besides its numbers: words, texts, evidence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

from calib.canonical_json import plain_json
from calib.errors import CalibrationValueError, InvalidInputError
from calib.statuses import PositionStatus, ServingStatus

__all__ = [
    "checked_mapping",
    "checked_statuses",
    "checked_text",
    "checked_word",
    "frozen_evidence",
    "serving_status",
]

_Word = TypeVar("_Word", ServingStatus, PositionStatus)


def serving_status(
    position_statuses: Iterable[PositionStatus], *, affine: bool = False
) -> ServingStatus:
    """``fitted`` when every position is ok, ``partial`` when some are, ``insufficient`` else.

    Args:
        position_statuses: how the temperature of each position went.
        affine: whether slopes and intercepts are served beside them: with these a calibration of
            which no temperature fits is ``partial``.
    """
    ok = [status is PositionStatus.OK for status in position_statuses]
    if ok and all(ok):
        return ServingStatus.FITTED
    return ServingStatus.PARTIAL if affine or any(ok) else ServingStatus.INSUFFICIENT


def checked_word(kind: type[_Word], field: str, value: Any) -> _Word:
    """``value`` as a status word of this kind.

    Raises:
        CalibrationValueError: naming the words there are.
    """
    try:
        return kind(value)
    except ValueError:
        words = [str(word) for word in kind]
        raise CalibrationValueError(field, value, f"give one of {words}") from None


def checked_statuses(
    values: Iterable[PositionStatus | str], gamma: int
) -> tuple[PositionStatus, ...]:
    """One status per position; all ``ok`` when ``values`` is empty.

    Raises:
        CalibrationValueError: another number of statuses, or unknown words.
    """
    field = "position_statuses"
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise CalibrationValueError(field, values, "give one status per position")
    given = tuple(values)
    if not given:
        return (PositionStatus.OK,) * gamma
    if len(given) != gamma:
        raise CalibrationValueError(field, given, f"give {gamma} statuses")
    return tuple(
        checked_word(PositionStatus, f"{field}[{index}]", value)
        for index, value in enumerate(given)
    )


def checked_text(field: str, value: Any) -> str | None:
    """A non-empty text as plain ``str``, or None.

    Raises:
        CalibrationValueError: for anything else.
    """
    if value is not None and (not isinstance(value, str) or not value):
        raise CalibrationValueError(field, value, "give a non-empty text or None")
    return None if value is None else str(value)


def checked_mapping(field: str, value: Any) -> dict[str, Any]:
    """A shallow copy of a mapping as a dict.

    Raises:
        CalibrationValueError: when ``value`` is no mapping.
    """
    if not isinstance(value, Mapping):
        raise CalibrationValueError(field, value, "give a mapping of plain JSON values")
    return dict(value)


def frozen_evidence(value: Any) -> Mapping[str, Any]:
    """A deep read-only copy of a mapping of plain JSON values; lists become tuples.

    Raises:
        CalibrationValueError: for NaN, infinity and anything JSON cannot hold.
    """
    try:
        plain = plain_json(checked_mapping("evidence", value), "evidence")
    except CalibrationValueError:
        raise
    except InvalidInputError as error:
        raise CalibrationValueError(error.field, error.value, error.remedy) from error
    return MappingProxyType({key: _frozen(item) for key, item in plain.items()})


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return MappingProxyType({key: _frozen(item) for key, item in value.items()})
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value
