"""SGLang's calibration file: the JSON that ``--speculative-dspark-confidence-sts-path`` loads.

::

    {"temperatures": [γ numbers > 0], "dataset": "", "num_samples": 0,
     "ece_before": [numbers], "ece_after": [numbers]}

SGLang ignores unknown keys, so provenance may ride along, but refuses the whole file for one
null, NaN or infinity in the lists. Only ``temperatures`` is required.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from numbers import Real
from pathlib import Path
from typing import Any, NoReturn

from calib.atomic_files import write_bytes_atomically
from calib.errors import CalibrationValueError, FormatError

_KEYS = ("temperatures", "dataset", "num_samples", "ece_before", "ece_after")
_REMEDY = "give SGLang's STS calibration JSON"


@dataclass(frozen=True, slots=True)
class StsFile:
    """Contents of an STS calibration file.

    Attributes:
        temperatures: T by position, each finite and above 0.
        dataset: what the temperatures were fitted on, as free text.
        num_samples: rows of that fit.
        ece_before: calibration error by position at T = 1; empty where not stated.
        ece_after: calibration error by position at these temperatures; empty where not stated.
    """

    temperatures: tuple[float, ...]
    dataset: str = ""
    num_samples: int = 0
    ece_before: tuple[float, ...] = ()
    ece_after: tuple[float, ...] = ()


def sts_bytes(
    temperatures: Sequence[float],
    dataset: str = "",
    num_samples: int = 0,
    ece_before: Sequence[float | None] | None = None,
    ece_after: Sequence[float | None] | None = None,
    extra: Mapping[str, Any] | None = None,
) -> bytes:
    """The file's bytes, UTF-8.

    Args:
        temperatures: one per position, finite and above 0.
        dataset: free text.
        num_samples: rows of the fit.
        ece_before: one per position; left out where None or where one of them is None.
        ece_after: likewise.
        extra: further keys with JSON values, for readers other than SGLang.

    Raises:
        CalibrationValueError: a number that is not finite, a temperature of 0 or less, an ECE
            list of another length, a text or key that JSON or SGLang could not take.
    """
    numbers = _finite("temperatures", temperatures)
    if not numbers or min(numbers) <= 0.0:
        raise CalibrationValueError("temperatures", numbers, "give one or more, each above 0")
    if not _is_whole(num_samples) or num_samples < 0:
        raise CalibrationValueError("num_samples", num_samples, "give a whole number, 0 or more")
    if not isinstance(dataset, str):
        raise CalibrationValueError("dataset", dataset, "give text")
    document: dict[str, Any] = {
        "temperatures": numbers,
        "dataset": dataset,
        "num_samples": num_samples,
    }
    for name, errors in (("ece_before", ece_before), ("ece_after", ece_after)):
        if errors is not None and all(error is not None for error in errors):
            document[name] = _finite(name, errors)
            if len(errors) != len(numbers):
                remedy = f"give {len(numbers)} values, one per temperature, or none"
                raise CalibrationValueError(name, len(errors), remedy)
    for key, value in (extra or {}).items():
        if key in _KEYS or not isinstance(key, str):
            raise CalibrationValueError("extra", key, "use a text that is no key of the format")
        document[key] = value
    return _encoded(document)


def write_sts(
    path: str | os.PathLike[str],
    temperatures: Sequence[float],
    dataset: str = "",
    num_samples: int = 0,
    ece_before: Sequence[float | None] | None = None,
    ece_after: Sequence[float | None] | None = None,
    extra: Mapping[str, Any] | None = None,
) -> None:
    """Write the file in one step, so that an engine that starts meanwhile reads old or new.

    The arguments are those of :func:`sts_bytes`.

    Raises:
        CalibrationValueError: as :func:`sts_bytes`; nothing is written then.
        OSError: the file cannot be written.
    """
    data = sts_bytes(temperatures, dataset, num_samples, ece_before, ece_after, extra)
    write_bytes_atomically(path, data)


def read_sts(path: str | os.PathLike[str], gamma: int | None = None) -> StsFile:
    """Contents of an STS file; unknown keys are ignored, as SGLang does.

    Args:
        path: file to read.
        gamma: number of temperatures the caller needs; None takes what the file has.

    Raises:
        FormatError: no JSON object, a missing or mistyped key, a number that is not finite, a
            temperature of 0 or less, or another number of temperatures than ``gamma``.
        OSError: the file does not exist or may not be read.
    """
    return parse_sts(Path(path).read_bytes(), gamma, source=path)


def parse_sts(data: bytes, gamma: int | None = None, *, source: object = "STS JSON") -> StsFile:
    """Contents of an STS file from its bytes.

    Raises:
        FormatError: as :func:`read_sts`.
    """
    document = _decoded(data, source)
    temperatures = _number_list(document, "temperatures", source)
    if not temperatures or min(temperatures) <= 0.0:
        raise FormatError(source, "temperatures must be above 0", _REMEDY)
    if gamma is not None and len(temperatures) != gamma:
        reason = f"{len(temperatures)} temperatures, but gamma is {gamma}"
        raise FormatError(source, reason, "use a calibration that was fitted for this gamma")
    dataset = document.get("dataset", "")
    num_samples = document.get("num_samples", 0)
    if not isinstance(dataset, str):
        raise FormatError(source, "dataset is no text", _REMEDY)
    if not _is_whole(num_samples):
        raise FormatError(source, "num_samples is no whole number", _REMEDY)
    return StsFile(
        temperatures=temperatures,
        dataset=dataset,
        num_samples=num_samples,
        ece_before=_number_list(document, "ece_before", source, required=False),
        ece_after=_number_list(document, "ece_after", source, required=False),
    )


def _finite(name: str, values: Sequence[Any]) -> list[float]:
    for value in values:
        if not _is_finite(value):
            raise CalibrationValueError(name, value, "give finite numbers only")
    return [float(value) for value in values]


def _is_finite(value: Any) -> bool:
    """Whether a real number, no boolean, is finite and stays so as a float."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    try:
        return isfinite(value)  # 1e400 is valid JSON and reads as infinity
    except OverflowError:  # a whole number beyond the largest float
        return False


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _encoded(document: dict[str, Any]) -> bytes:
    try:
        text = json.dumps(document, allow_nan=False, ensure_ascii=False)
        return text.encode("utf-8")
    except (TypeError, ValueError, RecursionError) as error:  # NaN, surrogates, foreign types
        raise CalibrationValueError("extra", str(error), "give plain, finite JSON") from error


def _decoded(data: bytes, source: object) -> dict[str, Any]:
    try:
        document = json.loads(data.decode("utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise FormatError(source, f"no JSON: {error}", _REMEDY) from error
    if not isinstance(document, dict):
        raise FormatError(source, "no JSON object", _REMEDY)
    return document


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _number_list(
    document: dict[str, Any], name: str, source: object, *, required: bool = True
) -> tuple[float, ...]:
    values = document.get(name, None if required else [])
    if not isinstance(values, list):
        raise FormatError(source, f"{name} is missing or no list", _REMEDY)
    for value in values:
        if not _is_finite(value):
            raise FormatError(source, f"{name} holds {value!r:.40}", "give finite numbers only")
    return tuple(float(value) for value in values)
