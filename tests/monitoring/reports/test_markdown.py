"""Markdown tables: their shape, and numbers that are those of the report."""

from __future__ import annotations

import numpy as np
import pytest

from calib.records import AcceptanceRecords
from monitoring.reports.fit_report import FitOptions, FitReport, fit_report
from monitoring.reports.markdown import (
    acceptance_markdown,
    markdown_table,
    results_markdown,
    summary_markdown,
)


@pytest.fixture(scope="module")
def report() -> FitReport:
    """A small overconfident drafter, γ = 2."""
    generator = np.random.default_rng(7)
    logits = generator.normal(0.8, 1.5, (4000, 2)).astype(np.float32)
    accepted_here = generator.random((4000, 2)) < 1 / (1 + np.exp(-logits / 1.6))
    columns = {
        "confidence_logits": logits,
        "verified": np.full(4000, 2, np.uint8),
        "accepted": accepted_here.cumprod(axis=1).sum(axis=1).astype(np.uint8),
        "prompt": [f"prompt {i // 20}" for i in range(4000)],
        "domain": ["math" if i % 2 else "chat" for i in range(4000)],
        "sampling_temperature": np.resize(np.float32([0.0, 0.0, 1.0]), 4000),
    }
    records = AcceptanceRecords.from_columns(2, columns)
    return fit_report(records, FitOptions(method="sts", with_references=True))


def _cells(text: str, first: str) -> list[str]:
    """Cells of the table row that begins with ``first``."""
    line = next(line for line in text.splitlines() if line.startswith(f"| {first} |"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_a_table_has_one_line_a_row_and_equal_widths() -> None:
    text = markdown_table([{"a": 1, "b": "x"}, {"a": 2, "b": "y"}])
    assert text.splitlines() == ["| a | b |", "| --- | --- |", "| 1 | x |", "| 2 | y |"]


def test_positions_show_the_reports_numbers(report: FitReport) -> None:
    text = results_markdown(report)
    before = report.evaluation.overall.raw.report.survival[0]
    after = report.evaluation.overall.calibrated.report.survival[0]
    cells = _cells(text, "1")
    assert cells[3] == f"{100 * before.ece:.1f}"
    assert cells[4] == f"{100 * after.ece:.1f}"
    assert after.ece < before.ece
    assert cells[8] == f"{before.auc:.3f}"


def test_conditions_and_slices_are_stated(report: FitReport) -> None:
    text = results_markdown(report)
    assert f"{report.split.evaluation_rows:,} blocks" in text
    for name in ("all", "domain=math", "domain=chat"):
        assert len(_cells(text, name)) == 9
    assert "nan" not in text.lower()
    assert text.endswith("|\n")


def test_a_summary_has_the_same_numbers_and_no_crossed_slices(report: FitReport) -> None:
    whole, summary = results_markdown(report), summary_markdown(report)
    crossed = [part.name for part in report.evaluation.segments if len(part.tags) > 1]
    assert crossed
    assert _cells(summary, "domain=math") == _cells(whole, "domain=math")
    assert any(f"| {name} |" in whole for name in crossed)
    assert not any(f"| {name} |" in summary for name in crossed)
    assert "corr(" not in summary


def test_acceptance_without_soft_labels_shows_a_dash(report: FitReport) -> None:
    cells = _cells(acceptance_markdown(report), "1")
    rate = report.evaluation.overall.acceptance.to_dict()["positions"][0]["conditional"]
    assert cells[2] == f"{100 * rate:.1f}"
    assert cells[3] == "–"
