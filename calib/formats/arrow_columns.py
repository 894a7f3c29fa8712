"""One column between NumPy and Arrow, both ways, nulls included.

In memory an unknown cell is NaN, −1, 255 or None, whatever its column says; in Arrow it is null.
Values are converted here, not judged: :mod:`calib.row_validation` does that.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from calib.coded_texts import CodedTexts
from calib.errors import FormatError, RecordError
from calib.record_schema import Column, ColumnKind

COMPACT_COLUMNS = ("confidence_logits", "soft_labels")
_LARGEST_FLOAT16 = 65504.0
_TEXT_TYPE = pa.dictionary(pa.int32(), pa.string())
_WIDE_DTYPES: dict[ColumnKind, Any] = {
    ColumnKind.FLOAT: np.float64,
    ColumnKind.INTEGER: np.int64,
    ColumnKind.BOOLEAN: np.bool_,
}


def arrow_type(column: Column, gamma: int, *, compact: bool) -> pa.DataType:
    """The column's Arrow type; float16 for the compact columns where asked for."""
    if column.kind is ColumnKind.TEXT:
        return _TEXT_TYPE
    value_type = pa.from_numpy_dtype(column.dtype)
    if compact and column.name in COMPACT_COLUMNS:
        value_type = pa.float16()
    return pa.list_(value_type, gamma) if column.per_position else value_type


def array_from_values(
    column: Column,
    values: NDArray[Any] | CodedTexts,  # [N] or [N, gamma], as records hold them
    target: pa.DataType,
) -> pa.Array:
    """The values as an Arrow array of the type that :func:`arrow_type` gave.

    Raises:
        RecordError: a number too large for float16.
    """
    if isinstance(values, CodedTexts):
        return _dictionary_array(values)
    if pa.types.is_fixed_size_list(target):
        return _position_array(column, values, target)
    return _row_array(column, values, target)


def _position_array(column: Column, values: NDArray[Any], list_type: pa.DataType) -> pa.Array:
    flat = values.ravel()
    if list_type.value_type == pa.float16():
        known = flat[~np.isnan(flat)]
        if known.size and float(np.abs(known).max()) > _LARGEST_FLOAT16:
            value = float(known[np.argmax(np.abs(known))])
            raise RecordError(column.name, value, "float16 cannot hold this: write compact=False")
        flat = flat.astype(np.float16)
    unknown = np.isnan(flat) if column.nullable else None
    return pa.FixedSizeListArray.from_arrays(pa.array(flat, mask=unknown), type=list_type)


def _row_array(column: Column, values: NDArray[Any], target: pa.DataType) -> pa.Array:
    if column.kind is ColumnKind.TEXT:
        return _dictionary_array(CodedTexts.of(values.tolist()))
    # Where null reads as the default there is no unknown to write; NaN differs from itself.
    if not column.nullable or column.null_value == column.absent_value:
        return pa.array(values, type=target)
    unknown = np.isnan(values) if column.kind is ColumnKind.FLOAT else values == column.null_value
    return pa.array(values, type=target, mask=unknown)


def _dictionary_array(values: CodedTexts) -> pa.Array:
    needed = values.compact()
    # Not -1 below a null: the bytes are those that pyarrow itself would write.
    indices = pa.array(np.maximum(needed.codes, 0), mask=needed.codes < 0)
    words = pa.array(needed.words[:-1].tolist(), type=pa.string())
    return pa.DictionaryArray.from_arrays(indices, words)


def values_from_array(
    column: Column, chunked: pa.ChunkedArray, gamma: int, *, source: object
) -> object:
    """The column's cells for validation: a NumPy array, texts as :class:`CodedTexts`, or a list
    where that names bad rows.

    Raises:
        FormatError: a type that cannot hold this column, or lists of another length than γ.
    """
    array = chunked.combine_chunks()
    if pa.types.is_null(array.type):  # how a column without one known cell often arrives
        return array.to_pylist()
    if column.kind is ColumnKind.TEXT:
        return _texts(column, array, source)
    if column.per_position:
        return _position_values(column, array, gamma, source)
    if not _fits(column, array.type):
        raise _type_error(column, array.type, source)
    return _numbers(column, array)


def _position_values(column: Column, array: pa.Array, gamma: int, source: object) -> object:
    fixed = pa.types.is_fixed_size_list(array.type) and array.type.list_size == gamma
    if not fixed or not _fits(column, array.type.value_type):
        raise _type_error(column, array.type, source, f"fixed_size_list<float>[{gamma}]")
    # Not flatten(), which drops null rows; and values ignores the array's own offset.
    flat = array.values.slice(array.offset * gamma, len(array) * gamma)
    if not column.nullable and (array.null_count or flat.null_count):
        cells: list[Any] = array.to_pylist()  # slow, and names the row that misses a value
        return cells
    numbers = np.reshape(np.asarray(_numbers(column, flat)), (len(array), gamma))
    if array.null_count:
        numbers = np.where(_unknown(array)[:, None], np.nan, numbers)
    return numbers


def _fits(column: Column, arrow_type: pa.DataType) -> bool:
    """Whether validation may judge such values one by one; widths are its business."""
    if column.kind is ColumnKind.BOOLEAN:
        return bool(pa.types.is_boolean(arrow_type))
    whole = bool(pa.types.is_integer(arrow_type))
    return whole or (column.kind is ColumnKind.FLOAT and bool(pa.types.is_floating(arrow_type)))


def _type_error(
    column: Column, found: pa.DataType, source: object, expected: str = ""
) -> FormatError:
    remedy = f"write {expected or column.dtype.name}, as arrow_schema() says"
    return FormatError(source, f"column {column.name!r} has type {found}", remedy)


def _numbers(column: Column, array: pa.Array) -> object:
    """Cells as a NumPy array, null as the column's unknown value."""
    if array.null_count == 0 or pa.types.is_floating(array.type):
        numbers: NDArray[Any] = array.to_numpy(zero_copy_only=False)  # null floats become NaN
        return numbers
    # uint64 cannot hold the unknown value -1, and widening it could make one of a large number.
    if not column.nullable or pa.types.is_uint64(array.type):
        cells: list[Any] = array.to_pylist()
        return cells
    filled = _without_nulls(array).astype(_WIDE_DTYPES[column.kind])
    filled[_unknown(array)] = column.null_value
    return filled


# pyarrow's own functions for nulls would load its library of computations, 9 MiB.
def _unknown(array: pa.Array) -> NDArray[np.bool_]:
    """Mask [N] of the null cells of an array that has some."""
    bits = np.frombuffer(array.buffers()[0], dtype=np.uint8)
    known = np.unpackbits(bits, count=array.offset + len(array), bitorder="little")
    unknown: NDArray[np.bool_] = known[array.offset :] == 0
    return unknown


def _without_nulls(array: pa.Array) -> NDArray[Any]:
    """Whole numbers or booleans [N] of an array, with anything at all in its null cells."""
    _, data = array.buffers()
    filled = pa.Array.from_buffers(array.type, len(array), [None, data], offset=array.offset)
    values: NDArray[Any] = filled.to_numpy(zero_copy_only=False)
    return values


def _texts(column: Column, array: pa.Array, source: object) -> CodedTexts:
    plain = pa.types.is_string(array.type) or pa.types.is_large_string(array.type)
    encoded = array.dictionary_encode() if plain else array
    if not pa.types.is_dictionary(encoded.type) or not (
        pa.types.is_string(encoded.type.value_type)
        or pa.types.is_large_string(encoded.type.value_type)
    ):
        raise _type_error(column, array.type, source, "a string or a dictionary of strings")
    indices = encoded.indices
    if indices.null_count:
        places = np.where(_unknown(indices), -1, _without_nulls(indices).astype(np.int64))
    else:
        places = indices.to_numpy(zero_copy_only=False)
    return CodedTexts.from_dictionary(encoded.dictionary.to_pylist(), places)
