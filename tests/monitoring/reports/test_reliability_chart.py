from __future__ import annotations

import re
from xml.etree import ElementTree

from monitoring.reports.document_node import Node
from monitoring.reports.markup import Markup
from monitoring.reports.reliability_chart import Bin, bins_of, reliability_chart

LEFT, SIDE, TOP = 26.0, 158.0, 6.0


def made(lower: float, predicted: float, label: float, count: int = 100) -> Bin:
    return Bin(lower, lower + 0.2, predicted, label, max(0.0, label - 0.1), label + 0.1, count)


def circles(chart: Markup) -> list[tuple[float, float]]:
    found = re.findall(r'<circle class="[^"]*" cx="([\d.]+)" cy="([\d.]+)"', chart)
    return [(float(x), float(y)) for x, y in found]


def test_r06_empty_bins_are_skipped_and_edges_are_kept() -> None:
    """c = .2, .5, .9 with 15 bins: three are there, at their own edges."""
    entry = {"mean_prediction": 0.5, "mean_label": 1.0, "count": 1}
    bins: list[object] = [None] * 15
    bins[3], bins[7], bins[13] = entry, entry | {"count": 0}, entry
    found = bins_of(Node({"bins": bins}))
    assert [(round(b.lower * 15), round(b.upper * 15)) for b in found] == [(3, 4), (13, 14)]
    assert (found[0].low, found[0].high) == (1.0, 1.0)
    assert bins_of(Node({})) == bins_of(Node(None)) == []


def test_points_are_where_their_values_are() -> None:
    chart = reliability_chart([], [made(0.2, 0.25, 0.5)], label="x")
    (point,) = circles(chart)
    assert point == (LEFT + 0.25 * SIDE, TOP + 0.5 * SIDE)


def test_bins_of_few_rows_are_pale_and_break_lines_and_bands() -> None:
    bins = [
        made(0.0, 0.1, 0.1),
        made(0.2, 0.3, 0.2),
        made(0.4, 0.5, 0.9, count=29),
        made(0.6, 0.7, 0.6),
    ]
    chart = reliability_chart([], bins, label="x")
    assert len(circles(chart)) == 4
    assert chart.count("point served few") == 1
    assert chart.count('class="line served"') == 2
    assert chart.count('class="band served"') == 1
    assert chart.count('class="interval served"') == 1  # a run of one bin has no width


def test_raw_confidence_alone_is_not_called_served() -> None:
    chart = reliability_chart([made(0.2, 0.3, 0.2)], None, label="x")
    assert '<circle class="point raw"' in chart  # filled, as whatever is served
    assert " served" not in chart
    assert chart.count('class="point raw"') == chart.count('class="bar raw"') == 1


def test_both_sides_differ_in_shape_too() -> None:
    chart = reliability_chart([made(0.2, 0.3, 0.2)], [made(0.4, 0.5, 0.5)], label="x")
    assert '<rect class="point raw"' in chart
    assert '<circle class="point served"' in chart
    assert chart.count('class="line raw"') == 2  # through the points, and around the histogram


def test_the_histogram_falls_to_the_ground_between_bins() -> None:
    raw = [made(0.0, 0.1, 0.1), made(0.6, 0.7, 0.7)]
    chart = reliability_chart(raw, [], label="x")
    assert ElementTree.fromstring(chart) is not None
    assert chart.count('class="line raw"') == 1 + 2  # one line, two outlines


def test_the_band_and_the_bars_stand_at_known_pixels() -> None:
    """The plot is 158 wide from x = 26 and y = 6; the strip below it ends at 207, 34 high."""
    bins = [made(0.0, 0.1, 0.5, 50), made(0.2, 0.3, 0.5, 100)]
    root = ElementTree.fromstring(reliability_chart([], bins, label="x"))
    (band,) = [path for path in root.iter("path") if path.get("class") == "band served"]
    assert band.get("d") == "M41.8,69.2L73.4,69.2L73.4,100.8L41.8,100.8Z"
    small, large = [rect for rect in root.iter("rect") if rect.get("class") == "bar served"]
    assert (large.get("y"), large.get("height")) == ("173", "34")
    assert (small.get("y"), small.get("height")) == ("190", "17")


def test_it_can_be_read_without_sight() -> None:
    chart = reliability_chart([made(0.2, 0.25, 0.3)], None, label="Position 1 <&>")
    root = ElementTree.fromstring(chart)
    assert (root.get("role"), root.get("aria-label")) == ("img", "Position 1 <&>")
    (title,) = [t for t in root.iter("title") if "predicted" in (t.text or "")]
    assert title.text == "raw: predicted 0.250, observed 0.300 [0.200, 0.400], 100 rows"


def test_a_position_without_rows_is_an_empty_panel() -> None:
    assert 'class="diagonal"' in reliability_chart([], None, label="x")
