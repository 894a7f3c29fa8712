"""``replay`` as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from api.cli import app
from calib.formats.arrow import write_parquet
from calib.records import AcceptanceRecords
from tests.monitoring.loop_rows import rows


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("replay") / "telemetry.parquet"
    count = 3000
    write_parquet(rows(1, count, domain=(["math", "code"] * count)[:count]), path)
    return path


def replayed(runner: CliRunner, *arguments: object) -> Any:
    return runner.invoke(app, ["replay", *map(str, arguments)])


QUICK = ("--baseline-rows", 0, "--method", "temperature", "--refit-rows", 100_000)


def test_a_synthetic_shift_is_told_row_by_row(runner: CliRunner, recording: Path) -> None:
    result = replayed(runner, recording, *QUICK, "--scale-logits", "1.8@1500")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("Synthetic: logits times 1.8 from row 1500 on.")
    assert "act: conditional" in result.stdout
    assert "schedule fit" in result.stdout
    assert "rows a second" in result.stdout


def test_json_holds_the_same_and_a_seed_deals_the_requests_anew(
    runner: CliRunner, recording: Path
) -> None:
    options = (*QUICK, "--order", "domain=code,math", "--json")
    plain = json.loads(replayed(runner, recording, *options).stdout)
    dealt = json.loads(replayed(runner, recording, *options, "--seed", 4).stdout)
    again = json.loads(replayed(runner, recording, *options, "--seed", 4).stdout)
    assert [stretch["name"] for stretch in plain["stretches"]] == ["domain=code", "domain=math"]
    assert plain["rows"] == dealt["rows"] == 3000
    assert dealt["happenings"] == again["happenings"]


def test_json_lines_are_read(runner: CliRunner, tmp_path: Path) -> None:
    records = rows(2, 400)
    path = tmp_path / "rows.jsonl"
    lines = [
        {"confidence_logits": z, "verified": v, "accepted": n, "request": f"r{i}", "step": i}
        for i, (z, v, n) in enumerate(
            zip(
                records.confidence_logits.tolist(),
                records.verified.tolist(),
                records.accepted.tolist(),
                strict=True,
            )
        )
    ]
    path.write_text("\n".join(json.dumps(line) for line in lines) + "\n")
    found = json.loads(replayed(runner, path, *QUICK, "--json").stdout)
    assert found["counts"]["rows_total"] == 400


def test_a_swap_may_be_announced(runner: CliRunner, recording: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.parquet"
    write_parquet(rows(3, 1000, scale=np.full(1000, 2.0)), other)
    for word, champions in (("--announced", 2), ("--unannounced", 1)):
        options = ("--swap", other, word, *QUICK[:2], "--method", "sts", "--refit-rows", 10**6)
        found = json.loads(replayed(runner, recording, *options, "--json").stdout)
        served = [entry["revision"] for entry in found["champions"]]
        assert len(served) >= champions
        assert ("key" in [h["kind"] for h in found["happenings"]]) == (champions == 2)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (("--order", "domain"), "COLUMN=VALUE"),
        (("--order", "domain=law"), "no row has this value"),
        (("--scale-logits", "big@3"), "FACTOR@ROW"),
        (("--method", "magic"), "method"),
        (("--act-threshold", "1"), "act_threshold"),
    ],
)
def test_bad_options_are_refused_in_one_line(
    runner: CliRunner, recording: Path, wrong: tuple[str, ...], said: str
) -> None:
    result = replayed(runner, recording, *wrong)
    assert result.exit_code == 2
    assert said in result.stderr


def test_records_that_hold_nothing_usable_are_no_crash(runner: CliRunner, tmp_path: Path) -> None:
    records = rows(4, 50)
    columns = {**records.columns(), "flags": np.full(50, 1, dtype=np.uint8)}
    path = tmp_path / "warmup.parquet"
    write_parquet(AcceptanceRecords.from_columns(7, columns), path)
    found = json.loads(replayed(runner, path, *QUICK, "--json").stdout)
    assert found["counts"]["rows_total"] == 0
    assert found["counts"]["excluded"] == {"warmup": 50}
