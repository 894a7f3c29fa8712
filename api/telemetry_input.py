"""Telemetry files given on the command line, of any format this project reads, as records.

The format is taken from the first bytes, not from the name.
"""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from calib.errors import ConfigurationError, FormatError
from calib.formats.arrow import GAMMA_KEY, read_parquet, records_from_ipc
from calib.records import AcceptanceRecords

__all__ = ["TelemetryInput", "read_telemetry"]

_PARQUET = b"PAR1"
_ARROW_FILE = b"ARROW1"
_ARROW_STREAM = b"\xff\xff\xff\xff"
_ZIP = b"PK\x03\x04"  # what torch.save writes
_REMEDY = "give Parquet, Arrow or JSON-lines telemetry of this project, or SGLang .pt shards"


@dataclass(frozen=True, slots=True)
class TelemetryInput:
    """What the files hold.

    Attributes:
        records: all rows, in the order of ``files``.
        files: the files read.
        notes: what a format leaves open, to be shown beside every result.
    """

    records: AcceptanceRecords
    files: tuple[Path, ...]
    notes: tuple[str, ...]

    @property
    def source(self) -> str:
        """File names without folders, shortened when they are many."""
        names = [path.name for path in self.files]
        shown = ", ".join(names[:3])
        return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"


def read_telemetry(patterns: Sequence[str], gamma: int | None) -> TelemetryInput:
    """Read every file that the patterns name.

    Args:
        patterns: paths, or glob patterns that the shell left alone.
        gamma: block size as the caller knows it; None takes what the first file states. All files
            must agree.

    Raises:
        ConfigurationError: no γ was given and the file does not state it, or torch is missing.
        FormatError: no file matches, or one is empty, foreign or corrupt, or has another γ.
        OSError: a file does not exist or may not be read.
    """
    paths = _matching(patterns)
    parts: list[AcceptanceRecords] = []
    notes: list[str] = []
    for path in paths:
        block = gamma if gamma is not None else parts[0].gamma if parts else None
        records, said = _read(path, block)
        parts.append(records)
        notes += [note for note in said if note not in notes]
    joined = parts[0] if len(parts) == 1 else AcceptanceRecords.concatenate(parts)
    return TelemetryInput(joined, tuple(paths), tuple(notes))


def _matching(patterns: Sequence[str]) -> list[Path]:
    found: list[Path] = []
    for pattern in patterns:
        # A path may hold brackets that would be a pattern; a missing one is named when opened.
        is_path = os.path.exists(pattern) or not glob.has_magic(pattern)
        matches = [pattern] if is_path else sorted(glob.glob(pattern))
        if not matches:
            raise FormatError(pattern, "no file matches", "check the pattern")
        found += [Path(match) for match in matches if Path(match) not in found]
    return found


def _read(path: Path, gamma: int | None) -> tuple[AcceptanceRecords, tuple[str, ...]]:
    if path.is_dir():
        raise FormatError(path, "is a directory", "give files, or a quoted pattern such as 'd/*'")
    with path.open("rb") as file:
        head = file.read(8)
    if not head:
        raise FormatError(path, "empty file", _REMEDY)
    if head.startswith(_PARQUET):
        return read_parquet(path, gamma or _stated_in_parquet(path)), ()
    if head.startswith(_ARROW_FILE):
        return _read_arrow_file(path, gamma), ()
    if head.startswith(_ARROW_STREAM):
        data = path.read_bytes()
        return records_from_ipc(data, gamma or _stated_in_stream(data, path), source=path), ()
    if head.startswith(_ZIP) or path.suffix in (".pt", ".pth"):
        return _read_shard(path, gamma)
    if head.lstrip().startswith(b"{"):
        return _read_lines(path, gamma), ()
    raise FormatError(path, "neither Parquet, Arrow nor JSON lines, and no .pt shard", _REMEDY)


def _read_lines(path: Path, gamma: int | None) -> AcceptanceRecords:
    """One JSON object a line, with the columns of a telemetry row; a bad row is named and refused.

    The block size is the width of the first row's logits where nobody states it.
    """
    from monitoring.ingest import InvalidBatchError, UnreadableBatchError, parse_json_batch

    lines = {
        number: line
        for number, line in enumerate(path.read_bytes().splitlines(), start=1)
        if line.strip()
    }
    numbers, rows = list(lines), list(lines.values())
    try:
        block = gamma or len(json.loads(rows[0])["confidence_logits"])
    except (ValueError, KeyError, TypeError) as error:
        raise FormatError(path, "the first line is no telemetry row", _REMEDY) from error
    body = b'{"gamma": %d, "rows": [%s]}' % (block, b",".join(rows))
    try:
        parsed = parse_json_batch(body, block)
    except (InvalidBatchError, UnreadableBatchError) as error:
        _check_lines(path, lines)
        raise FormatError(path, f"not readable: {error}", _REMEDY) from error
    if parsed.rejected:
        row = parsed.rejected[0]
        where = "" if row.row is None else f"line {numbers[row.row]}: "
        raise FormatError(path, f"{where}{row.field}: {row.reason}", "mend or remove the row")
    return parsed.records


def _check_lines(path: Path, lines: Mapping[int, bytes]) -> None:
    """Name the first line that is no JSON; the whole cannot be read because of it."""
    for number, line in lines.items():
        try:
            json.loads(line)
        except ValueError as error:
            reason = f"line {number}: is no JSON"
            raise FormatError(path, reason, "mend or remove the line") from error


def _read_shard(path: Path, gamma: int | None) -> tuple[AcceptanceRecords, tuple[str, ...]]:
    if gamma is None:
        remedy = "state it with --gamma: .pt shards do not say which block size they were made with"
        raise ConfigurationError("gamma", None, remedy)
    if find_spec("torch") is None:
        remedy = "reading .pt shards needs torch: pip install 'dspark-calib[heads]'"
        raise ConfigurationError("telemetry", path.name, remedy)
    from calib.formats.sglang_shards import read_shards

    shards = read_shards([path], gamma)
    return shards.records, shards.notes


def _read_arrow_file(path: Path, gamma: int | None) -> AcceptanceRecords:
    """An IPC file holds the same messages as a stream, with a table of contents."""
    import pyarrow as pa

    from calib.formats.arrow import records_from_table

    try:
        with pa.OSFile(os.fspath(path), "rb") as source:
            table = pa.ipc.open_file(source).read_all()
        table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        raise _unreadable(path, error) from error
    return records_from_table(table, gamma or _stated(table.schema.metadata, path), source=path)


def _stated_in_parquet(path: Path) -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        metadata = pq.read_schema(path).metadata
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        raise _unreadable(path, error) from error
    return _stated(metadata, path)


def _stated_in_stream(data: bytes, path: Path) -> int:
    import pyarrow as pa

    try:
        metadata = pa.ipc.open_stream(pa.py_buffer(data)).schema.metadata
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        raise _unreadable(path, error) from error
    return _stated(metadata, path)


def _stated(metadata: Any, path: Path) -> int:
    stated = (metadata or {}).get(GAMMA_KEY)
    if stated is None:
        raise FormatError(path, "foreign: no telemetry metadata", _REMEDY)
    if not stated.isdigit():
        raise FormatError(path, f"gamma {stated.decode(errors='replace'):.20}", _REMEDY)
    return int(stated)


def _unreadable(path: Path, error: BaseException) -> FormatError:
    first_line = str(error).strip().partition("\n")[0] or type(error).__name__
    return FormatError(path, f"not readable: {first_line}", _REMEDY)
