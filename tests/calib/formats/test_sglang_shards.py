from __future__ import annotations

import io
import os
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calib.errors import FormatError, RecordError
from calib.formats.sglang_shards import (
    NOTE_ALL_VERIFIED,
    NOTE_GREEDY_LABELS,
    read_shards,
    write_shard,
)
from calib.records import AcceptanceRecords
from tests.calib.record_batches import lengths

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


def engine_shard(path: Path, *counts: int, gamma: int = 3, **change: Any) -> Path:
    """A shard as SGLang's recorder writes it, with the given numbers of correct drafts."""
    logits = torch.arange(len(counts) * gamma, dtype=torch.float32).reshape(-1, gamma) / 10
    mask = torch.arange(gamma).view(1, -1) < torch.tensor(counts).view(-1, 1)
    torch.save({"logits": logits, "prefix_mask": mask.to(torch.float32), **change}, path)
    return path


def without(path: Path, key: str) -> None:
    shard = torch.load(path, weights_only=True)
    del shard[key]
    torch.save(shard, path)


def records_of(*pairs: tuple[int, int], gamma: int = 3) -> AcceptanceRecords:
    return AcceptanceRecords.from_columns(gamma, lengths(*pairs, gamma=gamma))


def test_reads_what_the_engine_wrote(tmp_path: Path) -> None:
    engine_shard(tmp_path / "sts.0.pt", 0, 3)
    engine_shard(tmp_path / "sts.1.pt", 2)
    read = read_shards(str(tmp_path / "sts.*.pt"), gamma=3)
    assert read.records.accepted.tolist() == [0, 3, 2]
    assert read.records.verified.tolist() == [3, 3, 3]
    assert read.records.confidence_logits[1].tolist() == pytest.approx([0.3, 0.4, 0.5])
    assert [file.name for file in read.files] == ["sts.0.pt", "sts.1.pt"]
    assert read.notes == (NOTE_ALL_VERIFIED, NOTE_GREEDY_LABELS)


def test_shards_are_sorted_as_the_engines_fitter_sorts_them(tmp_path: Path) -> None:
    for number in (10, 2, 1):
        engine_shard(tmp_path / f"sts.{number}.pt", number % 4)
    read = read_shards(tmp_path / "sts.*.pt", gamma=3)
    assert [file.name for file in read.files] == ["sts.1.pt", "sts.10.pt", "sts.2.pt"]
    assert read.records.accepted.tolist() == [1, 2, 2]
    listed = read_shards([tmp_path / "sts.2.pt", tmp_path / "sts.1.pt"], gamma=3)
    assert [file.name for file in listed.files] == ["sts.1.pt", "sts.2.pt"]


def test_a_path_with_pattern_characters_is_a_path(tmp_path: Path) -> None:
    path = engine_shard(tmp_path / "sts[1].pt", 1)
    assert read_shards(path, gamma=3).files == (path,)


def test_the_engine_reads_what_is_written(tmp_path: Path) -> None:
    path = tmp_path / "ours.pt"
    records = records_of((3, 0), (3, 3))
    write_shard(records, path)
    shard = torch.load(path, map_location="cpu", weights_only=True)
    assert list(shard) == ["logits", "prefix_mask"]
    assert shard["logits"].dtype == shard["prefix_mask"].dtype == torch.float32
    assert shard["prefix_mask"].tolist() == [[0, 0, 0], [1, 1, 1]]
    assert np.array_equal(shard["logits"].numpy(), records.confidence_logits)
    assert os.listdir(tmp_path) == ["ours.pt"]


def test_trimmed_rows_carry_how_far_they_were_verified(tmp_path: Path) -> None:
    path = tmp_path / "ours.pt"
    write_shard(records_of((2, 1), (3, 3), (0, 0)), path)
    shard = torch.load(path, weights_only=True)
    assert shard["observed_mask"].tolist() == [[1, 1, 0], [1, 1, 1], [0, 0, 0]]
    read = read_shards(path, gamma=3)
    assert read.records.verified.tolist() == [2, 3, 0]
    assert read.notes == (NOTE_GREEDY_LABELS,)


@pytest.mark.property
@settings(max_examples=25)
@given(
    rows=st.lists(
        st.tuples(
            st.lists(
                st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=4, max_size=4
            ),
            st.integers(0, 4),
            st.integers(0, 4),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_round_trip_is_exact(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[list[float], int, int]]
) -> None:
    path = tmp_path_factory.getbasetemp() / "round-trip.pt"
    columns = {
        "confidence_logits": [logits for logits, _, _ in rows],
        "verified": [max(pair) for _, *pair in rows],
        "accepted": [min(pair) for _, *pair in rows],
    }
    records = AcceptanceRecords.from_columns(4, columns)
    write_shard(records, path)
    assert read_shards(path, gamma=4).records.equals(records)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prefix_mask": torch.tensor([[1.0, 0.0, 1.0]])}, "prefix_mask is no prefix in row 0"),
        ({"prefix_mask": torch.tensor([[0.0, 1.0, 1.0]])}, "prefix_mask is no prefix in row 0"),
        ({"prefix_mask": torch.tensor([[1.0, 0.5, 0.0]])}, "other values than 0 and 1"),
        ({"prefix_mask": torch.tensor([[float("nan"), 0, 0]])}, "other values than 0 and 1"),
        ({"prefix_mask": torch.ones(1, 4)}, r"shape \(1, 4\), but gamma is 3"),
        ({"prefix_mask": torch.ones(2, 3)}, "different lengths"),
        ({"observed_mask": torch.tensor([[1.0, 0.0, 1.0]])}, "observed_mask is no prefix"),
        ({"observed_mask": torch.tensor([[1.0, 0.0, 0.0]])}, "accepted: got 2"),
        ({"logits": torch.tensor([[0.0, float("nan"), 0.0]])}, "got nan; .*position 2"),
        ({"logits": torch.tensor([[0.0, float("inf"), 0.0]])}, "got inf"),
        ({"logits": torch.zeros(1, 3, dtype=torch.float64)}, "logits are float64"),
        ({"logits": torch.zeros(1, 3, dtype=torch.bfloat16)}, "bfloat16"),
        ({"logits": torch.zeros(3)}, r"shape \(3,\)"),
        ({"logits": torch.zeros(1, 3).to_sparse()}, "no plain tensor"),
        ({"logits": [[0.0, 0.0, 0.0]]}, "no tensor 'logits'"),
        ({"logits": torch.zeros(0, 3), "prefix_mask": torch.zeros(0, 3)}, "0 rows"),
    ],
)
def test_shards_that_mean_nothing_are_refused(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    path = engine_shard(tmp_path / "sts.0.pt", 2, **change)
    with pytest.raises(FormatError, match=message) as caught:
        read_shards(path, gamma=3)
    assert caught.value.source == str(path)


@pytest.mark.parametrize("key", ["logits", "prefix_mask"])
def test_a_missing_tensor_is_named(tmp_path: Path, key: str) -> None:
    path = engine_shard(tmp_path / "sts.0.pt", 2)
    without(path, key)
    with pytest.raises(FormatError, match=f"no tensor '{key}'"):
        read_shards(path, gamma=3)


def test_gamma_is_stated_and_checked(tmp_path: Path) -> None:
    path = engine_shard(tmp_path / "sts.0.pt", 2)
    with pytest.raises(FormatError, match="gamma is 7"):
        read_shards(path, gamma=7)
    with pytest.raises(RecordError, match="gamma"):
        read_shards(path, gamma=0)


def test_torn_files_are_refused_wherever_they_end(tmp_path: Path) -> None:
    whole = engine_shard(tmp_path / "sts.0.pt", 2).read_bytes()
    torn = tmp_path / "torn.pt"
    for end in range(0, len(whole), 97):
        torn.write_bytes(whole[:end])
        with pytest.raises(FormatError):
            read_shards(torn, gamma=3)


class _Payload:
    def __reduce__(self) -> Any:
        return os.mkdir, ("owned",)


def foreign_files() -> list[bytes]:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as opened:
        opened.writestr("readme.txt", "no shard")
    tensor = io.BytesIO()
    torch.save(torch.zeros(2, 3), tensor)
    return [
        b"\x00" * 64,
        b"not a shard at all, but some text\n" * 10,
        archive.getvalue(),
        tensor.getvalue(),
        pickle.dumps({"logits": 1}),
        pickle.dumps(_Payload()),
    ]


@pytest.mark.parametrize("index", range(6))
def test_foreign_files_are_refused_and_run_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, index: int
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "sts.0.pt"
    path.write_bytes(foreign_files()[index])
    with pytest.raises(FormatError):
        read_shards(path, gamma=3)
    assert os.listdir(tmp_path) == ["sts.0.pt"]


def test_one_bad_shard_refuses_the_set(tmp_path: Path) -> None:
    engine_shard(tmp_path / "sts.0.pt", 2)
    (tmp_path / "sts.1.pt").write_bytes(b"")
    with pytest.raises(FormatError, match=r"sts\.1\.pt: empty file"):
        read_shards(str(tmp_path / "*.pt"), gamma=3)


def test_nothing_found_is_said(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="no shard matches"):
        read_shards(str(tmp_path / "*.pt"), gamma=3)
    with pytest.raises(FormatError, match="no shard matches"):
        read_shards([], gamma=3)
    with pytest.raises(FileNotFoundError):
        read_shards([tmp_path / "missing.pt"], gamma=3)


def test_no_rows_are_not_written(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="0 rows"):
        write_shard(AcceptanceRecords.empty(3), tmp_path / "sts.0.pt")
    assert os.listdir(tmp_path) == []


def test_importing_the_module_does_not_import_torch() -> None:
    script = "import sys, calib.formats.sglang_shards; print('torch' in sys.modules)"
    command = [sys.executable, "-c", script]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "False"
