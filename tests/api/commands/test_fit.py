from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from api.cli import app
from calib.calibration import Calibration
from calib.formats.arrow import write_parquet
from tests.support.sglang_calibration import load_as_sglang
from tests.support.telemetry import synthetic_columns, synthetic_records

Write = Callable[..., Path]
QUICK = ["--no-references", "--minimum-rows", "100"]


@pytest.fixture
def fit(runner: CliRunner, tmp_path: Path) -> Callable[..., Any]:
    """Run ``fit`` with its results in ``out``."""

    def run(*arguments: object) -> Any:
        words = [str(argument) for argument in arguments]
        return runner.invoke(app, ["fit", *words, "--out", str(tmp_path / "out"), *QUICK])

    return run


@pytest.mark.slow
def test_everything_is_written_and_named(
    fit: Callable[..., Any], telemetry: Path, tmp_path: Path
) -> None:
    result = fit(telemetry)
    assert result.exit_code == 0, result.output
    out = tmp_path / "out"
    expected = {
        "calibration.json",
        "sglang_sts.json",
        "report.html",
        "report.json",
        "reliability.png",
        "ece_chat.png",
        "ece_code.png",
        "ece_math.png",
    }
    # Slices of fewer than 1,000 blocks get no figure of their own.
    written = {path.name for path in out.iterdir()}
    always = {name for name in expected if not name.startswith("ece_")}
    assert always <= written <= expected
    for name in written:
        assert str(out / name) in result.stdout.replace("\n", "")
    assert result.stdout.startswith("Fitted on ")
    assert "Survival a_k" in result.stdout
    calibration = Calibration.from_json((out / "calibration.json").read_bytes())
    assert calibration.fitted_at is not None
    assert load_as_sglang((out / "sglang_sts.json").read_bytes(), 4).temperatures == list(
        calibration.temperatures
    )


@pytest.mark.slow
def test_json_is_one_object_without_nan(fit: Callable[..., Any], telemetry: Path) -> None:
    result = fit(telemetry, "--json")
    assert result.exit_code == 0, result.output

    def refuse(word: str) -> None:
        raise AssertionError(word)

    document = json.loads(result.stdout, parse_constant=refuse)
    assert document["format"] == "dspark-calib/fit-report/1"
    assert document["source"] == "telemetry.parquet"
    assert Path(document["files"]["report"]).is_file()


@pytest.mark.slow
def test_methods_and_modes_are_passed_on(fit: Callable[..., Any], telemetry: Path) -> None:
    parity = json.loads(fit(telemetry, "--method", "sts", "--mode", "parity", "--json").stdout)
    grid = 10.0 ** np.linspace(-1, 1, 41)
    found = np.array(parity["calibration"]["temperatures"])
    assert np.abs(np.log(found[:, None] / grid)).min(axis=1).max() < 1e-5
    conditional = json.loads(fit(telemetry, "--method", "temperature", "--json").stdout)
    assert conditional["calibration"]["method"] == "temperature"
    share = json.loads(fit(telemetry, "--evaluate-share", "0.2", "--json").stdout)
    assert share["split"]["evaluation_keys"] < share["split"]["fit_keys"] / 2


@pytest.mark.slow
def test_gamma_is_checked_against_the_file(fit: Callable[..., Any], telemetry: Path) -> None:
    assert fit(telemetry, "--gamma", "4", "--json").exit_code == 0
    result = fit(telemetry, "--gamma", "7")
    assert result.exit_code == 2
    assert "gamma 4, asked for 7; state the gamma" in result.stderr


def test_other_files_to_judge_on(fit: Callable[..., Any], telemetry: Path, tmp_path: Path) -> None:
    columns = synthetic_columns(1500, gamma=4, seed=5)
    columns["prompt"] = [f"other {value}" for value in columns["prompt"]]
    from calib.records import AcceptanceRecords

    other = tmp_path / "other.parquet"
    write_parquet(AcceptanceRecords.from_columns(4, columns), other)
    document = json.loads(fit(telemetry, "--evaluate-on", other, "--json").stdout)
    assert document["split"]["kind"] == "files"
    assert (document["split"]["fit_rows"], document["evaluation"]["rows"]) == (5000, 1500)


@pytest.mark.torch
def test_shards_of_sglang(fit: Callable[..., Any], tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from calib.formats.sglang_shards import write_shard

    for rank in range(2):
        write_shard(synthetic_records(1000, gamma=3, seed=rank), tmp_path / f"rank{rank}.pt")
    pattern = str(tmp_path / "rank*.pt")
    unstated = fit(pattern)
    assert unstated.exit_code == 2
    assert "gamma: got None; state it with --gamma" in unstated.stderr
    unsplit = fit(pattern, "--gamma", "3")
    assert unsplit.exit_code == 2
    assert unsplit.stderr.startswith("error: prompt: got None; ")
    result = fit(pattern, "--gamma", "3", "--split-by", "none")
    assert result.exit_code == 0, result.output
    assert "too kind" in result.stdout
    assert "Note: " in result.stdout


BAD_SHARES = ["0", "1", "-1", "nan"]


@pytest.mark.parametrize("share", BAD_SHARES)
def test_bad_share(fit: Callable[..., Any], telemetry: Path, share: str) -> None:
    result = fit(telemetry, "--evaluate-share", share)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: evaluation_share: got ")


def assert_one_line(result: Any, code: int, *parts: str) -> None:
    """Exit code, one line with field, value and remedy, and no traceback."""
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.stderr
    for part in parts:
        assert part in lines[0]


def test_missing_file(fit: Callable[..., Any], tmp_path: Path) -> None:
    result = fit(tmp_path / "none.parquet")
    assert_one_line(result, 2, "none.parquet", "No such file", "check the path")


def test_foreign_and_empty_file(fit: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "telemetry.parquet"
    path.write_bytes(b"")
    assert_one_line(fit(path), 2, "empty file", "give Parquet")
    path.write_bytes(b"hello, world")
    assert_one_line(fit(path), 2, "neither Parquet", "give Parquet")


def test_torn_file(fit: Callable[..., Any], telemetry: Path, tmp_path: Path) -> None:
    path = tmp_path / "torn.parquet"
    path.write_bytes(telemetry.read_bytes()[:5000])
    assert_one_line(fit(path), 2, "torn.parquet", "not readable")


def test_nan_logit(fit: Callable[..., Any], write_raw: Write) -> None:
    path = write_raw("confidence_logits", lambda rows: [[float("nan")] * 3, *rows[1:]])
    assert_one_line(fit(path), 2, "confidence_logits", "nan", "row 0")


def test_accepted_beyond_verified(fit: Callable[..., Any], write_raw: Write) -> None:
    path = write_raw("accepted", lambda rows: [3] * len(rows))
    assert_one_line(fit(path), 2, "accepted", "at most the verified length")


def test_probabilities_for_logits(fit: Callable[..., Any], write: Write) -> None:
    probabilities = np.random.default_rng(0).random((400, 3))
    path = write(confidence_logits=probabilities)
    assert_one_line(fit(path), 1, "looks_like_probabilities", "[0, 1]", "send raw")


def test_one_row(fit: Callable[..., Any], write: Write) -> None:
    assert_one_line(fit(write(1)), 1, "no_rows", "1 distinct value", "record more prompts")


def test_no_prompt_column(fit: Callable[..., Any], write: Write) -> None:
    result = fit(write(prompt=None))
    assert_one_line(result, 2, "prompt: got None", "column='request'")
    assert "--split-by request" in result.stderr


def test_labels_that_disagree(fit: Callable[..., Any], write: Write) -> None:
    path = write(soft_labels=np.full((400, 3), 0.97))
    assert_one_line(fit(path), 1, "label_inconsistent", "check acceptance rule")


def test_one_class_reports_but_publishes_nothing(
    fit: Callable[..., Any], write: Write, tmp_path: Path
) -> None:
    columns = synthetic_columns(400, gamma=3)
    path = write(accepted=columns["verified"], soft_labels=None)
    assert_one_line(fit(path), 1, "refused: insufficient", "labels are the same")
    result = fit(path, "--method", "sts")
    assert_one_line(result, 1, "refused: insufficient", "labels are the same")
    assert result.stdout.startswith("Nothing is published.")
    assert sorted(found.name for found in (tmp_path / "out").iterdir()) == [
        "reliability.png",
        "report.html",
        "report.json",
    ]
    text = (tmp_path / "out" / "report.json").read_text()
    assert "NaN" not in text
    assert json.loads(text)["calibration"]["status"] == "insufficient"


OPTIMISED = """
import json, sys
from typer.testing import CliRunner
from api.cli import app

found = {}
for path in sys.argv[1:]:
    words = ["fit", path, "--out", "out", "--no-references", "--minimum-rows", "100"]
    result = CliRunner().invoke(app, [*words, "--gamma", "3"])
    expected = result.exception is None or isinstance(result.exception, SystemExit)
    found[path] = [result.exit_code, expected, result.stderr.strip().splitlines()[-1]]
print(json.dumps([found, __debug__]))
"""


@pytest.mark.slow
def test_bad_input_is_caught_without_asserts(
    write: Write, write_raw: Write, tmp_path: Path
) -> None:
    """The same under ``python -O``, in one process for all files."""
    columns = synthetic_columns(400, gamma=3)
    probabilities = np.random.default_rng(0).random((400, 3))
    made: dict[str, Callable[[], Path]] = {
        "nan": lambda: write_raw("confidence_logits", lambda r: [[float("nan")] * 3, *r[1:]]),
        "beyond": lambda: write_raw("accepted", lambda rows: [3] * len(rows)),
        "gamma": lambda: write(gamma=4),
        "probabilities": lambda: write(confidence_logits=probabilities),
        "one_row": lambda: write(1),
        "one_class": lambda: write(accepted=columns["verified"], soft_labels=None),
    }
    for name, make in made.items():
        make().rename(tmp_path / name)
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "foreign").write_bytes(b"hello")
    names = [*made, "empty", "foreign", "missing"]
    answer = subprocess.run(
        [sys.executable, "-O", "-c", OPTIMISED, *names],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[3])},
        capture_output=True,
        text=True,
        check=False,
    )
    found, debug = json.loads(answer.stdout)
    assert debug is False
    assert all(expected for _, expected, _ in found.values()), found
    codes = {name: code for name, (code, _, _) in found.items()}
    refused = {"probabilities", "one_row", "one_class"}
    assert codes == {name: 1 if name in refused else 2 for name in names}
    assert "confidence_logits" in found["nan"][2]


@pytest.mark.slow
def test_results_of_an_earlier_run_are_pointed_out(
    fit: Callable[..., Any], telemetry: Path, write: Write
) -> None:
    assert fit(telemetry).exit_code == 0
    columns = synthetic_columns(400, gamma=3)
    result = fit(write(accepted=columns["verified"], soft_labels=None))
    assert result.exit_code == 1
    assert "calibration.json is from an earlier run" in result.stderr


def test_folder_that_cannot_be_made(runner: CliRunner, telemetry: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    words = ["fit", str(telemetry), "--out", str(tmp_path / "file" / "out"), *QUICK]
    assert_one_line(runner.invoke(app, words), 2, "Not a directory", "check the path")


def test_rows_that_a_method_leaves_out_are_said_in_text_and_json(
    fit: Callable[..., Any], write: Write
) -> None:
    verified = np.where(np.arange(400) % 4 == 0, 2, 3)
    accepted = np.minimum(synthetic_columns(400, gamma=3)["accepted"], verified)
    path = write(verified=verified, accepted=accepted, soft_labels=None, flags=None)
    shown = fit(path, "--method", "sts").stdout.replace("\n", " ")
    document = json.loads(fit(path, "--method", "sts", "--json").stdout)
    said = f"left out {document['left_out']:,} of {document['split']['fit_rows']:,} blocks"
    assert document["left_out"] > 0
    assert any(said in sentence for sentence in document["sentences"])
    assert said in shown
    assert "methods auto and survival read them all." in shown
