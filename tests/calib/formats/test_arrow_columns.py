from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from calib.coded_texts import CodedTexts
from calib.errors import FormatError, RecordError
from calib.formats.arrow_columns import array_from_values, arrow_type, values_from_array
from calib.record_schema import COLUMN_BY_NAME, COLUMNS, ColumnKind

GAMMA = 2
NAN = float("nan")


def read(name: str, array: pa.Array | pa.ChunkedArray) -> Any:
    chunked = array if isinstance(array, pa.ChunkedArray) else pa.chunked_array([array])
    values = values_from_array(COLUMN_BY_NAME[name], chunked, GAMMA, source="test")
    return values.texts() if isinstance(values, CodedTexts) else values


def write(name: str, values: Any, *, compact: bool = False) -> pa.Array:
    column = COLUMN_BY_NAME[name]
    array = np.array(values, dtype=column.dtype)
    return array_from_values(column, array, arrow_type(column, GAMMA, compact=compact))


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: column.name)
def test_types_are_those_of_the_contract(column: Any) -> None:
    found = arrow_type(column, GAMMA, compact=False)
    if column.kind is ColumnKind.TEXT:
        assert found == pa.dictionary(pa.int32(), pa.string())
    elif column.per_position:
        assert found == pa.list_(pa.float32(), GAMMA)
    else:
        assert found == pa.from_numpy_dtype(column.dtype)


def test_unknown_cells_are_null_never_nan() -> None:
    assert write("soft_labels", [[NAN, 0.5]]).to_pylist() == [[None, 0.5]]
    assert write("sampling_temperature", [NAN, 0.5]).to_pylist() == [None, 0.5]
    assert write("propensity", [NAN, 1.0]).to_pylist() == [None, 1.0]
    assert write("step", [-1, 3]).to_pylist() == [None, 3]
    assert write("revision", [-1, 0]).to_pylist() == [None, 0]
    assert write("scheduled", [255, 2]).to_pylist() == [None, 2]
    assert write("domain", [None, "code"]).to_pylist() == [None, "code"]


def test_false_and_no_flags_are_values_not_null() -> None:
    assert write("explored", [False, True]).to_pylist() == [False, True]
    assert write("flags", [0, 5]).to_pylist() == [0, 5]


def test_null_is_read_as_the_columns_unknown_value() -> None:
    assert np.array_equal(
        read("sampling_temperature", pa.array([None, 0.5], pa.float32())), [NAN, 0.5], True
    )
    assert np.array_equal(
        read("sampling_temperature", pa.array([None, 0.5], pa.float16())), [NAN, 0.5], True
    )
    assert np.array_equal(read("timestamp", pa.array([None, 5], pa.int64())), [NAN, 5], True)
    assert read("scheduled", pa.array([None, 2], pa.uint8())).tolist() == [255, 2]
    assert read("step", pa.array([None, 2], pa.int32())).tolist() == [-1, 2]
    assert read("explored", pa.array([None, True])).tolist() == [False, True]
    assert read("domain", pa.array([None, "code"])).tolist() == [None, "code"]


def test_null_in_a_part_of_a_longer_array() -> None:
    whole = [None, True, None, False, None, True, True, None, None, True]
    for start in (0, 1, 7, 9):
        flags = pa.array(whole).slice(start)
        expected = [bool(cell) for cell in whole[start:]]
        assert read("explored", flags).tolist() == expected
        steps = pa.array([None if cell is None else 7 for cell in whole], pa.int16()).slice(start)
        assert read("step", steps).tolist() == [-1 if c is None else 7 for c in whole[start:]]
        words = pa.array([None if cell is None else str(cell) for cell in whole]).slice(start)
        shown = words.to_pylist()
        assert read("domain", words).tolist() == shown
        assert read("domain", words.dictionary_encode()).tolist() == shown


def test_a_dictionary_may_hold_a_text_twice_and_null_and_what_no_row_has() -> None:
    odd = pa.DictionaryArray.from_arrays(
        pa.array([3, 2, 1, 0, None], pa.uint8()), pa.array(["code", None, "chat", "code", "none"])
    )
    assert read("domain", odd).tolist() == ["code", "chat", None, "code", None]
    values = values_from_array(
        COLUMN_BY_NAME["domain"], pa.chunked_array([odd]), GAMMA, source="test"
    )
    assert isinstance(values, CodedTexts)
    stored = array_from_values(
        COLUMN_BY_NAME["domain"], values, pa.dictionary(pa.int32(), "string")
    )
    assert stored.to_pylist() == odd.to_pylist()
    assert stored.dictionary.to_pylist() == ["code", "chat"]


def test_null_rows_and_null_cells_of_lists() -> None:
    lists = pa.array([[0.25, 0.5], None, [None, 1.0]], pa.list_(pa.float32(), GAMMA))
    expected = [[0.25, 0.5], [NAN, NAN], [NAN, 1.0]]
    assert np.array_equal(read("soft_labels", lists), expected, True)
    assert np.array_equal(read("soft_labels", lists.slice(1)), expected[1:], True)
    assert np.array_equal(read("soft_labels", lists.slice(2)), expected[2:], True)


def test_null_in_a_required_column_stays_visible_to_validation() -> None:
    assert read("verified", pa.array([1, None], pa.uint8())) == [1, None]
    lists = pa.array([[0.0, 1.0], None, [None, 1.0]], pa.list_(pa.float32(), GAMMA))
    assert read("confidence_logits", lists) == [[0.0, 1.0], None, [None, 1.0]]


def test_a_large_unsigned_number_does_not_become_unknown() -> None:
    assert read("step", pa.array([2**64 - 1, None], pa.uint64())) == [2**64 - 1, None]


def test_a_column_of_nulls_has_no_type_to_check() -> None:
    assert read("domain", pa.nulls(2)) == [None, None]
    assert read("soft_labels", pa.nulls(2)) == [None, None]


def test_texts_of_chunks_with_different_dictionaries() -> None:
    chunks = pa.chunked_array(
        [
            pa.array(["code", None]).dictionary_encode(),
            pa.array(["chat", "code"]).dictionary_encode(),
        ]
    )
    assert read("domain", chunks).tolist() == ["code", None, "chat", "code"]
    small = pa.DictionaryArray.from_arrays(
        pa.array([127, None, 0], pa.int8()), pa.array([f"d{i}" for i in range(128)])
    )
    assert read("domain", small).tolist() == ["d127", None, "d0"]
    large = pa.array(["code", "code"], pa.large_string())
    texts = read("domain", large)
    assert texts.tolist() == ["code", "code"]
    assert texts[0] is texts[1]


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("verified", pa.array([1.0])),
        ("verified", pa.array([True])),
        ("verified", pa.array(["1"])),
        ("explored", pa.array([1])),
        ("sampling_temperature", pa.array(["0.5"])),
        ("domain", pa.array([1])),
        ("domain", pa.array([b"code"])),
        ("domain", pa.array([1]).dictionary_encode()),
        ("confidence_logits", pa.array([0.5])),
        ("confidence_logits", pa.array([[0.5, 0.5]])),
        ("confidence_logits", pa.array([[0.5] * 3], pa.list_(pa.float32(), 3))),
        ("confidence_logits", pa.array([["a", "b"]], pa.list_(pa.string(), 2))),
    ],
)
def test_another_type_is_refused(name: str, array: pa.Array) -> None:
    with pytest.raises(FormatError, match=f"test: column '{name}' has type "):
        read(name, array)


def test_compact_rounds_and_refuses_what_float16_cannot_hold() -> None:
    stored = write("confidence_logits", [[1.0001, -2.0]], compact=True)
    assert stored.type == pa.list_(pa.float16(), GAMMA)
    assert read("confidence_logits", stored).tolist() == [[1.0, -2.0]]
    assert write("confidence_logits", [[65504.0, 0.0]], compact=True).to_pylist() == [[65504, 0]]
    with pytest.raises(RecordError, match=r"confidence_logits: got -70000\.0; float16"):
        write("confidence_logits", [[1.0, -70000.0]], compact=True)
    assert write("token_acceptance", [[0.1, 0.2]], compact=True).type.value_type == pa.float32()
