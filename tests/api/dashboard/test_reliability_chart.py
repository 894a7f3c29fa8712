"""Known bins, known pixels: the plot is 164 wide, begins at x = 32 and ends at y = 8."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from api.dashboard.reliability_chart import FEW_ROWS, reliability_panel
from api.dashboard.report_document import Bin


def bin_of(index: int, label: float, count: int, *, half: float = 0.1) -> Bin:
    """The bin in [index/4, (index + 1)/4], predicted in its middle."""
    low, high = max(0.0, label - half), min(1.0, label + half)
    return Bin(index / 4, (index + 1) / 4, (index + 0.5) / 4, label, low, high, count)


def shapes(svg: str, tag: str, class_: str) -> list[ElementTree.Element]:
    found = ElementTree.fromstring(svg).iter(tag)
    return [shape for shape in found if shape.get("class") == class_]


def test_points_stand_where_their_bins_say() -> None:
    calibrated = [bin_of(0, 0.0, 100), bin_of(1, 0.5, 100), bin_of(3, 1.0, 100)]
    svg = reliability_panel([bin_of(1, 0.25, 100)], calibrated, label="x")
    circles = shapes(svg, "circle", "point calibrated")
    assert [(c.get("cx"), c.get("cy")) for c in circles] == [
        ("52.5", "172"),  # 32 + 164/8; the bottom
        ("93.5", "90"),  # 32 + 164·3/8; the middle
        ("175.5", "8"),  # 32 + 164·7/8; the top
    ]
    (square,) = shapes(svg, "rect", "point raw")
    assert (square.get("x"), square.get("y")) == ("90.5", "128")  # 93.5 − 3, 172 − 41 − 3


def test_the_band_runs_along_the_interval() -> None:
    svg = reliability_panel([], [bin_of(0, 0.5, 100), bin_of(1, 0.5, 100)], label="x")
    # Without calibrated numbers raw confidence has none either: an empty list means all is served.
    (band,) = shapes(reliability_panel([bin_of(0, 0.5, 99)], [], label="x"), "path", "interval")
    assert band.get("d") == "M52.5,73.6L52.5,106.4"  # one bin: 0.6 and 0.4
    (band,) = shapes(svg, "path", "band")
    assert band.get("d") == "M52.5,73.6L93.5,73.6L93.5,106.4L52.5,106.4Z"


def test_thin_bins_are_pale_and_break_the_line() -> None:
    bins = [
        bin_of(0, 0.1, 99),
        bin_of(1, 0.4, FEW_ROWS - 1),
        bin_of(2, 0.6, 99),
        bin_of(3, 0.9, 99),
    ]
    svg = reliability_panel(bins, bins, label="x")
    assert len(shapes(svg, "circle", "point calibrated few")) == 1
    lines = [line.get("d") for line in shapes(svg, "path", "line calibrated")]
    assert [len(re.findall("[ML]", line or "")) for line in lines] == [1, 2]


def test_the_histogram_reaches_its_ground_and_its_largest_bin() -> None:
    svg = reliability_panel([], [bin_of(0, 0.1, 50), bin_of(2, 0.5, 100)], label="x")
    small, large = shapes(svg, "rect", "bar calibrated")
    assert (large.get("y"), large.get("height")) == ("180", "32")
    assert (small.get("y"), small.get("height")) == ("196", "16")
    assert (small.get("x"), small.get("width")) == ("32.5", "40")


def test_the_outline_of_raw_rows_falls_where_bins_are_missing() -> None:
    raw = [bin_of(0, 0.1, 100), bin_of(2, 0.5, 50)]
    svg = reliability_panel(raw, [bin_of(0, 0.1, 10)], label="x")
    outline = shapes(svg, "path", "line raw")[-1].get("d")
    assert outline == (
        "M32,212L32,180L73,180L73,212L114,212L114,196L155,196L155,212"  # down, along, up again
    )


def test_it_can_be_read_without_sight() -> None:
    svg = reliability_panel([bin_of(1, 0.25, 100)], [], label="Position 1 <&>")
    root = ElementTree.fromstring(svg)
    assert (root.get("role"), root.get("aria-label")) == ("img", "Position 1 <&>")
    (title,) = [t for t in root.iter("title") if "predicted" in (t.text or "")]
    assert title.text == "raw: predicted 0.38, observed 0.25 [0.15, 0.35], 100 rows"


def test_a_position_without_rows_is_an_empty_panel() -> None:
    assert shapes(reliability_panel([], [], label="x"), "path", "diagonal")
