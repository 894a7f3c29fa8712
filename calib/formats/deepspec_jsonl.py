"""DeepSpec's confidence records and calibration file, as its evaluation writes and reads them.

Records are JSON Lines, one block a line::

    {"logits": [z_1, …], "labels": [1, 1, 0, …]}

``labels`` are prefix labels: 1 up to the last accepted draft, 0 from the first rejection on. Every
drafted position was verified, and a line is cut after an accepted stop token, so lines are ragged.
DeepSpec computes these logits in bfloat16 and with sampled verification at batch 1: numbers fitted
on them are not those of a serving engine.

The calibration file::

    {"temperatures": [γ], "block_size": γ, "num_bins": 20, "grid": {"min": …, "max": …, "size": …},
     "num_records": N, "sources": [...], "cumulative_ece_before": [γ], "cumulative_ece_after": [γ]}
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from calib.calibration_values import checked_gamma
from calib.canonical_json import parse_json_object
from calib.errors import CalibrationValueError, FormatError
from calib.record_schema import Flag
from calib.records import AcceptanceRecords

__all__ = [
    "NOTE_EVALUATION",
    "DeepSpecRecords",
    "deepspec_calibration_bytes",
    "deepspec_lines",
    "parse_deepspec_calibration",
    "read_deepspec",
]

NOTE_EVALUATION = (
    "logits of DeepSpec's evaluation are bfloat16: fit what an engine serves on the engine's own"
)
_REMEDY = 'give lines of {"logits": [...], "labels": [...]}, as --confidence-dump-dir writes them'


@dataclass(frozen=True, slots=True)
class DeepSpecRecords:
    """What a set of record files holds.

    Attributes:
        records: one row a line, in order; shorter lines have fewer verified positions.
        ragged: lines that were cut at a stop token.
        empty: lines without a position, left out.
    """

    records: AcceptanceRecords
    ragged: int
    empty: int


def read_deepspec(
    paths: Sequence[str | os.PathLike[str]],
    gamma: int | None = None,
    *,
    sampling_temperature: float | None = None,
    engine: str = "deepspec",
) -> DeepSpecRecords:
    """Records of one evaluation.

    Positions that a line does not have are not observed; their logits, which a row must carry,
    are 0 and are never looked at.

    Args:
        paths: record files, in order.
        gamma: block size; None takes the longest line.
        sampling_temperature: of the evaluation (``--temperature``), if known.
        engine: name written into the rows.

    Raises:
        FormatError: no such lines, labels that rise again after a rejection, a line longer than
            ``gamma``, or no rows.
        OSError: a file cannot be read.
    """
    lines = [line for path in paths for line in _lines(Path(path))]
    kept = [(logits, labels) for logits, labels in lines if logits]
    if not kept:
        raise FormatError(str(paths[0]) if paths else "records", "no rows", _REMEDY)
    longest = max(len(logits) for logits, _ in kept)
    width = checked_gamma(longest if gamma is None else gamma)
    if longest > width:
        reason = f"a line has {longest} positions, but gamma is {width}"
        raise FormatError(str(paths[0]), reason, "give the block size that was evaluated")
    grid = np.zeros((len(kept), width), dtype=np.float32)
    for row, (logits, _) in enumerate(kept):
        grid[row, : len(logits)] = logits
    verified = np.array([len(logits) for logits, _ in kept])
    cut = verified < width
    greedy = sampling_temperature == 0.0
    records = AcceptanceRecords.from_columns(
        width,
        {
            "confidence_logits": grid,
            "verified": verified,
            "accepted": np.array([sum(labels) for _, labels in kept]),
            "scheduled": np.full(len(kept), width),
            "flags": np.where(cut, np.uint8(Flag.STOP_TRUNCATED), np.uint8(0)),
            "propensity": [1.0] * len(kept),
            "acceptance_rule": ["greedy" if greedy else "rejection"] * len(kept),
            "draft_mode": ["greedy" if greedy else "sampled"] * len(kept),
            "sampling_temperature": [sampling_temperature] * len(kept),
            "engine": [engine] * len(kept),
        },
    )
    return DeepSpecRecords(records, int(cut.sum()), len(lines) - len(kept))


def deepspec_lines(records: AcceptanceRecords) -> Iterator[str]:
    """Rows as DeepSpec's lines, each cut to what was verified; rows without any are left out.

    DeepSpec takes a short line for one that a stop token cut. Rows that a scheduler trimmed look
    the same, and its fitter is biased by them: give it rows that were verified in full.
    """
    logits = records.confidence_logits.astype(np.float64)
    for row, (verified, accepted) in enumerate(
        zip(records.verified.tolist(), records.accepted.tolist(), strict=True)
    ):
        if verified:
            labels = [1] * accepted + [0] * (verified - accepted)
            yield json.dumps({"logits": logits[row, :verified].tolist(), "labels": labels})


def deepspec_calibration_bytes(
    temperatures: Sequence[float],
    *,
    num_records: int = 0,
    sources: Sequence[str] = (),
    ece_before: Sequence[float] = (),
    ece_after: Sequence[float] = (),
    num_bins: int = 15,
) -> bytes:
    """The file that DeepSpec's evaluation applies (``--confidence-calibration-path``).

    Raises:
        CalibrationValueError: a temperature that is not finite and above 0, or an error that is
            not finite.
    """
    numbers = [float(value) for value in temperatures]
    if not numbers or not all(isfinite(value) and value > 0.0 for value in numbers):
        raise CalibrationValueError("temperatures", numbers, "give one or more, each above 0")
    document: dict[str, Any] = {
        "temperatures": numbers,
        "block_size": len(numbers),
        "num_bins": num_bins,
        "num_records": num_records,
        "sources": list(sources),
    }
    for name, errors in (("before", ece_before), ("after", ece_after)):
        if errors and len(errors) == len(numbers):
            if not all(isfinite(error) for error in errors):
                raise CalibrationValueError(f"ece_{name}", list(errors), "leave it out instead")
            document[f"cumulative_ece_{name}"] = [float(error) for error in errors]
    return json.dumps(document, allow_nan=False, indent=1).encode()


def parse_deepspec_calibration(
    data: bytes, gamma: int | None = None, *, source: object = "DeepSpec calibration"
) -> tuple[float, ...]:
    """Temperatures of such a file. Its error lists may hold NaN, which are not looked at.

    Raises:
        FormatError: no such file, a number out of range, or another block size than stated.
    """
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise FormatError(source, f"no JSON ({error})", "give the fitter's file") from error
    values = document.get("temperatures") if isinstance(document, Mapping) else None
    if not isinstance(values, list) or not values:
        raise FormatError(source, "no list of temperatures", "give the fitter's file")
    for value in values:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not isfinite(value) or value <= 0.0:
            raise FormatError(source, f"temperature {value!r}", "give numbers above 0")
    stated = document.get("block_size", len(values))
    for name, wanted in (("block_size", stated), ("gamma", gamma)):
        if wanted is not None and wanted != len(values):
            reason = f"{len(values)} temperatures, but {name} is {wanted}"
            raise FormatError(source, reason, "use a calibration fitted for this block size")
    return tuple(float(value) for value in values)


def _lines(path: Path) -> Iterator[tuple[list[float], list[int]]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield _row(line, f"{path}:{number}")


def _row(line: bytes, source: str) -> tuple[list[float], list[int]]:
    found = parse_json_object(line, source)
    logits, labels = found.get("logits"), found.get("labels")
    if not isinstance(logits, list) or not isinstance(labels, list) or len(logits) != len(labels):
        raise FormatError(source, "logits and labels are no lists of one length", _REMEDY)
    for value in logits:
        if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
            raise FormatError(source, f"logit {value!r}", "give finite numbers")
    whole = [int(label) if label in (0, 1) else -1 for label in labels]
    if -1 in whole:
        raise FormatError(source, f"labels {labels!r:.60}", "give 0 or 1")
    if whole != sorted(whole, reverse=True):
        remedy = "give prefix labels: 0 from the first rejection on"
        raise FormatError(source, f"labels {labels!r:.60} rise again", remedy)
    return [float(value) for value in logits], whole
