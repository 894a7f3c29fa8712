"""Which rows of a batch keep the row contract, and what is wrong with the others.

``check_columns`` never raises for what a batch holds: it returns every fault it found, and the
caller decides whether one fault refuses the batch (:meth:`AcceptanceRecords.from_columns`) or only
its row (:func:`calib.records.validate_rows`). Values are compared in the dtype they came in,
before they are narrowed, so that −1 or 300 cannot wrap into a plausible length.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calib.cell_parsing import CellFault, parse_column, refused_texts
from calib.coded_texts import CodedTexts
from calib.errors import RecordError
from calib.record_schema import (
    COLUMN_BY_NAME,
    COLUMNS,
    UNKNOWN_LENGTH,
    Column,
    ColumnKind,
    Presence,
)

Arrays = dict[str, NDArray[Any]]
Cells = dict[str, NDArray[Any] | CodedTexts]


@dataclass(frozen=True, slots=True)
class RejectedRow:
    """A row that was left out of a batch.

    Attributes:
        row: its place in the batch, from 0; None where a fault concerns a whole column, and
            thereby every row.
        field: the first column, in schema order, that is wrong.
        reason: the offending value and the remedy, in words.
    """

    row: int | None
    field: str
    reason: str


@dataclass(frozen=True, slots=True)
class CheckedColumns:
    """A batch after checking.

    Attributes:
        rows: N, the number of rows sent; 0 where a whole column is wrong.
        cells: every present column in its final dtype, texts as codes where they came so; cells
            of faulty rows hold fillers.
        faults: column faults first, then cell faults in schema order.
    """

    rows: int
    cells: Cells
    faults: list[CellFault]

    @property
    def whole_batch(self) -> list[CellFault]:
        """Faults that concern a column as a whole."""
        return [fault for fault in self.faults if fault.row is None]

    @property
    def first_by_row(self) -> dict[int, CellFault]:
        """The first fault of each faulty row, by ascending row."""
        first: dict[int, CellFault] = {}
        for fault in self.faults:
            if fault.row is not None:
                first.setdefault(fault.row, fault)
        return dict(sorted(first.items()))


def check_columns(gamma: int, columns: Mapping[str, object]) -> CheckedColumns:
    """Check a whole batch against the row contract.

    Args:
        gamma: block size, already checked.
        columns: array-likes by column name; None stands for an absent optional column.

    Raises:
        RecordError: ``columns`` is no mapping.
    """
    if not isinstance(columns, Mapping):
        remedy = "give a mapping from column names to arrays"
        raise RecordError("columns", type(columns).__name__, remedy)
    structural = _unknown_columns(columns)
    parsed: Cells = {}
    cell_faults: list[CellFault] = []
    for column in COLUMNS:
        sent = columns.get(column.name)
        if sent is None:
            if column.presence is Presence.REQUIRED:
                structural.append(CellFault(None, column.name, None, "send this column"))
            continue
        result = parse_column(column, sent, gamma)
        cell_faults += result.faults
        if result.values is not None:
            parsed[column.name] = result.values
    structural += _uneven_lengths(parsed)
    structural += [fault for fault in cell_faults if fault.row is None]
    if structural:
        return CheckedColumns(0, {}, structural)
    rows = len(parsed["verified"])
    cells, faults = _check_values(parsed, gamma, rows)
    return CheckedColumns(rows, cells, cell_faults + faults)


def _unknown_columns(columns: Mapping[str, object]) -> list[CellFault]:
    remedy = "leave this column out; columns are " + ", ".join(COLUMN_BY_NAME)
    return [
        CellFault(None, str(name), "an unknown column", remedy)
        for name in columns
        if name not in COLUMN_BY_NAME
    ]


def _uneven_lengths(parsed: Cells) -> list[CellFault]:
    reference = next((name for name in COLUMN_BY_NAME if name in parsed), None)
    if reference is None:
        return []
    rows = len(parsed[reference])
    return [
        CellFault(None, name, f"{len(values)} rows", f"give {rows} rows, as in {reference}")
        for name, values in parsed.items()
        if len(values) != rows
    ]


def _check_values(parsed: Cells, gamma: int, rows: int) -> tuple[Cells, list[CellFault]]:
    cells: Cells = {}
    faults: list[CellFault] = []
    for column in COLUMNS:
        values = parsed.get(column.name)
        if isinstance(values, CodedTexts):
            faults += _text_faults(column, values, gamma)
            cells[column.name] = values
        elif values is not None:
            faults += _range_faults(column, values, gamma)
            cells[column.name] = _owned(column, values)
        elif column.presence is Presence.DEFAULTED:
            cells[column.name] = np.full(rows, column.absent_value, dtype=column.dtype)
    # A value out of range has wrapped by now: comparing it with its neighbour means nothing.
    bad = {fault.row for fault in faults}
    faults += [fault for fault in _length_faults(cells) if fault.row not in bad]
    return cells, faults


def _owned(column: Column, values: NDArray[Any]) -> NDArray[Any]:
    """The values in the column's dtype, in memory that no caller can still write to."""
    with np.errstate(over="ignore", invalid="ignore"):  # such cells are faults already
        array = values.astype(column.dtype, order="C", copy=False)
    return array.copy() if array is values and array.flags.writeable else array


def _text_faults(column: Column, values: CodedTexts, gamma: int) -> list[CellFault]:
    refused = refused_texts(values.distinct(), column.choices)
    if not refused:
        return []
    return _faults_at(column, values.texts(), values.isin(refused), column.remedy(gamma))


def _range_faults(column: Column, values: NDArray[Any], gamma: int) -> list[CellFault]:
    if column.kind is ColumnKind.BOOLEAN:
        return []
    if column.kind is ColumnKind.TEXT:
        refused = refused_texts(values.tolist(), column.choices)
        if not refused:
            return []
        bad = np.fromiter((text in refused for text in values), dtype=np.bool_, count=len(values))
    else:
        bad = _out_of_range(column, values, gamma)
    if not bad.any():
        return []
    return _faults_at(column, values, bad, column.remedy(gamma))


def _out_of_range(column: Column, values: NDArray[Any], gamma: int) -> NDArray[np.bool_]:
    checked = values
    within = np.full(values.shape, True)
    if column.kind is ColumnKind.FLOAT:
        with np.errstate(over="ignore"):  # what overflows float32 is not finite there
            checked = values.astype(column.dtype, copy=False)
        within = np.isfinite(checked)
    high = column.upper(gamma)
    if column.low is not None:
        within &= checked >= column.low
    if high is not None:
        within &= checked <= high
    if column.nullable:
        # NaN is the only unknown that differs from itself.
        within |= (checked == column.null_value) | (checked != checked)
    out_of_range: NDArray[np.bool_] = ~within
    return out_of_range


def _faults_at(
    column: Column, values: NDArray[Any], bad: NDArray[np.bool_], remedy: str
) -> list[CellFault]:
    """One fault per bad row, with the row's first bad cell."""
    if not column.per_position:
        return [
            CellFault(int(row), column.name, _plain(values[row]), remedy)
            for row in np.flatnonzero(bad)
        ]
    faults = []
    for row in np.flatnonzero(bad.any(axis=1)):
        position = int(np.argmax(bad[row]))
        value = _plain(values[row, position])
        faults.append(CellFault(int(row), column.name, value, f"position {position + 1}: {remedy}"))
    return faults


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _length_faults(cells: Cells) -> list[CellFault]:
    """Rows with more accepted than verified, or more verified than scheduled."""
    verified, accepted = np.asarray(cells["verified"]), np.asarray(cells["accepted"])
    faults = [
        CellFault(
            int(row),
            "accepted",
            int(accepted[row]),
            f"give at most the verified length ({int(verified[row])}), without bonus and anchor",
        )
        for row in np.flatnonzero(accepted > verified)
    ]
    if "scheduled" in cells:
        scheduled = np.asarray(cells["scheduled"])
        short = (scheduled < verified) & (scheduled != UNKNOWN_LENGTH)
        faults += [
            CellFault(
                int(row),
                "scheduled",
                int(scheduled[row]),
                f"give at least the verified length ({int(verified[row])}) or null where unknown",
            )
            for row in np.flatnonzero(short)
        ]
    return faults
