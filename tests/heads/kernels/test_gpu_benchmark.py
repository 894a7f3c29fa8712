"""``benchmarks/gpu_kernels.py`` runs from end to end without a GPU, and claims no time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.heads.kernels.compilation import ROOT

pytestmark = [pytest.mark.torch, pytest.mark.slow]


def run(*arguments: str, hidden: str = "") -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    if hidden:
        environment |= {"CUDA_VISIBLE_DEVICES": hidden, "HIP_VISIBLE_DEVICES": hidden}
    command = [sys.executable, "benchmarks/gpu_kernels.py", *arguments]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=900
    )


def test_interpreted_and_tiny(tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    answer = run("--interpret", "--tiny", "--batches", "1", "--out", str(out))
    assert answer.returncode == 0, answer.stderr
    result = json.loads(out.read_text(encoding="utf-8"))
    assert result["interpreted"] is True
    assert result["copy_bandwidth_gb_per_s"] is None
    assert "gpu_soft_label" in {group["provider"] for group in result["groups"]}
    for group in result["groups"]:
        assert group["complete"], group["provider"]
        for row in group["rows"]:
            assert row["warm_us"] is None  # no numbers without a GPU
            assert row["cold_us"] is None
            assert row["note"] == "not timed: there is no GPU"
            assert row["floor_bytes"] > 0
            assert row["errors"]


def test_no_time_is_said() -> None:
    answer = run("--interpret", "--tiny", "--minutes", "0", "--only", "soft_label")
    assert answer.returncode == 1


def test_without_a_gpu_the_remedy_is_named() -> None:
    answer = run(hidden="-1")
    assert answer.returncode == 2
    assert "--interpret --tiny" in answer.stderr
