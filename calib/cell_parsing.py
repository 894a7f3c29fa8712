"""From whatever a caller sends for one column to one typed array, and the cells that do not fit.

Two roads lead to the same result. NumPy arrays are checked by dtype and shape. Python lists, as
JSON gives them, are checked by the exact types of their cells, because ``np.asarray`` would
silently turn ``True`` into 1, ``"1.5"`` into text and a ragged batch into an error without a row.
Cells that do not fit hold a harmless filler, and their rows are named as faults.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from types import NoneType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calib.coded_texts import CodedTexts
from calib.record_schema import MAX_TEXT_LENGTH, Column, ColumnKind

_FAST_TYPES: dict[ColumnKind, frozenset[type]] = {
    ColumnKind.FLOAT: frozenset({float, int}),
    ColumnKind.INTEGER: frozenset({int}),
    ColumnKind.BOOLEAN: frozenset({bool}),
    ColumnKind.TEXT: frozenset({str}),
}
_SLOW_TYPES: dict[ColumnKind, tuple[type, ...]] = {
    ColumnKind.FLOAT: (float, int, np.floating, np.integer),
    ColumnKind.INTEGER: (int, np.integer),
    ColumnKind.BOOLEAN: (bool, np.bool_),
    ColumnKind.TEXT: (str,),
}
_DTYPE_KINDS = {ColumnKind.FLOAT: "fiu", ColumnKind.INTEGER: "iu", ColumnKind.BOOLEAN: "b"}
_FILLERS: dict[ColumnKind, Any] = {
    ColumnKind.FLOAT: 0.0,
    ColumnKind.INTEGER: 0,
    ColumnKind.BOOLEAN: False,
    ColumnKind.TEXT: None,
}
_WIDE_DTYPES: dict[ColumnKind, Any] = {
    ColumnKind.FLOAT: np.float64,
    ColumnKind.INTEGER: np.int64,
    ColumnKind.BOOLEAN: np.bool_,
}
_PLAIN_TYPES: dict[ColumnKind, type] = {
    ColumnKind.FLOAT: float,
    ColumnKind.INTEGER: int,
    ColumnKind.BOOLEAN: bool,
    ColumnKind.TEXT: str,
}
_INT64 = np.iinfo(np.int64)
_LONGEST_SHOWN_INTEGER = 256  # bits
_MISSING = object()


@dataclass(frozen=True, slots=True)
class CellFault:
    """One thing wrong with a column.

    Attributes:
        row: row of the batch, from 0; None where the column as a whole is wrong.
        field: column name.
        value: the offending value.
        remedy: what to send instead.
    """

    row: int | None
    field: str
    value: object
    remedy: str


@dataclass(slots=True)
class ParsedColumn:
    """A column as a typed array, not yet checked for range.

    Attributes:
        values: [N] or [N, γ], wide dtype (float64, int64 or wider, bool, object), or texts as
            codes, as they were sent; None where the column as a whole is wrong.
        faults: what did not fit; the cells concerned hold a filler.
    """

    values: NDArray[Any] | CodedTexts | None
    faults: list[CellFault] = field(default_factory=list)


def parse_column(
    column: Column,
    sent: object,  # array-like of [N] or [N, gamma] cells
    gamma: int,
) -> ParsedColumn:
    """The column as an array of numbers, booleans or texts; no range is checked here."""
    if isinstance(sent, list | tuple):
        return _parse_cells(column, sent, gamma)
    if isinstance(sent, CodedTexts) and column.kind is ColumnKind.TEXT:
        return ParsedColumn(sent)
    if isinstance(sent, np.ma.MaskedArray):
        return _whole(column, "a masked array", "fill masked cells: NumPy drops the mask silently")
    try:
        array = np.asarray(sent)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        return _whole(column, type(sent).__name__, f"give an array or a list ({error})")
    if array.ndim == 0:
        return _whole(column, sent, "give one value per row, in an array or a list")
    if array.dtype.kind in "OUT":
        return _parse_cells(column, array.tolist(), gamma)
    return _parse_array(column, array, gamma)


def _whole(column: Column, value: object, remedy: str) -> ParsedColumn:
    return ParsedColumn(None, [CellFault(None, column.name, value, remedy)])


def _parse_array(column: Column, array: NDArray[Any], gamma: int) -> ParsedColumn:
    expected = (array.shape[0], gamma) if column.per_position else (array.shape[0],)
    if array.shape != expected:
        return _whole(column, array.shape, _shape_remedy(column, gamma))
    if array.dtype.kind not in _DTYPE_KINDS.get(column.kind, ""):
        remedy = f"give {column.dtype.name}, each cell {column.kind.value}"
        return _whole(column, f"dtype {array.dtype}", remedy)
    return ParsedColumn(array)


def _shape_remedy(column: Column, gamma: int) -> str:
    if not column.per_position:
        return "give one value per row, shape (rows,)"
    return (
        f"give shape (rows, {gamma}) for gamma {gamma};"
        " if slot 0 is the anchor, call drop_anchor_slot first"
    )


def _parse_cells(column: Column, rows: Sequence[Any], gamma: int) -> ParsedColumn:
    if not column.per_position:
        return _typed(column, rows, width=1)
    shaped, faults = _shape_rows(column, rows, gamma)
    parsed = _typed(column, list(chain.from_iterable(shaped)), width=gamma)
    parsed.faults[:0] = faults
    if isinstance(parsed.values, np.ndarray):
        parsed.values = parsed.values.reshape(len(rows), gamma)
    return parsed


def _shape_rows(
    column: Column, rows: Sequence[Any], gamma: int
) -> tuple[Sequence[Sequence[Any]], list[CellFault]]:
    """Rows of exactly γ cells; a row of another length is named and filled."""
    if all(type(row) is list and len(row) == gamma for row in rows):
        return rows, []
    shaped: list[Sequence[Any]] = []
    faults: list[CellFault] = []
    for index, sent in enumerate(rows):
        row = sent.tolist() if isinstance(sent, np.ndarray) else sent
        if row is None and column.nullable:
            row = [None] * gamma
        if not isinstance(row, list | tuple) or len(row) != gamma:
            faults.append(CellFault(index, column.name, sent, _row_remedy(row, gamma)))
            row = [_FILLERS[column.kind]] * gamma
        shaped.append(row)
    return shaped, faults


def _row_remedy(row: object, gamma: int) -> str:
    count = f", not {len(row)}" if isinstance(row, list | tuple) else ""
    return f"give {gamma} values for gamma {gamma}{count}"


def _typed(column: Column, cells: Sequence[Any], width: int) -> ParsedColumn:
    """Flat cells as one array; cells of another type are converted or filled one by one."""
    allowed = _FAST_TYPES[column.kind] | ({NoneType} if column.nullable else set())
    kinds = set(map(type, cells))
    faults: list[CellFault] = []
    if not kinds <= allowed:
        odd = [index for index, cell in enumerate(cells) if type(cell) not in allowed]
        cells, faults = _mended(column, cells, odd, width)
    try:
        return ParsedColumn(_array(column, cells, NoneType in kinds), faults)
    except OverflowError:  # an integer beyond 64 bits or beyond the largest float
        huge = [i for i, cell in enumerate(cells) if type(cell) is int and abs(cell) > _INT64.max]
        cells, more_faults = _mended(column, cells, huge, width)
        return ParsedColumn(_array(column, cells, NoneType in kinds), faults + more_faults)


def _array(column: Column, cells: Sequence[Any], nulls: bool) -> NDArray[Any]:
    if column.kind is ColumnKind.TEXT:
        array = np.empty(len(cells), dtype=np.object_)
        array[:] = cells
        return array
    if nulls:
        cells = [column.null_value if cell is None else cell for cell in cells]
    return np.array(cells, dtype=_WIDE_DTYPES[column.kind])


def _mended(
    column: Column, cells: Sequence[Any], indices: Iterable[int], width: int
) -> tuple[list[Any], list[CellFault]]:
    """The cells with those at ``indices`` made plain, and a fault for each that cannot be."""
    mended = list(cells)
    faults: list[CellFault] = []
    for index in indices:
        mended[index] = _convert(column, cells[index])
        if mended[index] is _MISSING:
            where = f"position {index % width + 1}: " if column.per_position else ""
            remedy = f"{where}give {column.kind.value}"
            remedy += " or null where unknown" if column.nullable else ""
            faults.append(CellFault(index // width, column.name, _shown(cells[index]), remedy))
            mended[index] = _FILLERS[column.kind]
    return mended, faults


def _shown(cell: Any) -> Any:
    """The cell itself, unless it is a whole number so long that Python refuses to print it."""
    if type(cell) is int and cell.bit_length() > _LONGEST_SHOWN_INTEGER:
        return f"a whole number of {cell.bit_length()} bits"
    return cell


def _convert(column: Column, cell: Any) -> Any:
    """The cell as a plain Python value, or ``_MISSING`` where it does not fit its column."""
    if cell is None:
        return column.null_value if column.nullable else _MISSING
    wrong_boolean = isinstance(cell, bool | np.bool_) and column.kind is not ColumnKind.BOOLEAN
    if wrong_boolean or not isinstance(cell, _SLOW_TYPES[column.kind]):
        return _MISSING
    try:
        value: Any = _PLAIN_TYPES[column.kind](cell)
    except OverflowError:  # a whole number beyond the largest float
        return _MISSING
    too_wide = column.kind is ColumnKind.INTEGER and not _INT64.min <= value <= _INT64.max
    return _MISSING if too_wide else value


def refused_texts(
    texts: Sequence[str | None],
    choices: tuple[str, ...],  # the only texts allowed; empty for any
) -> set[str]:
    """The distinct texts that a column must refuse; None is no text and never refused.

    Control characters would forge log lines, lone surrogates have no UTF-8 form, and empty text
    is neither a value nor null: ``str.isprintable`` and the length catch all of them.
    """
    # Tags repeat in nearly every row, and the hash that a set takes of an id is kept for later.
    present = {text for text in set(texts) if text is not None}
    if choices:
        return present.difference(choices)
    # One look at everything joined is an order of magnitude cheaper than a look at each text.
    lengths = set(map(len, present))
    if not lengths or (
        min(lengths) >= 1 and max(lengths) <= MAX_TEXT_LENGTH and "".join(present).isprintable()
    ):
        return set()
    return {
        text for text in present if not 1 <= len(text) <= MAX_TEXT_LENGTH or not text.isprintable()
    }
