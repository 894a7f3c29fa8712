from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calib.errors import CalibrationValueError, FormatError
from calib.formats.sglang_sts import StsFile, parse_sts, read_sts, sts_bytes, write_sts

NAN, INF = float("nan"), float("inf")


class EngineSchema(msgspec.Struct, frozen=True):
    """The fields that SGLang 0.5 decodes an STS file into, written down independently."""

    temperatures: list[float]
    dataset: str = ""
    num_samples: int = 0
    ece_before: list[float] = []
    ece_after: list[float] = []


def engine_accepts(data: bytes) -> EngineSchema | None:
    """What the engine loads from these bytes, or None where it refuses to start."""
    try:
        loaded = msgspec.json.decode(data, type=EngineSchema)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    positive = bool(loaded.temperatures) and min(loaded.temperatures) > 0
    return loaded if positive else None


def test_the_engine_loads_what_is_written(tmp_path: Path) -> None:
    path = tmp_path / "sts.json"
    write_sts(path, [1.5, 0.8], "γ-set", 1000, [0.06, 0.08], [0.01, 0.02], {"digest": "ab"})
    loaded = engine_accepts(path.read_bytes())
    assert loaded == EngineSchema([1.5, 0.8], "γ-set", 1000, [0.06, 0.08], [0.01, 0.02])
    assert os.listdir(tmp_path) == ["sts.json"]
    assert json.loads(path.read_text(encoding="utf-8"))["digest"] == "ab"


def test_identity_is_the_least_file() -> None:
    data = sts_bytes([1.0] * 7)
    assert data == (
        b'{"temperatures": [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0], "dataset": "", "num_samples": 0}'
    )
    loaded = engine_accepts(data)
    assert loaded is not None
    assert loaded.temperatures == [1.0] * 7


def test_an_ece_list_with_a_null_is_left_out() -> None:
    data = sts_bytes([1.0, 1.2], ece_before=[0.1, None], ece_after=[0.1, 0.2])
    document = json.loads(data)
    assert "ece_before" not in document
    assert document["ece_after"] == [0.1, 0.2]
    assert engine_accepts(data) is not None


@pytest.mark.parametrize(
    "temperatures",
    [[], [NAN], [INF], [1.0, 0.0], [-1.0], [True], ["1.5"], [None], [10**400], "1.0"],
)
def test_temperatures_that_the_engine_could_not_load_are_refused(
    tmp_path: Path, temperatures: Any
) -> None:
    with pytest.raises(CalibrationValueError, match=r"^temperatures: "):
        write_sts(tmp_path / "sts.json", temperatures)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"ece_before": [NAN]}, "ece_before"),
        ({"ece_after": [0.1, 0.2]}, "ece_after"),
        ({"num_samples": -1}, "num_samples"),
        ({"num_samples": 1.5}, "num_samples"),
        ({"num_samples": True}, "num_samples"),
        ({"dataset": 3}, "dataset"),
        ({"dataset": "\ud800"}, "extra"),
        ({"extra": {"temperatures": [2.0]}}, "extra"),
        ({"extra": {1: 2}}, "extra"),
        ({"extra": {"loss": NAN}}, "extra"),
        ({"extra": {"path": Path("x")}}, "extra"),
    ],
)
def test_other_values_that_would_break_the_file_are_refused(
    options: dict[str, Any], field: str
) -> None:
    with pytest.raises(CalibrationValueError, match=f"^{field}: "):
        sts_bytes([1.0], **options)


def test_a_refused_write_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "sts.json"
    write_sts(path, [1.1])
    with pytest.raises(CalibrationValueError):
        write_sts(path, [NAN])
    assert read_sts(path).temperatures == (1.1,)


def test_numpy_numbers_are_numbers() -> None:
    assert parse_sts(sts_bytes(list(np.array([1.5, 2.0], dtype=np.float32)))).temperatures == (
        1.5,
        2.0,
    )
    assert parse_sts(sts_bytes(list(np.array([1, 2])))).temperatures == (1.0, 2.0)
    with pytest.raises(CalibrationValueError):
        sts_bytes([np.True_])  # type: ignore[list-item]


def test_read_ignores_unknown_keys_and_takes_whole_numbers(tmp_path: Path) -> None:
    path = tmp_path / "sts.json"
    path.write_text('{"temperatures": [1, 2.5], "sha": [1, null], "num_samples": 3}')
    assert read_sts(path, gamma=2) == StsFile((1.0, 2.5), num_samples=3)


def test_read_checks_gamma(tmp_path: Path) -> None:
    path = tmp_path / "sts.json"
    write_sts(path, [1.0] * 8)
    assert len(read_sts(path).temperatures) == 8
    with pytest.raises(FormatError, match="8 temperatures, but gamma is 7"):
        read_sts(path, gamma=7)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"{}",
        b'{"temperatures": 1.0}',
        b'{"temperatures": []}',
        b'{"temperatures": [0]}',
        b'{"temperatures": [1, -2]}',
        b'{"temperatures": [NaN]}',
        b'{"temperatures": [Infinity]}',
        b'{"temperatures": [1e400]}',
        b'{"temperatures": [true]}',
        b'{"temperatures": ["1.5"]}',
        b'{"temperatures": [null]}',
        b'{"temperatures": [1], "ece_before": [null]}',
        b'{"temperatures": [1], "ece_after": null}',
        b'{"temperatures": [1], "ece_after": [NaN]}',
        b'{"temperatures": [1], "num_samples": 1.5}',
        b'{"temperatures": [1], "num_samples": true}',
        b'{"temperatures": [1], "dataset": 5}',
        b'{"temperatures": [1], "dataset": "\xff"}',
        b'{"temperatures": [1], "other": NaN}',
        b'\xef\xbb\xbf{"temperatures": [1]}',
        b'{"temperatures": [1]} x',
        b"[" * 100_000,
        b'{"temperatures": [' + b"1" * 400 + b"]}",
        b'{"temperatures": [' + b"1" * 5000 + b"]}",
    ],
)
def test_what_the_engine_refuses_is_refused_when_read(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "sts.json"
    path.write_bytes(data)
    with pytest.raises(FormatError) as caught:
        read_sts(path)
    assert str(path) in str(caught.value)
    assert engine_accepts(data) is None


def test_a_missing_file_is_no_format_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_sts(tmp_path / "missing.json")


_json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=5,
)


@pytest.mark.slow
@pytest.mark.property
@given(
    st.fixed_dictionaries(
        {},
        optional={
            "temperatures": st.lists(st.floats(0.05, 20), max_size=4) | _json_values,
            "dataset": st.text(max_size=5) | _json_values,
            "num_samples": st.integers(0, 10) | _json_values,
            "ece_before": st.lists(st.floats(0, 1), max_size=3) | _json_values,
            "ece_after": _json_values,
            "other": _json_values,
        },
    )
)
def test_never_reads_what_the_engine_would_refuse(document: dict[str, Any]) -> None:
    try:
        data = json.dumps(document).encode("utf-8")
        read = parse_sts(data)
    except FormatError:
        return
    loaded = engine_accepts(data)
    assert loaded is not None
    assert list(read.temperatures) == loaded.temperatures
    assert (list(read.ece_before), list(read.ece_after)) == (loaded.ece_before, loaded.ece_after)
    assert (read.dataset, read.num_samples) == (loaded.dataset, loaded.num_samples)


@pytest.mark.property
@given(
    temperatures=st.lists(st.floats(0.05, 20), min_size=1, max_size=8),
    dataset=st.text(st.characters(exclude_categories=["Cs"]), max_size=10),
    num_samples=st.integers(0, 2**40),
)
def test_round_trip_is_exact(temperatures: list[float], dataset: str, num_samples: int) -> None:
    errors = [value / 100 for value in temperatures]
    data = sts_bytes(temperatures, dataset, num_samples, errors, errors)
    expected = StsFile(tuple(temperatures), dataset, num_samples, tuple(errors), tuple(errors))
    assert parse_sts(data, len(temperatures)) == expected
    loaded = engine_accepts(data)
    assert loaded is not None
    assert loaded.temperatures == temperatures
