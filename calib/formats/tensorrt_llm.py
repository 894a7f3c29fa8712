"""TensorRT-LLM's calibration file for a DSpark confidence head.

::

    {"sts_temperatures": [γ numbers > 0]}

Its loader takes SGLang's ``temperatures`` as well, so an STS file serves both engines; this one
says the engine's own name. Further keys are ignored there, and carry where the numbers come from.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from calib.errors import CalibrationValueError, FormatError
from calib.formats.sglang_sts import parse_sts, sts_bytes

__all__ = ["parse_tensorrt_llm", "tensorrt_llm_bytes"]

_KEY = "sts_temperatures"


def tensorrt_llm_bytes(
    temperatures: Sequence[float], extra: Mapping[str, Any] | None = None
) -> bytes:
    """The file's bytes, UTF-8.

    Args:
        temperatures: one per position, finite and above 0.
        extra: further keys with JSON values.

    Raises:
        CalibrationValueError: a number out of range, or a key of the format among ``extra``.
    """
    more = dict(extra or {})
    if _KEY in more:
        raise CalibrationValueError("extra", _KEY, "leave out the format's own key")
    document = json.loads(sts_bytes(temperatures, extra=more))
    numbers = document.pop("temperatures")
    kept = {name: value for name, value in document.items() if name in more}
    return json.dumps({_KEY: numbers, **kept}, allow_nan=False).encode()


def parse_tensorrt_llm(
    data: bytes, gamma: int | None = None, *, source: object = "TensorRT-LLM JSON"
) -> tuple[float, ...]:
    """Temperatures of a file under either key, checked as SGLang's are.

    Raises:
        FormatError: no such file, or another number of temperatures than ``gamma``.
    """
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise FormatError(source, f"no JSON ({error})", "give TensorRT-LLM's STS file") from error
    if isinstance(document, dict) and _KEY in document:
        data = json.dumps({"temperatures": document[_KEY]}).encode()
    return parse_sts(data, gamma, source=source).temperatures
