"""One column between NumPy and Arrow, both ways, nulls included.

In memory an unknown cell is NaN, −1, 255 or None, whatever its column says; in Arrow it is null.
Values are converted here, not judged: :mod:`calib.row_validation` does that.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from calib.errors import FormatError, RecordError
from calib.record_schema import Column, ColumnKind

COMPACT_COLUMNS = ("confidence_logits", "soft_labels")
_LARGEST_FLOAT16 = 65504.0
_TEXT_TYPE = pa.dictionary(pa.int32(), pa.string())


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
    values: NDArray[Any],  # [N] or [N, gamma], as records hold them
    target: pa.DataType,
) -> pa.Array:
    """The values as an Arrow array of the type that :func:`arrow_type` gave.

    Raises:
        RecordError: a number too large for float16.
    """
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
        return pa.array(values, type=pa.string()).dictionary_encode()
    # Where null reads as the default there is no unknown to write; NaN differs from itself.
    if not column.nullable or column.null_value == column.absent_value:
        return pa.array(values, type=target)
    unknown = np.isnan(values) if column.kind is ColumnKind.FLOAT else values == column.null_value
    return pa.array(values, type=target, mask=unknown)


def values_from_array(
    column: Column, chunked: pa.ChunkedArray, gamma: int, *, source: object
) -> object:
    """The column's cells for validation: a NumPy array, or a list where that names bad rows.

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
        unknown = array.is_null().to_numpy(zero_copy_only=False)
        numbers = np.where(unknown[:, None], np.nan, numbers)
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
    if column.kind is ColumnKind.FLOAT:
        array = array.cast(pa.float64())
        return _numbers(column, array)
    wide = array if column.kind is ColumnKind.BOOLEAN else array.cast(pa.int64())
    filled: NDArray[Any] = wide.fill_null(column.null_value).to_numpy(zero_copy_only=False)
    return filled


def _texts(column: Column, array: pa.Array, source: object) -> NDArray[np.object_]:
    """Texts as objects; equal texts share one object, which keeps a long column small."""
    plain = pa.types.is_string(array.type) or pa.types.is_large_string(array.type)
    encoded = array.dictionary_encode() if plain else array
    if not pa.types.is_dictionary(encoded.type) or not (
        pa.types.is_string(encoded.type.value_type)
        or pa.types.is_large_string(encoded.type.value_type)
    ):
        raise _type_error(column, array.type, source, "a string or a dictionary of strings")
    words = encoded.dictionary.to_pylist()
    lookup = np.empty(len(words) + 1, dtype=np.object_)
    lookup[:-1] = words
    lookup[-1] = None
    indices = encoded.indices.to_numpy(zero_copy_only=False)
    if encoded.indices.null_count:  # then they are floats, null being NaN
        indices = np.where(np.isnan(indices), len(words), indices).astype(np.int64)
    texts: NDArray[np.object_] = lookup[indices]
    return texts
