"""DeepSpec's ragged lines become censored rows, and go back as they came."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from calib.errors import CalibrationValueError, FormatError
from calib.formats.deepspec_jsonl import (
    deepspec_calibration_bytes,
    deepspec_lines,
    parse_deepspec_calibration,
    read_deepspec,
)

LINES = [
    {"logits": [2.0, 1.5, -0.5, 0.25], "labels": [1, 1, 0, 0]},
    {"logits": [3.0, 2.5], "labels": [1, 1]},  # the second draft was a stop token
    {"logits": [-1.0, 0.5, 0.5, 0.5], "labels": [0, 0, 0, 0]},
]


def written(folder: Path, *lines: object) -> Path:
    path = folder / "confidence_records.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path


def test_lines_become_rows(tmp_path: Path) -> None:
    """What a line does not hold was not observed: ℓ ends there, and nothing counts as rejected."""
    read = read_deepspec([written(tmp_path, *LINES, {"logits": [], "labels": []})])
    assert read.records.gamma == 4
    assert read.records.verified.tolist() == [4, 2, 4]
    assert read.records.accepted.tolist() == [2, 2, 0]
    assert read.records.flags.tolist() == [0, 16, 0]
    assert (read.ragged, read.empty) == (1, 1)
    assert set(read.records.columns()["acceptance_rule"]) == {"rejection"}


def test_rows_go_back_as_they_came(tmp_path: Path) -> None:
    records = read_deepspec([written(tmp_path, *LINES)], 4).records
    assert [json.loads(line) for line in deepspec_lines(records)] == LINES


@pytest.mark.parametrize(
    "line",
    [
        {"logits": [1.0, 2.0], "labels": [0, 1]},  # no prefix labels
        {"logits": [1.0], "labels": [1, 0]},
        {"logits": [1.0], "labels": [0.5]},
        {"logits": ["1"], "labels": [1]},
        {"logits": [1.0] * 5, "labels": [0] * 5},  # longer than gamma
        [1.0],
    ],
)
def test_what_is_no_record_is_refused(line: object, tmp_path: Path) -> None:
    with pytest.raises(FormatError):
        read_deepspec([written(tmp_path, line)], 4)


def test_no_rows_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="no rows"):
        read_deepspec([written(tmp_path)])


def test_the_calibration_file_goes_out_and_comes_in() -> None:
    data = deepspec_calibration_bytes([1.5, 2.0], num_records=7, ece_before=[0.1, 0.2])
    found = json.loads(data)
    assert (found["block_size"], found["num_records"]) == (2, 7)
    assert found["cumulative_ece_before"] == [0.1, 0.2]
    assert "cumulative_ece_after" not in found
    assert parse_deepspec_calibration(data, 2) == (1.5, 2.0)


def test_errors_may_be_nan_there_but_temperatures_may_not() -> None:
    fine = b'{"temperatures": [1.5], "block_size": 1, "cumulative_ece_before": [NaN]}'
    assert parse_deepspec_calibration(fine) == (1.5,)
    for bad in (b'{"temperatures": [NaN]}', b'{"temperatures": [1, 2], "block_size": 3}', b"[]"):
        with pytest.raises(FormatError):
            parse_deepspec_calibration(bad)
    with pytest.raises(CalibrationValueError):
        deepspec_calibration_bytes([1.0], ece_after=[float("nan")])
