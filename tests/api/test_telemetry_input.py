from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from api.telemetry_input import read_telemetry
from calib.errors import ConfigurationError, FormatError
from calib.formats.arrow import ipc_from_records, table_from_records, write_parquet
from tests.support.telemetry import synthetic_records

RECORDS = synthetic_records(40, gamma=3)

ROW = '{"confidence_logits": [1.5, 0.25, -0.5], "verified": 3, "accepted": 1, "prompt": "p-17"}'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The same rows as Parquet, IPC stream and IPC file, under names that say nothing."""
    write_parquet(RECORDS, tmp_path / "a.bin")
    (tmp_path / "b.bin").write_bytes(ipc_from_records(RECORDS))
    table = table_from_records(RECORDS)
    with pa.ipc.new_file(str(tmp_path / "c.bin"), table.schema) as writer:
        writer.write_table(table)
    return tmp_path


@pytest.mark.parametrize("name", ["a.bin", "b.bin", "c.bin"])
@pytest.mark.parametrize("gamma", [None, 3])
def test_format_is_told_by_the_first_bytes(folder: Path, name: str, gamma: int | None) -> None:
    given = read_telemetry([str(folder / name)], gamma)
    assert given.records.equals(RECORDS)
    assert given.source == name
    assert given.notes == ()


@pytest.mark.parametrize("name", ["a.bin", "b.bin", "c.bin"])
def test_another_gamma_is_refused(folder: Path, name: str) -> None:
    with pytest.raises(FormatError, match="gamma 3, asked for 4"):
        read_telemetry([str(folder / name)], 4)


def test_many_files_are_joined_in_order(folder: Path) -> None:
    given = read_telemetry([str(folder / "*.bin")], None)
    assert len(given.records) == 120
    assert [path.name for path in given.files] == ["a.bin", "b.bin", "c.bin"]
    again = read_telemetry([str(folder / "b.bin"), str(folder / "*.bin")], None)
    assert [path.name for path in again.files] == ["b.bin", "a.bin", "c.bin"]
    write_parquet(synthetic_records(5, gamma=3), folder / "d.bin")
    assert read_telemetry([str(folder / "*.bin")], None).source.endswith("c.bin and 1 more")


def test_files_of_two_gammas_are_refused(folder: Path) -> None:
    write_parquet(synthetic_records(5, gamma=2), folder / "d.bin")
    with pytest.raises(FormatError, match=r"d\.bin: gamma 2, asked for 3"):
        read_telemetry([str(folder / "*.bin")], None)


def test_a_path_with_brackets_is_a_path(tmp_path: Path) -> None:
    write_parquet(RECORDS, tmp_path / "run[1].parquet")
    assert len(read_telemetry([str(tmp_path / "run[1].parquet")], None).records) == 40


@pytest.mark.torch
def test_shards_need_gamma_and_carry_notes(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from calib.formats.sglang_shards import write_shard

    for number in range(2):
        write_shard(RECORDS, tmp_path / f"rank{number}.pt")
    pattern = str(tmp_path / "*.pt")
    with pytest.raises(ConfigurationError, match="gamma: got None; state it with --gamma"):
        read_telemetry([pattern], None)
    given = read_telemetry([pattern], 3)
    assert len(given.records) == 80
    assert len(given.notes) == len(set(given.notes)) >= 1
    with pytest.raises(FormatError, match="but gamma is 4"):
        read_telemetry([pattern], 4)


def test_shards_without_torch_name_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.pt").write_bytes(b"PK\x03\x04rest")
    monkeypatch.setattr("api.telemetry_input.find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"dspark-calib\[heads\]"):
        read_telemetry([str(tmp_path / "a.pt")], 3)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty file"),
        (b"k,z\n1,0.5\n", "neither Parquet, Arrow nor"),
        (b"PAR1 and nothing else", "not readable"),
        (b"ARROW1\0\0 and nothing else", "not readable"),
        (b"\xff\xff\xff\xff and nothing else", "not readable"),
    ],
)
def test_foreign_bytes_are_named(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "telemetry"
    path.write_bytes(content)
    for gamma in (None, 3):
        with pytest.raises(FormatError, match=reason):
            read_telemetry([str(path)], gamma)


def test_foreign_parquet_is_named(tmp_path: Path) -> None:
    path = tmp_path / "foreign.parquet"
    pq.write_table(pa.table({"price": [1.0, 2.0]}), path)
    for gamma in (None, 3):
        with pytest.raises(FormatError, match="foreign: no telemetry metadata"):
            read_telemetry([str(path)], gamma)
    table: Any = pa.table({"x": [1]}).replace_schema_metadata({"dspark_calib.gamma": "seven"})
    pq.write_table(table, path)
    with pytest.raises(FormatError, match="gamma seven"):
        read_telemetry([str(path)], None)


def test_missing_files_folders_and_patterns(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_telemetry([str(tmp_path / "none.parquet")], 3)
    with pytest.raises(FormatError, match="is a directory"):
        read_telemetry([str(tmp_path)], 3)
    with pytest.raises(FormatError, match="no file matches"):
        read_telemetry([str(tmp_path / "*.parquet")], 3)


def test_json_lines_take_gamma_from_their_first_row(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(f"{ROW}\n\n{ROW}\n")
    given = read_telemetry([str(path)], None)
    assert given.records.gamma == 3
    assert given.records.accepted.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (ROW[:30], "line 3: is no JSON"),
        ("[1, 2]", r"line 3: row: got \[1, 2\]"),
        (ROW.replace('"accepted": 1', '"accepted": 4'), "line 3: accepted: got 4"),
    ],
)
def test_a_bad_line_is_named_as_an_editor_counts(tmp_path: Path, line: str, told: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(f"{ROW}\n\n{line}\n{ROW}\n")
    with pytest.raises(FormatError, match=told):
        read_telemetry([str(path)], None)
