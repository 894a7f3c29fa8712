from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import calib.shipped
from api.cli import app
from calib.formats.arrow import write_parquet
from tests.support.sglang_calibration import load_as_sglang
from tests.support.telemetry import synthetic_records


@pytest.mark.slow
def test_demo_does_the_main_job(
    runner: CliRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "telemetry.parquet"
    write_parquet(synthetic_records(8000, prompts=300), path, compact=True)
    monkeypatch.setattr(calib.shipped, "shipped_telemetry", lambda: path)
    monkeypatch.chdir(tmp_path)
    result = runner.invoke(app, ["demo"])
    assert result.exit_code in (0, 1), result.output
    for words in ("By domain, ", "By sampling temperature, ", "Over all positions", "isotonic"):
        assert words in result.stdout
    assert (tmp_path / "dspark-calib-demo" / "report.json").is_file()


def test_demo_without_its_data_says_so(
    runner: CliRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calib.shipped, "files", lambda package: tmp_path)
    result = runner.invoke(app, ["demo", "--out", str(tmp_path / "out")])
    assert result.exit_code == 2
    assert "is not part of this installation" in result.stderr


@pytest.mark.slow
def test_demo_on_the_shipped_telemetry_in_a_real_process(tmp_path: Path) -> None:
    """No torch, less than a minute of one core, and a file that SGLang loads."""
    script = (
        "import sys, time\n"
        "from api.cli import main\n"
        "sys.argv = ['dspark-calib', 'demo']\n"
        "try:\n    main()\n"
        "except SystemExit as leaving:\n"
        "    print('code', leaving.code, 'torch' in sys.modules, time.process_time() < 60)\n"
    )
    root = Path(__file__).resolve().parents[3]
    environment = os.environ | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    answer = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.stdout.splitlines()[-1] == "code 0 False True", answer.stderr
    data = (tmp_path / "dspark-calib-demo" / "sglang_sts.json").read_bytes()
    assert len(load_as_sglang(data, 7).temperatures) == 7
