"""``dspark-calib import sglang``: shards and step records, each with what it cannot say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from api.cli import app
from calib.formats.arrow import read_parquet
from tests.calib.formats.test_sglang_info_record import dump, request, step

GAMMA = 3


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    """As SGLang's collector writes it."""
    torch = pytest.importorskip("torch")
    path = tmp_path / "sts.0.pt"
    mask = torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    torch.save(
        {"logits": torch.tensor([[2.0, 1.0, 0.5], [-1.0, 0.0, 1.0]]), "prefix_mask": mask}, path
    )
    return path


def run(runner: CliRunner, *arguments: Any) -> tuple[int, str]:
    words = ["import", "sglang", *map(str, arguments), "--gamma", str(GAMMA)]
    result = runner.invoke(app, words)
    return result.exit_code, result.stdout + result.stderr


@pytest.mark.torch
def test_shards_become_rows_of_the_greedy_rule(
    runner: CliRunner, shard: Path, tmp_path: Path
) -> None:
    out = tmp_path / "rows.parquet"
    code, said = run(runner, shard, "-o", out, "--mode", "cap-accept", "--engine", "pod", "--json")
    assert code == 0, said
    assert json.loads(said)["rows"] == 2
    rows = read_parquet(out, GAMMA)
    assert (rows.verified.tolist(), rows.accepted.tolist()) == ([3, 3], [2, 0])
    assert rows.acceptance_rule is not None
    assert rows.acceptance_rule.tolist() == ["greedy"] * 2


@pytest.mark.torch
def test_trimmed_shards_are_refused(runner: CliRunner, shard: Path, tmp_path: Path) -> None:
    """Their trimmed positions read as rejected: nothing can be learnt from them."""
    out = tmp_path / "rows.parquet"
    code, said = run(runner, shard, "-o", out, "--mode", "compact")
    assert (code, "cap-accept" in said) == (1, True)
    code, said = run(runner, shard, "-o", out)
    assert (code, "--mode" in said) == (2, True)
    assert not out.exists()


def test_step_records_need_the_temperatures_that_ran(runner: CliRunner, tmp_path: Path) -> None:
    path, out = dump(tmp_path, step(1, request())), tmp_path / "rows.parquet"
    code, said = run(runner, path, "-o", out)
    assert (code, "--identity" in said) == (2, True)
    file = tmp_path / "sts.json"
    file.write_text('{"temperatures": [2.0, 2.0, 2.0], "revision": 5}')
    options = ("--temperatures", file, "--stop-ids", "2", "--acceptance-rule", "rejection")
    assert run(runner, path, "-o", out, *options)[0] == 0
    rows = read_parquet(out, GAMMA)
    assert rows.revision.tolist() == [5]
    assert rows.confidence_logits[0, 0] == pytest.approx(2 * 2.1972, abs=2e-3)  # 2 · logit .9
    assert run(runner, path, "-o", out, "--identity")[0] == 0
    assert read_parquet(out, GAMMA).revision.tolist() == [0]


def test_what_does_not_go_together_is_refused(runner: CliRunner, tmp_path: Path) -> None:
    path = dump(tmp_path, step(1, request()))
    out = tmp_path / "rows.parquet"
    assert run(runner, path, "-o", out, "--identity", "--mode", "cap-accept")[0] == 2
    assert run(runner, path, "x.pt", "-o", out)[0] == 2
    assert run(runner, tmp_path / "missing.json", "-o", out, "--identity")[0] == 2
