"""Findings about the calibration file that an engine loads when it starts."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from api.doctor.findings import Finding, Level
from calib.errors import FormatError
from calib.formats.sglang_sts import parse_sts

__all__ = ["file_findings"]

_LEAST, _MOST = 0.05, 20.0


def file_findings(
    path: Path, *, gamma: int | None, champion: Mapping[str, Any] | None
) -> Iterator[Finding]:
    """Whether SGLang would load the file, and whether it is what the service serves.

    Args:
        path: file of ``--speculative-dspark-confidence-sts-path``.
        gamma: draft positions of the engine; None unknown.
        champion: what the service serves now; None unknown.

    Raises:
        OSError: it cannot be read.
    """
    data = path.read_bytes()
    try:
        read = parse_sts(data, source=str(path))
    except FormatError as error:
        remedy = "write it with: dspark-calib export sglang DRAFTER --out FILE"
        yield Finding("file", Level.FAIL, str(error), remedy)
        return
    numbers = read.temperatures
    yield Finding("file", Level.OK, f"SGLang loads it: {len(numbers)} temperatures")
    if gamma is not None and len(numbers) != gamma:
        yield Finding(
            "file_gamma",
            Level.FAIL,
            f"the file has {len(numbers)} temperatures, the engine {gamma}: it will not start",
            f"write it with --gamma {gamma}",
        )
    if not all(_LEAST <= number <= _MOST for number in numbers):
        text = f"a temperature lies outside [{_LEAST:g}, {_MOST:g}]"
        yield Finding("file_range", Level.FAIL, text, "fit again: such a number is no calibration")
    if set(numbers) == {1.0}:
        yield Finding(
            "identity_only",
            Level.OK,
            "the file is identity, as collecting needs; the plugin changes it in place",
        )
    if champion is not None:
        yield from _staleness(path, json.loads(data), numbers, champion)


def _staleness(
    path: Path, document: Mapping[str, Any], numbers: tuple[float, ...], champion: Mapping[str, Any]
) -> Iterator[Finding]:
    served = tuple(champion["temperatures"][: len(numbers)])
    if numbers == served:
        yield Finding("file_stale", Level.OK, "the file holds what the service serves")
        return
    days = (time.time() - path.stat().st_mtime) / 86_400.0
    own = document.get("revision")
    name = "numbers of no revision" if own is None else f"revision {own}"
    yield Finding(
        "file_stale",
        Level.WARN,
        f"the file holds {name}, written {days:.1f} days ago; the service serves revision "
        f"{champion['revision']}",
        "write it again before the next start; a running engine needs the plugin to change",
    )
