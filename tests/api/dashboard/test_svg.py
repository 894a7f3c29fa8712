from __future__ import annotations

from markupsafe import Markup

from api.dashboard.svg import LinearScale, drawing, element, number, path_data, ticks


def test_coordinates_are_short() -> None:
    assert [number(v) for v in (0.0, -0.001, 1.0, 2.5, 100.126)] == [
        "0",
        "0",
        "1",
        "2.5",
        "100.13",
    ]


def test_text_and_attributes_are_escaped() -> None:
    made = element("text", '<b>&"', class_='a"b', x=1.5, aria_label="<i>", title=None)
    assert made == (
        '<text class="a&#34;b" x="1.5" aria-label="&lt;i&gt;">&lt;b&gt;&amp;&#34;</text>'
    )
    # What is markup already stays so.
    assert element("g", Markup("<path/>")) == "<g><path/></g>"


def test_a_drawing_is_one_image_with_a_description() -> None:
    made = drawing(10, 20, Markup("<path/>"), label='3 < 4 "points"')
    assert made.startswith('<svg class="chart" viewBox="0 0 10 20" role="img" aria-label="3 &lt; 4')


def test_paths_go_through_their_points() -> None:
    assert path_data([]) == ""
    assert path_data([(0, 0), (10, 2.25), (3, 4)]) == "M0,0L10,2.25L3,4"


def test_scales_are_linear_and_end_at_their_ends() -> None:
    up = LinearScale(0.0, 1.0, 100.0, 0.0)  # a y axis: larger values are higher
    assert [up(v) for v in (0.0, 0.25, 1.0, 1.7, -3.0)] == [100.0, 75.0, 0.0, 0.0, 100.0]
    assert LinearScale(5.0, 5.0, 0.0, 10.0)(5.0) == 5.0  # one moment stands in the middle


def test_ticks_are_round() -> None:
    assert list(ticks(0.0, 0.057, 4)) == [0.0, 0.02, 0.04]
    assert list(ticks(400.0, 24_000.0, 4)) == [10_000.0, 20_000.0]
    assert list(ticks(-1.0, 7.8, 5)) == [0.0, 2.0, 4.0, 6.0]
    assert list(ticks(3.0, 3.0, 4)) == [3.0]
