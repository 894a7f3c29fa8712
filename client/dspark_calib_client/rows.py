"""Telemetry rows as callers give them, and as columns that a batch can carry.

The caller's thread only copies (:func:`held_columns`); cells are looked at in the uploader's
thread (:func:`assemble`). What cannot be written at all, such as text for a number, is dropped
there and counted. What is merely wrong, such as more accepted than verified or a NaN logit, is
sent: the service rejects the row by name, and its reject counter is monitored.
"""

from __future__ import annotations

import math
import numbers
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from dspark_calib_client.coded_text import CodedText, joined_texts

__all__ = [
    "CELL_BYTES",
    "REQUIRED_COLUMNS",
    "ROW_BYTES",
    "ROW_COLUMNS",
    "Batch",
    "CellKind",
    "RowColumn",
    "Rows",
    "assemble",
    "held_cell",
    "held_columns",
    "size_of",
]

_LARGEST_INTEGER = 2**63 - 1
CELL_BYTES = 40  # a Python number with its place in a list, roughly
ROW_BYTES = 300  # a row's objects besides its numbers, roughly


class CellKind(Enum):
    """What one cell holds."""

    FLOAT = "a number"
    INTEGER = "a whole number"
    BOOLEAN = "true or false"
    TEXT = "text"


@dataclass(frozen=True)
class RowColumn:
    """One column of the service's row contract.

    Attributes:
        kind: what a cell holds.
        per_position: True where a cell is a list of numbers, one a slot.
    """

    kind: CellKind
    per_position: bool = False


REQUIRED_COLUMNS = ("confidence_logits", "verified", "accepted")

ROW_COLUMNS: Mapping[str, RowColumn] = {
    "confidence_logits": RowColumn(CellKind.FLOAT, per_position=True),
    "verified": RowColumn(CellKind.INTEGER),
    "accepted": RowColumn(CellKind.INTEGER),
    "revision": RowColumn(CellKind.INTEGER),
    "explored": RowColumn(CellKind.BOOLEAN),
    "propensity": RowColumn(CellKind.FLOAT),
    "anticipating": RowColumn(CellKind.BOOLEAN),
    "flags": RowColumn(CellKind.INTEGER),
    "soft_labels": RowColumn(CellKind.FLOAT, per_position=True),
    "token_acceptance": RowColumn(CellKind.FLOAT, per_position=True),
    "sampling_temperature": RowColumn(CellKind.FLOAT),
    "context_length": RowColumn(CellKind.INTEGER),
    "domain": RowColumn(CellKind.TEXT),
    "adapter": RowColumn(CellKind.TEXT),
    "acceptance_rule": RowColumn(CellKind.TEXT),
    "draft_mode": RowColumn(CellKind.TEXT),
    "scheduled": RowColumn(CellKind.INTEGER),
    "engine": RowColumn(CellKind.TEXT),
    "rank": RowColumn(CellKind.INTEGER),
    "step": RowColumn(CellKind.INTEGER),
    "request": RowColumn(CellKind.TEXT),
    "step_requests": RowColumn(CellKind.INTEGER),
    "timestamp": RowColumn(CellKind.FLOAT),
    "tenant": RowColumn(CellKind.TEXT),
    "prompt": RowColumn(CellKind.TEXT),
    "applied_form": RowColumn(CellKind.TEXT),
}
"""Columns of the row contract; ``calib.record_schema`` holds their ranges and meanings."""


@dataclass(frozen=True)
class Rows:
    """Rows that wait to be sent.

    Attributes:
        count: number of rows.
        columns: cells by column, each of ``count`` entries; the queue's own copies.
        constants: cells that are the same in every row; a column of the same name wins.
    """

    count: int
    columns: Mapping[str, Any]
    constants: Mapping[str, Any]


@dataclass(frozen=True)
class Batch:
    """Rows in the form that bodies are written from.

    Attributes:
        count: number of rows.
        columns: a list, NumPy array or coded text of ``count`` cells by column, None or NaN where
            unknown.
        malformed: rows that were left out because they cannot be written.
    """

    count: int
    columns: Mapping[str, Any]
    malformed: int


def held_columns(columns: Mapping[str, Any], slots: int) -> tuple[int, dict[str, Any]]:
    """Copies of a caller's columns, and their number of rows; cells are not looked at.

    Args:
        columns: lists, tuples, NumPy arrays, coded texts or CPU tensors by column name.
        slots: width of the per-position columns: gamma, or one more with an anchor.

    Raises:
        ValueError: a missing or unknown column, or lengths or widths that do not fit.
        TypeError: a tensor on a device, which only a wait could copy.
    """
    for name in REQUIRED_COLUMNS:
        if columns.get(name) is None:
            raise ValueError(f"column {name!r} is missing")
    count = len(columns["verified"])
    held: dict[str, Any] = {}
    for name, values in columns.items():
        column = ROW_COLUMNS.get(name)
        if column is None:
            raise ValueError(f"unknown column {name!r}")
        if values is None:
            continue
        if isinstance(values, CodedText) and column.kind is not CellKind.TEXT:
            raise ValueError(f"column {name!r} holds no text")
        held[name] = _copy(values, column)
        if len(held[name]) != count:
            raise ValueError(f"column {name!r} has {len(held[name])} rows, verified {count}")
        shape = getattr(held[name], "shape", None)
        if shape is not None and shape[1:] != ((slots,) if column.per_position else ()):
            raise ValueError(f"column {name!r} has shape {shape}")
    return count, held


def size_of(count: int, columns: Mapping[str, Any], slots: int) -> int:
    """Memory that held columns take, in bytes, estimated."""
    size = ROW_BYTES
    for name, values in columns.items():
        width = slots if ROW_COLUMNS[name].per_position else 1
        size += getattr(values, "nbytes", CELL_BYTES * count * width)
    return size


def _copy(values: Any, column: RowColumn) -> Any:
    """Values in memory of their own: an engine's buffers are overwritten by its next step."""
    if isinstance(values, CodedText):
        return CodedText(values.codes.copy(), tuple(values.texts))
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(values, numpy.ndarray):
        return values.copy()
    if hasattr(values, "is_cuda"):
        return _from_tensor(values)
    if column.per_position:
        # What has no length is no row of numbers; it is dropped alone, when cells are looked at.
        return [held_cell(row) if hasattr(row, "__len__") else row for row in values]
    return list(values)


def held_cell(values: Any) -> tuple[Any, ...]:
    """The numbers of one row in memory of their own.

    Raises:
        TypeError: no numbers, or a tensor on a device.
    """
    if hasattr(values, "is_cuda"):
        values = _from_tensor(values)
    tolist = getattr(values, "tolist", None)
    return tuple(values if tolist is None else tolist())


def _from_tensor(tensor: Any) -> Any:
    if tensor.device.type != "cpu":
        raise TypeError(f"a tensor on {tensor.device}; copy it to the host where it may wait")
    return tensor.detach().tolist()


def assemble(entries: Sequence[Rows], slots: int, engine: str) -> Batch:
    """All entries as one batch, without the rows that cannot be written.

    Args:
        entries: in the order they came.
        slots: width of the per-position columns: gamma, or one more with an anchor.
        engine: for rows that do not name theirs.
    """
    names = {name for entry in entries for name in (*entry.columns, *entry.constants)} | {"engine"}
    ordered = [name for name in ROW_COLUMNS if name in names]
    pieces = [_cleaned(entry, ordered, slots, engine) for entry in entries]
    columns = {
        name: _joined([piece[index] for _, piece in pieces]) for index, name in enumerate(ordered)
    }
    sent = sum(entry.count for entry in entries)
    count = sum(rows for rows, _ in pieces)
    return Batch(count, columns, sent - count)


def _cleaned(entry: Rows, names: Sequence[str], slots: int, engine: str) -> tuple[int, list[Any]]:
    """The writable rows of one entry: their number and one piece per name."""
    bad: set[int] = set()
    pieces: list[Any] = []
    for name in names:
        column = ROW_COLUMNS[name]
        values = entry.columns.get(name)
        if values is None:
            constant = entry.constants.get(name, engine if name == "engine" else None)
            pieces.append([constant] * entry.count)
        elif _is_ready_array(values, column):
            pieces.append(values)
        elif isinstance(values, CodedText):
            pieces.append(_clean_texts(values, column, slots, bad))
        else:
            cells = values.tolist() if hasattr(values, "tolist") else values
            pieces.append(_clean_cells(cells, column, slots, bad))
    if not bad:
        return entry.count, pieces
    kept = [row for row in range(entry.count) if row not in bad]
    return len(kept), [_taken(piece, kept) for piece in pieces]


def _taken(piece: Any, rows: Sequence[int]) -> Any:
    return [piece[row] for row in rows] if isinstance(piece, list) else piece[list(rows)]


def _is_ready_array(values: Any, column: RowColumn) -> bool:
    """A NumPy array whose dtype alone says that every cell can be written."""
    kinds = {CellKind.FLOAT: "f", CellKind.INTEGER: "i", CellKind.BOOLEAN: "b"}
    dtype = getattr(values, "dtype", None)
    return dtype is not None and dtype.kind == kinds.get(column.kind) and dtype.itemsize <= 8


def _clean_texts(values: CodedText, column: RowColumn, slots: int, bad: set[int]) -> CodedText:
    """The same rows, each word looked at once; rows of words that cannot be written are bad."""
    unfit: set[int] = set()
    words = _clean_cells(values.texts, column, slots, unfit)
    if unfit:
        bad.update(row for row, code in enumerate(values.codes.tolist()) if code in unfit)
    return CodedText(values.codes, words)


def _clean_cells(cells: Iterable[Any], column: RowColumn, slots: int, bad: set[int]) -> list[Any]:
    """Plain Python cells; rows of cells that cannot be written are added to ``bad``."""
    clean: list[Any] = []
    for row, cell in enumerate(cells):
        try:
            clean.append(_clean_cell(cell, column, slots))
        except (TypeError, ValueError, OverflowError):
            bad.add(row)
            clean.append(None)
    return clean


def _clean_cell(cell: Any, column: RowColumn, slots: int) -> Any:
    if cell is None:
        return None
    if column.per_position:
        if isinstance(cell, (str, bytes)) or len(cell) != slots:
            raise ValueError("wrong width")
        return [None if number is None else _float(number) for number in cell]
    if column.kind is CellKind.FLOAT:
        return _float(cell)
    if column.kind is CellKind.INTEGER:
        return _integer(cell)
    if column.kind is CellKind.BOOLEAN:
        if type(cell).__name__ not in ("bool", "bool_"):
            raise TypeError("no boolean")
        return bool(cell)
    if not isinstance(cell, str):
        raise TypeError("no text")
    cell.encode("utf-8")  # a lone surrogate cannot be sent
    return cell


def _float(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError("no number")
    number = float(value)
    return number if math.isfinite(number) else None


def _integer(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError("no whole number")
    number = int(value)
    if abs(number) > _LARGEST_INTEGER:
        raise ValueError("too large")
    return number


def _joined(pieces: Sequence[Any]) -> Any:
    """One column of all pieces: an array or coded text where all are, else a list."""
    if len(pieces) == 1:
        return pieces[0]
    if all(isinstance(piece, CodedText) for piece in pieces):
        return joined_texts(pieces)
    if not any(isinstance(piece, (list, CodedText)) for piece in pieces):
        return sys.modules["numpy"].concatenate(pieces)
    joined: list[Any] = []
    for piece in pieces:
        joined += piece if isinstance(piece, list) else piece.tolist()
    return joined
