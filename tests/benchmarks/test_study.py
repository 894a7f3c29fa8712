"""The study: its parts run, go on where they stopped, and fill the page they are told to fill."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.special import expit

from benchmarks import study
from benchmarks.study_peers import online_estimator
from benchmarks.study_summary import summary
from benchmarks.study_tables import SECTIONS, delay_cell, number, render, replace_between_markers
from benchmarks.study_targets import targets
from calib.records import AcceptanceRecords

ROOT = Path(__file__).resolve().parents[2]


def page(*names: str) -> str:
    return "\n".join(f"<!-- study: begin {n} -->\nold\n<!-- study: end {n} -->" for n in names)


def test_only_the_named_section_changes() -> None:
    found = replace_between_markers(page("cost", "gate"), {"gate": r"new \1"})
    assert found == page("cost", "gate").replace("gate -->\nold", "gate -->\nnew \\1")


def test_a_section_without_markers_is_an_error() -> None:
    with pytest.raises(ValueError, match="begin real"):
        replace_between_markers(page("cost"), {"real": "new"})


@pytest.mark.parametrize(
    ("value", "shown"), [(0.0051, ".0051"), (-0.05, "-.0500"), (1.25, "1.2500"), (None, "–")]
)
def test_numbers(value: float | None, shown: str) -> None:
    assert number(value) == shown


def test_missed_and_early_alarms_are_shown() -> None:
    entry = {"detected": 3, "runs": 8, "before_the_change": 2, "mean_delay": 12_345}
    assert delay_cell(entry) == "12,345 (3/8), 2 early"
    assert delay_cell(entry | {"detected": 0, "mean_delay": None, "before_the_change": 0}) == (
        "– (0/8)"
    )


def test_a_part_without_a_result_is_named() -> None:
    assert "--only cost_100k cost_1m" in render({}, {})["cost"]


def test_quick_needs_a_folder_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        study.main(["--quick"])
    assert "--out" in capsys.readouterr().err


def test_a_part_that_is_there_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[bool] = []
    part = (lambda: calls.append(False), lambda: calls.append(True))
    monkeypatch.setattr(study, "PARTS", {"one": part})
    for _ in range(2):
        study.main(["--quick", "--out", str(tmp_path)])
    assert calls == [True]
    study.main(["--quick", "--fresh", "--out", str(tmp_path)])
    assert calls == [True, True]
    assert json.loads((tmp_path / "study.json").read_text())["one"]["quick"] is True


def test_the_page_has_every_section_and_its_tables_are_current() -> None:
    text = (ROOT / "docs" / "study.md").read_text(encoding="utf-8")
    for name in ("targets", *SECTIONS, "replay"):
        assert f"<!-- study: begin {name} -->" in text
    found = json.loads((ROOT / "benchmarks" / "results" / "study.json").read_text())
    sections = {"targets": targets(found)} | render(found, {})
    assert replace_between_markers(text, sections) == text


def test_readme_quotes_the_study_as_it_stands() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    found = json.loads((ROOT / "benchmarks" / "results" / "study.json").read_text())
    quoted = summary(found)
    assert "dspark-calib" in quoted
    assert replace_between_markers(text, {"summary": quoted}) == text


def test_readme_quotes_nothing_of_half_a_study() -> None:
    assert summary({"peers_10k": {"result": []}}) == ""


def test_online_estimator_finds_slope_and_intercepts() -> None:
    """The restated peer converges where its model is right, trimmed or not."""
    rng = np.random.default_rng(0)
    rows, gamma, slope, intercepts = 40_000, 3, 0.7, np.array([0.3, 0.0, -0.4])
    logits = rng.normal(0.5, 1.5, (rows, gamma)).astype(np.float32)
    coins = rng.random((rows, gamma)) < expit(slope * logits + intercepts)
    verified = rng.integers(0, gamma + 1, rows)
    accepted = np.minimum(np.cumprod(coins, axis=1).sum(axis=1), verified)
    columns = {"confidence_logits": logits, "verified": verified, "accepted": accepted}
    # A refit sees only its own 100 steps: with eight requests a step it would scatter by .15.
    found = online_estimator(AcceptanceRecords.from_columns(gamma, columns), requests=100)
    assert found[0] == pytest.approx(slope, abs=0.06)
    np.testing.assert_allclose(found[1], intercepts, atol=0.15)


@pytest.mark.slow
def test_every_part_runs_quickly(tmp_path: Path) -> None:
    """Small sizes, real libraries: under two minutes on two quiet cores."""
    document = tmp_path / "study.md"
    document.write_text(page("targets", *SECTIONS, "replay"), encoding="utf-8")
    study.main(["--quick", "--out", str(tmp_path / "parts"), "--document", str(document)])
    found = json.loads((tmp_path / "parts" / "study.json").read_text())
    assert set(found) == set(study.PARTS)
    for name in SECTIONS:
        assert f"begin {name} -->\nold" not in document.read_text(encoding="utf-8")
