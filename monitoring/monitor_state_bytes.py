"""A monitor's state as bytes, and back: versioned, checked, exact.

Layout, little-endian: 4-byte magic, u16 version, u32 size and u32 CRC-32 of what follows; then u32
size of a deflated JSON object, the object, and the blobs (keys, sums, sketches) it names.
Floats are written with all their digits, so that a stored state goes on with the same decisions.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from typing import Any, Final

import numpy as np

from calib.errors import CalibrationError, FormatError
from monitoring.calibration_history import ErrorSums, HistoryPoint
from monitoring.data_quality_monitors import (
    QualityFault,
    QualityState,
    QualityStatus,
    QualityVerdict,
)
from monitoring.detectors.e_cusum import CusumState
from monitoring.detectors.levels import DriftState
from monitoring.explanations import TrafficSummary
from monitoring.hour_sketches import ClosedHour, HourSketches, pack_open, unpack_open
from monitoring.monitor_deduplication import Chunk, Mark, RecentRows
from monitoring.monitor_state import (
    MonitorState,
    PendingFit,
    SegmentStream,
    StreamMarks,
    Trial,
    Watch,
)
from monitoring.payloads import payload_of, records_of
from monitoring.promotion_gate import GateState
from monitoring.promotion_gate_rollback import RollbackState
from monitoring.request_dependence import RequestDependence
from monitoring.residual_means import ResidualMeans

__all__ = ["VERSION", "state_from_bytes", "state_to_bytes"]

VERSION: Final = 2

_MAGIC: Final = b"DSMS"
_HEADER: Final = struct.Struct("<4sHII")
_LEVEL: Final = 1
_SOURCE: Final = "monitor state"
_REMEDY: Final = "start the loop from a fresh state: it learns anew from stored telemetry"
_PLAIN: Final = (
    "drafter",
    "gamma",
    "champion",
    "digest",
    "publication",
    "consumed_through",
    "rows",
    "rows_total",
    "duplicates",
    "late",
    "held",
    "rejected",
    "challengers",
    "fits",
    "last_fit_row",
    "last_fit_at",
    "cool_down_rows",
    "started_at",
    "updated_at",
    "baseline_at",
)
_DEPENDENCE_SUMS: Final = (
    "rows",
    "mean",
    "squares",
    "requests",
    "request_squares",
    "request_pairs",
)
_DEPENDENCE_ARRAYS: Final = {"keys": "<u8", "counts": "<i8", "sums": "<f8", "newest": "<i8"}
_TUPLES: Final = ("announced", "consistency", "act_row", "last_decision")


class _Blobs:
    """Bytes beside the JSON, in the order they are met."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []

    def add(self, data: bytes) -> int:
        self.parts.append(data)
        return len(self.parts) - 1


def state_to_bytes(state: MonitorState) -> bytes:
    """Bytes that :func:`state_from_bytes` reads."""
    blobs = _Blobs()
    values: dict[str, Any] = {name: getattr(state, name) for name in _PLAIN + _TUPLES}
    values |= {
        "excluded": dict(state.excluded),
        "quality": state.quality.to_dict(),
        "verdicts": [
            [str(each.fault), str(each.status), each.reason, each.value, each.limit, each.engine]
            for each in state.verdicts
        ],
        "drift": None if state.drift is None else state.drift.to_dict(),
        "segments": {name: _segment(stream) for name, stream in state.segments.items()},
        "marks": _marks(state.marks),
        "trial": None if state.trial is None else _trial(state.trial),
        "watch": None if state.watch is None else _watch(state.watch),
        "fit": None if state.fit is None else asdict(state.fit),
        "reference": None if state.reference is None else state.reference.to_dict(),
        "current": [part.to_dict() for part in state.current],
        "residuals": state.residuals.to_dict(),
        "dependence": _dependence(state.dependence, blobs),
        "errors": None if state.errors is None else _errors(state.errors, blobs),
        "history": [asdict(point) for point in state.history],
        "recent": _recent(state.recent, blobs),
        "sketches": _sketches(state.sketches, blobs),
    }
    values["sizes"] = [len(part) for part in blobs.parts]
    text = json.dumps(values, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode()
    packed = zlib.compress(text, _LEVEL)
    body = struct.pack("<I", len(packed)) + packed + b"".join(blobs.parts)
    return _HEADER.pack(_MAGIC, VERSION, len(body), zlib.crc32(body)) + body


def state_from_bytes(data: bytes) -> MonitorState:
    """The state that :func:`state_to_bytes` wrote.

    Raises:
        FormatError: another kind or version, or bytes that were damaged.
    """
    values, blobs = _unpacked(data)
    try:
        return _state(values, blobs)
    except (KeyError, TypeError, ValueError, IndexError, CalibrationError) as error:
        raise FormatError(_SOURCE, f"damaged: {error}", _REMEDY) from error


def _unpacked(data: bytes) -> tuple[dict[str, Any], list[bytes]]:
    if len(data) < _HEADER.size:
        raise FormatError(_SOURCE, "ends before its header does", _REMEDY)
    magic, version, size, check = _HEADER.unpack_from(data)
    if magic != _MAGIC or version != VERSION:
        reason = f"kind {magic!r} version {version} is not {_MAGIC!r} version {VERSION}"
        raise FormatError(_SOURCE, reason, _REMEDY)
    body = data[_HEADER.size :]
    if len(body) != size or zlib.crc32(body) != check:
        raise FormatError(_SOURCE, "its checksum does not match", _REMEDY)
    (packed,) = struct.unpack_from("<I", body)
    text = zlib.decompress(body[4 : 4 + packed])
    values: dict[str, Any] = json.loads(text)
    rest, blobs = body[4 + packed :], []
    for length in values["sizes"]:
        blobs.append(rest[:length])
        rest = rest[length:]
    return values, blobs


def _state(values: Mapping[str, Any], blobs: list[bytes]) -> MonitorState:
    verdicts = tuple(
        QualityVerdict(QualityFault(fault), QualityStatus(status), *told)
        for fault, status, *told in values["verdicts"]
    )
    read: dict[str, Any] = {name: values[name] for name in _PLAIN}
    read |= {name: values[name] and tuple(values[name]) for name in ("act_row", "last_decision")}
    read |= {name: tuple(values[name]) for name in ("announced", "consistency")}
    read |= {
        "drift": None if values["drift"] is None else DriftState.from_dict(values["drift"]),
        "trial": None if values["trial"] is None else _read_trial(values["trial"]),
        "watch": None if values["watch"] is None else _read_watch(values["watch"]),
        "fit": None if values["fit"] is None else PendingFit(**values["fit"]),
        "residuals": ResidualMeans.from_dict(values["residuals"]),
        "dependence": _read_dependence(values["dependence"], blobs),
        "errors": None if values["errors"] is None else _read_errors(values["errors"], blobs),
        "reference": None
        if values["reference"] is None
        else TrafficSummary.from_dict(values["reference"]),
        "excluded": values["excluded"],
        "quality": QualityState.from_dict(values["quality"]),
        "verdicts": verdicts,
        "segments": {name: _read_segment(each) for name, each in values["segments"].items()},
        "marks": _read_marks(values["marks"]),
        "current": tuple(TrafficSummary.from_dict(part) for part in values["current"]),
        "history": tuple(HistoryPoint(**point) for point in values["history"]),
        "recent": _read_recent(values["recent"], blobs),
        "sketches": _read_sketches(values["sketches"], blobs),
    }
    return MonitorState(**read)


def _segment(stream: SegmentStream) -> dict[str, Any]:
    return {
        "tags": dict(stream.tags),
        "state": stream.state.to_dict(),
        "marks": _marks(stream.marks),
    }


def _read_segment(values: Mapping[str, Any]) -> SegmentStream:
    state = CusumState.from_dict(values["state"])
    return SegmentStream(values["tags"], state, _read_marks(values["marks"]))


def _marks(marks: StreamMarks) -> dict[str, Any]:
    return {entry.name: getattr(marks, entry.name) for entry in fields(marks)}


def _read_marks(values: Mapping[str, Any]) -> StreamMarks:
    return StreamMarks(*(tuple(values[entry.name]) for entry in fields(StreamMarks)))


def _trial(trial: Trial) -> dict[str, Any]:
    values = {entry.name: getattr(trial, entry.name) for entry in fields(trial)}
    return values | {"gate": trial.gate.to_dict()}


def _read_trial(values: Mapping[str, Any]) -> Trial:
    return Trial(**{**values, "gate": GateState.from_dict(values["gate"])})


def _watch(watch: Watch) -> dict[str, Any]:
    values = {entry.name: getattr(watch, entry.name) for entry in fields(watch)}
    return values | {"state": watch.state.to_dict()}


def _read_watch(values: Mapping[str, Any]) -> Watch:
    return Watch(**{**values, "state": RollbackState.from_dict(values["state"])})


def _errors(errors: ErrorSums, blobs: _Blobs) -> dict[str, Any]:
    return {"rows": errors.rows, "blob": blobs.add(errors.sums.astype("<f8").tobytes())}


def _read_errors(values: Mapping[str, Any], blobs: list[bytes]) -> ErrorSums:
    sums = np.frombuffer(blobs[values["blob"]], dtype="<f8").astype(np.float64)
    return ErrorSums(values["rows"], sums.reshape(4, -1))


def _dependence(found: RequestDependence, blobs: _Blobs) -> dict[str, Any]:
    plain: dict[str, Any] = {name: getattr(found, name) for name in _DEPENDENCE_SUMS}
    for name, dtype in _DEPENDENCE_ARRAYS.items():
        plain[name] = blobs.add(getattr(found, name).astype(dtype).tobytes())
    return plain


def _read_dependence(values: Mapping[str, Any], blobs: list[bytes]) -> RequestDependence:
    read: dict[str, Any] = {name: values[name] for name in _DEPENDENCE_SUMS}
    for name, dtype in _DEPENDENCE_ARRAYS.items():
        read[name] = np.frombuffer(blobs[values[name]], dtype=dtype).astype(dtype[1:])
    return RequestDependence(**read)


def _recent(recent: RecentRows, blobs: _Blobs) -> dict[str, Any]:
    return {
        "limit": recent.limit,
        "chunks": [
            {"blob": blobs.add(chunk.keys.astype("<u8").tobytes()), "steps": dict(chunk.steps)}
            for chunk in recent.chunks
        ],
        "marks": {sender: [mark.step, mark.late] for sender, mark in recent.marks.items()},
    }


def _read_recent(values: Mapping[str, Any], blobs: list[bytes]) -> RecentRows:
    chunks = tuple(
        Chunk(np.frombuffer(blobs[each["blob"]], dtype="<u8").astype(np.uint64), each["steps"])
        for each in values["chunks"]
    )
    marks = {sender: Mark(*numbers) for sender, numbers in values["marks"].items()}
    return RecentRows(values["limit"], chunks, marks)


def _sketches(sketches: HourSketches, blobs: _Blobs) -> dict[str, Any]:
    hours = [*sketches.closed]
    if sketches.open is not None:
        hours.append(pack_open(sketches.open))
    return {
        "open": sketches.open is not None,
        "hours": [
            {
                **{name: getattr(hour, name) for name in ("hour", "rows", "first_batch")},
                "labels": blobs.add(hour.labels),
                "pairs": blobs.add(hour.pairs),
            }
            for hour in hours
        ],
        "pending": [blobs.add(payload_of(part)) for part in sketches.joined().pending],
        "pending_batch": sketches.pending_batch,
        "pending_hour": sketches.pending_hour,
    }


def _read_sketches(values: Mapping[str, Any], blobs: list[bytes]) -> HourSketches:
    hours = [
        ClosedHour(
            each["hour"],
            each["rows"],
            each["first_batch"],
            blobs[each["labels"]],
            blobs[each["pairs"]],
        )
        for each in values["hours"]
    ]
    under_way = unpack_open(hours.pop()) if values["open"] else None
    return replace(
        HourSketches(tuple(hours), under_way),
        pending=tuple(records_of(blobs[place]) for place in values["pending"]),
        pending_batch=values["pending_batch"],
        pending_hour=values["pending_hour"],
    )
