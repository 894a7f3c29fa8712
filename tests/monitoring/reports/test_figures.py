"""Figures are looked at by people; what a program can see is checked here."""

from __future__ import annotations

import io
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image

from calib.calibration import Calibration
from calib.calibration_report import ViewReport
from monitoring.reports.evaluation_report import Comparison, Judgement, evaluation_report
from monitoring.reports.figures import (
    domain_error_figure,
    note_figure,
    png_bytes,
    reliability_figure,
    save_figure,
)
from monitoring.reports.fit_report import FitReport
from tests.support.telemetry import synthetic_records


def comparison(gamma: int, rows: int = 400) -> Comparison:
    half = Calibration.from_temperatures([1.5] * gamma, gamma=gamma)
    return evaluation_report(synthetic_records(rows, gamma=gamma), half).overall


def with_large_numbers(source: Comparison) -> Comparison:
    """The same with two-digit errors everywhere, the widest texts a panel can show."""

    def widened(judgement: Judgement) -> Judgement:
        view = judgement.report.survival
        wide = [replace(metrics, ece=0.287, null_level=0.229) for metrics in view]
        return replace(judgement, report=replace(judgement.report, survival=ViewReport.of(wide)))

    return replace(source, raw=widened(source.raw), calibrated=widened(source.calibrated))


def texts(figure: Figure) -> list[tuple[str, Any]]:
    """Every visible text with its box in pixels."""
    figure.canvas.draw()
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    found = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text()]
    return [(text.get_text(), text.get_window_extent(renderer)) for text in found]


def assert_no_overlap(figure: Figure) -> None:
    boxes = texts(figure)
    width, height = figure.canvas.get_width_height()
    for text, box in boxes:
        inside = box.x0 >= 0 and box.y0 >= 0 and box.x1 <= width and box.y1 <= height
        assert inside, f"{text!r} leaves the figure"
    clashes = [
        (first, second)
        for (first, a), (second, b) in combinations(boxes, 2)
        if a.shrunk(0.96, 0.8).overlaps(b.shrunk(0.96, 0.8))
    ]
    assert clashes == []


@pytest.mark.parametrize("gamma", [1, 2, 4, 7])
def test_texts_neither_overlap_nor_leave_the_figure(gamma: int) -> None:
    figure = reliability_figure(with_large_numbers(comparison(gamma)), title="A title")
    assert_no_overlap(figure)


def test_one_panel_and_one_histogram_per_position(fitted: FitReport) -> None:
    figure = reliability_figure(fitted.evaluation.overall)
    assert len(figure.axes) == 2 * 7 + 1  # and the legend's cell
    rows = {round(axes.get_position().y0, 3) for axes in figure.axes[:14:2]}
    assert len(rows) == 2
    sizes = {
        (round(axes.get_position().width, 6), round(axes.get_position().height, 6))
        for axes in figure.axes[:14:2]
    }
    assert len(sizes) == 1
    assert_no_overlap(figure)


@pytest.mark.slow
def test_panels_state_errors_and_auc(fitted: FitReport) -> None:
    overall = fitted.evaluation.overall
    shown = [text for text, _ in texts(reliability_figure(overall))]
    for raw, calibrated in zip(
        overall.raw.report.survival, overall.calibrated.report.survival, strict=True
    ):
        assert raw.ece is not None
        assert calibrated.ece is not None
        assert calibrated.null_level is not None
        assert f"ECE {100 * raw.ece:.1f} → {100 * calibrated.ece:.1f} %" in shown
        assert f"perfect {100 * calibrated.null_level:.1f}" in shown
        assert f"AUC {calibrated.auc:.3f}" in shown


@pytest.mark.slow
def test_conditional_view_and_missing_numbers() -> None:
    figure = reliability_figure(comparison(7, rows=60), view="conditional")
    shown = [text for text, _ in texts(figure)]
    assert "observed acceptance" in shown
    assert_no_overlap(figure)


def test_no_rows_at_all_still_draws() -> None:
    records = synthetic_records(50, gamma=2).select([])
    empty = evaluation_report(records, Calibration.identity(2)).overall
    assert_no_overlap(reliability_figure(empty))
    domain_error_figure(empty, "nothing").canvas.draw()


def test_domain_figure(fitted: FitReport) -> None:
    part = fitted.evaluation.segments_by("domain")[0]
    assert part.comparison is not None
    figure = domain_error_figure(part.comparison, "chat")
    shown = [text for text, _ in texts(figure)]
    assert f"chat ({part.rows:,} blocks)" in shown
    assert {"raw", "calibrated", "perfect model's ECE"} <= set(shown)
    assert_no_overlap(figure)


@pytest.mark.parametrize("ending", ["png", "pdf", "svg"])
def test_files_are_written_whole_and_repeat_to_the_byte(tmp_path: Path, ending: str) -> None:
    figure = reliability_figure(comparison(2))
    first, second = tmp_path / f"a.{ending}", tmp_path / f"b.{ending}"
    save_figure(figure, first)
    save_figure(figure, second)
    assert first.stat().st_size > 5000
    if ending != "svg":  # SVG draws ids at random
        assert first.read_bytes() == second.read_bytes()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_note_takes_the_place_of_a_missing_figure() -> None:
    encoded = png_bytes(note_figure("no rows: $x_{"), dpi=100)
    with Image.open(io.BytesIO(encoded)) as picture:
        assert (picture.format, picture.size) == ("PNG", (400, 100))
        assert len(picture.convert("L").getcolors() or ()) > 2  # something is written on it
    assert png_bytes(note_figure("no rows: $x_{"), dpi=100) == encoded
