"""A calibration file given on the command line: ours, or SGLang's STS JSON."""

from __future__ import annotations

from pathlib import Path

from calib.calibration import Calibration
from calib.canonical_json import parse_json_object
from calib.errors import FormatError
from calib.formats.sglang_sts import parse_sts

__all__ = ["read_calibration"]


def read_calibration(path: Path, gamma: int) -> Calibration:
    """The calibration for blocks of ``gamma`` positions; a longer one gives its first positions.

    Args:
        path: ``calibration.json`` as ``fit`` wrote it, or an STS file of SGLang.
        gamma: block size of the telemetry.

    Raises:
        FormatError: empty, no JSON, or of neither format.
        CalibrationValueError: numbers out of range, or fewer positions than ``gamma``.
        OSError: the file does not exist or may not be read.
    """
    data = path.read_bytes()
    if not data.strip():
        raise FormatError(path, "empty file", "give calibration.json or an STS file of SGLang")
    if "format" in parse_json_object(data, str(path)):
        return Calibration.from_json(data).prefix(gamma)
    temperatures = parse_sts(data, source=path).temperatures
    whole = Calibration.from_temperatures(temperatures, gamma=len(temperatures))
    return whole.prefix(gamma)
