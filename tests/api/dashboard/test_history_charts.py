"""Charts over time and rows, by hand: x from 46 to 548, y from 182 up to 22."""

from __future__ import annotations

from xml.etree import ElementTree

from api.dashboard.history_charts import (
    ErrorPoint,
    EvidencePoint,
    error_chart,
    evidence_chart,
    sparkline,
)


def shapes(svg: str, tag: str, class_: str) -> list[ElementTree.Element]:
    found = ElementTree.fromstring(svg).iter(tag)
    return [shape for shape in found if shape.get("class") == class_]


def texts(svg: str) -> list[str]:
    return ["".join(t.itertext()) for t in ElementTree.fromstring(svg).iter("text")]


def test_evidence_is_drawn_on_a_logarithmic_scale() -> None:
    points = [EvidencePoint(0, 0.0), EvidencePoint(500, 3.2), EvidencePoint(1000, 6.4)]
    svg = evidence_chart(points, warn=5.0, act=6.0, label="x")
    # The scale ends at 6.4 + 0.6 = 7 powers of ten; 160 pixels are high.
    (line,) = shapes(svg, "path", "line evidence")
    assert line.get("d") == "M46,182L297,108.86L548,35.71"
    (act,) = shapes(svg, "path", "level act")
    assert act.get("d") == "M46,44.86L548,44.86"  # 182 − 160·6/7
    assert "act 10⁶" in texts(svg)
    assert "warn 10⁵" in texts(svg)


def test_names_of_levels_stand_beside_each_other_where_the_axis_is_near() -> None:
    svg = evidence_chart(
        [EvidencePoint(0, 0.0), EvidencePoint(9, 59.4)], warn=5.0, act=6.0, label=""
    )
    (act,) = shapes(svg, "text", "level act")
    (warn,) = shapes(svg, "text", "level warn")
    assert act.get("y") == warn.get("y") == "162"  # 182 − 160·6/60 − 4
    assert (act.get("x"), warn.get("x")) == ("52", "130")


def test_levels_that_nobody_set_are_left_out() -> None:
    svg = evidence_chart(
        [EvidencePoint(1, 0.0), EvidencePoint(2, 1.0)], warn=None, act=None, label=""
    )
    assert shapes(svg, "path", "level act") == []


def test_errors_have_their_interval_and_mark_promotions() -> None:
    points = [
        ErrorPoint(1000.0, 0.02, 0.01, 0.03, revision=1),
        ErrorPoint(1300.0, 0.02, 0.01, 0.05, revision=2),
    ]
    svg = error_chart(points, label="x")
    # The scale ends at 0.05·1.08 = 0.054.
    (band,) = shapes(svg, "path", "band")
    assert band.get("d") == "M46,93.11L548,33.85L548,152.37L46,152.37Z"
    (change,) = shapes(svg, "path", "change")
    assert change.get("d") == "M297,22L297,182"
    assert {"r2", "00:16:40", "00:21:40", "4"} <= set(texts(svg))  # time in UTC, points


def test_what_came_at_once_is_drawn_over_rows() -> None:
    points = [ErrorPoint(5.0, 0.02, rows=rows) for rows in (0, 1000, 4000)]
    svg = error_chart(points, label="x")
    circles = shapes(svg, "circle", "point served")
    assert [circle.get("cx") for circle in circles] == ["46", "171.5", "548"]
    assert {"rows", "2,000"} <= set(texts(svg))


def test_one_moment_is_a_point() -> None:
    svg = error_chart([ErrorPoint(0.0, 0.0)], label="x")
    (point,) = shapes(svg, "circle", "point served")
    assert (point.get("cx"), point.get("cy")) == ("297", "182")


def test_a_small_line_needs_two_values() -> None:
    assert shapes(sparkline([1.0], limit=None, label="x"), "path", "line evidence") == []
    (line,) = shapes(sparkline([0.0, 10.0], limit=6.0, label="x"), "path", "line evidence")
    assert line.get("d") == "M2,22L94,3.82"  # 22 − 20·10/11
