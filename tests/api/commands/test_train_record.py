"""``train`` and ``record`` as a researcher runs them, on a real but tiny target."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from api.cli import app
from calib.formats.arrow import read_parquet

pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.slow]

GAMMA = 3
TRAIN = [
    "--gamma", str(GAMMA), "--layers", "1", "--draft-vocab-size", "128", "--markov-rank", "8",
    "--responses", "12", "--max-new-tokens", "16", "--steps", "6", "--sequences", "2",
    "--anchors", "4", "--record-share", "0.5", "--target-layers", "1,2,3",
]  # fmt: skip


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a target, prompts of two domains, and a drafter trained by the command."""
    from tests.support.tiny_target import save_tiny_target

    folder = tmp_path_factory.mktemp("workshop")
    save_tiny_target(folder / "target")
    for domain in ("math", "chat"):
        lines = [json.dumps({"turns": [f"{domain} question {i}"]}) for i in range(12)]
        (folder / f"{domain}.jsonl").write_text("\n".join(lines))
    result = CliRunner().invoke(
        app, ["train", *_common(folder), "--out", str(folder / "run"), *TRAIN]
    )
    assert result.exit_code == 0, result.output
    return folder


def _common(folder: Path) -> list[str]:
    prompts = [f"{domain}={folder / domain}.jsonl" for domain in ("math", "chat")]
    return ["--target", str(folder / "target"), "--prompts", prompts[0], "--prompts", prompts[1]]


def _record(folder: Path, out: Path, blocks: int) -> list[str]:
    return [
        "record", *_common(folder), "--drafter", str(folder / "run" / "drafter"), "--out", str(out),
        "--blocks", str(blocks), "--max-new-tokens", "12", "--slots", "4", "--record-share", "0.5",
    ]  # fmt: skip


def test_train_resumes_and_keeps_its_result(workshop: Path) -> None:
    weights = workshop / "run" / "drafter" / "model.safetensors"
    before = weights.read_bytes()
    arguments = ["train", *_common(workshop), "--out", str(workshop / "run"), *TRAIN]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "resumed at step 6" in result.output
    assert weights.read_bytes() == before


def test_record_writes_rows_of_held_out_prompts(workshop: Path, tmp_path: Path) -> None:
    out = tmp_path / "telemetry.parquet"
    result = CliRunner().invoke(app, _record(workshop, out, 60))
    assert result.exit_code == 0, result.output
    records = read_parquet(out, GAMMA)
    assert len(records) >= 60
    assert records.gamma == GAMMA
    assert set(records.domain) == {"math", "chat"}
    assert {round(float(t), 1) for t in records.sampling_temperature} == {1.0, 0.6, 0.0}
    train = json.loads((workshop / "run" / "drafter" / "config.json").read_text())
    assert train["block_size"] == GAMMA


def test_record_resumes_with_the_same_rows(workshop: Path, tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole.parquet", tmp_path / "cut.parquet"
    assert CliRunner().invoke(app, _record(workshop, whole, 300)).exit_code == 0
    assert CliRunner().invoke(app, _record(workshop, cut, 60)).exit_code == 0
    assert CliRunner().invoke(app, _record(workshop, cut, 300)).exit_code == 0
    first, second = read_parquet(whole, GAMMA), read_parquet(cut, GAMMA)
    rows = {(r, int(n)) for r, n in zip(first.request, first.accepted, strict=True)}
    again = {(r, int(n)) for r, n in zip(second.request, second.accepted, strict=True)}
    shared = set(first.request) & set(second.request)
    assert {row for row in rows if row[0] in shared} == {row for row in again if row[0] in shared}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (["--target", "/no/such/model"], "target"),
        (["--prompts", "/no/such/file.jsonl"], "domain"),
        (["--markov-head-type", "linear"], "markov_head_type"),
        (["--target-layers", "1,x"], "target_layers"),
        (["--gamma", "0"], "gamma"),
    ],
)
def test_train_names_what_is_wrong(workshop: Path, change: list[str], field: str) -> None:
    arguments = ["train", *_common(workshop), "--out", str(workshop / "other"), *TRAIN, *change]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert field in result.output
    assert "Traceback" not in result.output
