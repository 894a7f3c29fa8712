from __future__ import annotations

import itertools
import re
from typing import Any

from monitoring.reports.document_node import Node
from monitoring.reports.markup import Markup
from monitoring.reports.report_charts import error_chart, length_chart, temperature_chart

BASE, TOP, LEFT, RIGHT = 184.0, 8.0, 40.0, 354.0


def nodes(entries: list[dict[str, Any]]) -> list[Node]:
    return list(Node(entries))


def position(ece: float | None, low: float = 0.0, high: float = 0.1) -> dict[str, Any]:
    return {
        "debiased_ece": ece,
        "debiased_ece_low": low,
        "debiased_ece_high": high,
        "null_level": 0.02,
    }


def heights(chart: Markup, tag: str, class_: str) -> list[float]:
    found = re.findall(rf'<{tag} class="{class_}" [^>]*?c?y="([\d.]+)"', chart)
    return [float(y) for y in found]


def test_errors_are_drawn_to_scale_with_their_intervals() -> None:
    chart = error_chart(nodes([position(0.05), position(0.1)]), None, label="x")
    tops = heights(chart, "rect", "point raw")
    # The axis ends at 1.08 of the highest interval, 10 points.
    expected = [BASE - (BASE - TOP) * value / 10.8 - 3.0 for value in (5.0, 10.0)]
    assert [abs(a - b) < 0.01 for a, b in zip(tops, expected, strict=True)] == [True, True]
    assert chart.count("interval raw") == 2
    assert chart.count('class="level"') == 2


def test_positions_without_an_error_have_no_point() -> None:
    raw, served = nodes([position(None), position(0.1)]), nodes([position(0.1), position(None)])
    chart = error_chart(raw, served, label="x")
    assert (chart.count("point raw"), chart.count("point served")) == (1, 1)
    assert error_chart([], None, label="x").count("point") == 0


def group(raw: float, calibrated: float, realised: float) -> dict[str, float]:
    return {
        "raw": raw,
        "calibrated": calibrated,
        "realised": realised,
        "realised_low": realised - 0.1,
        "realised_high": realised + 0.1,
    }


def test_lengths_lie_on_the_diagonal_where_they_are_right() -> None:
    chart = length_chart(
        nodes([group(2.5, 2.0, 2.0), group(3.5, 3.0, 3.0)]), recalibrated=True, label="x"
    )
    points = re.findall(r'<circle class="point served" cx="([\d.]+)" cy="([\d.]+)"', chart)
    low, high = 1.8, 3.6  # 1.9 and 3.5 are the ends of what is known
    for (x, y), value in zip(points, (2.0, 3.0), strict=True):
        share = (value - low) / (high - low)
        assert abs(float(x) - (LEFT + share * (RIGHT - LEFT))) < 0.01
        assert abs(float(y) - (BASE - share * (BASE - TOP))) < 0.01
    assert chart.count("point raw") == 2
    alone = length_chart(nodes([group(2.5, 2.0, 2.0)]), recalibrated=False, label="x")
    assert "served" not in alone
    assert length_chart([], recalibrated=True, label="x") == ""


def test_temperatures_have_a_line_a_position_named_at_its_end() -> None:
    history = nodes(
        [
            {"revision": 0, "temperatures": [1.0, 1.0, 1.0]},
            {"revision": 1, "temperatures": [1.2, 1.21, None]},
            {"revision": 4, "temperatures": [1.3, 1.31, 1.32]},
        ]
    )
    chart = temperature_chart(history, label="x")
    assert len(re.findall(r'<path class="line trace-\d"', chart)) == 3
    ends = re.findall(r'<text class="end tick" x="[\d.]+" y="([\d.]+)">(\d)</text>', chart)
    assert [name for _, name in ends] == ["3", "2", "1"]
    ys = [float(y) for y, _ in ends]
    assert min(b - a for a, b in itertools.pairwise(ys)) >= 10.99  # names stay apart
    assert re.findall(r'class="x tick"[^>]*>([^<]+)<', chart) == ["0", "1", "4"]
    assert temperature_chart(history[:1], label="x") == ""
    assert temperature_chart([], label="x") == ""
