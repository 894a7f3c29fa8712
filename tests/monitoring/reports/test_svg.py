from __future__ import annotations

import pytest

from monitoring.reports.svg import LinearScale, drawing, path_data, text_mark, ticks


def test_scale() -> None:
    scale = LinearScale(0.0, 2.0, 10.0, 110.0)
    assert [scale(value) for value in (0.0, 0.5, 2.0, -1.0, 9.0)] == [10, 35, 110, 10, 110]
    down = LinearScale(0.0, 1.0, 100.0, 0.0)
    assert down(0.25) == 75.0
    assert LinearScale(1.0, 1.0, 0.0, 10.0)(1.0) == 5.0


def test_paths() -> None:
    assert path_data([(0, 0), (1.004, 2)]) == "M0,0L1,2"
    assert path_data([(0, 0), (1, 2)], closed=True) == "M0,0L1,2Z"
    assert path_data([]) == ""


@pytest.mark.parametrize(
    ("low", "high", "most", "expected"),
    [
        (0.0, 10.0, 5, [0, 2, 4, 6, 8, 10]),
        (0.9, 1.6, 4, [1.0, 1.2, 1.4, 1.6]),
        (0.0, 0.034, 4, [0.0, 0.01, 0.02, 0.03]),
        (3.0, 3.0, 4, [3.0]),
    ],
)
def test_ticks(low: float, high: float, most: int, expected: list[float]) -> None:
    assert list(ticks(low, high, most)) == expected


def test_a_drawing_is_an_image_with_a_description() -> None:
    made = drawing(10, 20, text_mark(1, 2, "<", "tick"), label='a "b"', class_="plot")
    assert made == (
        '<svg class="plot" viewBox="0 0 10 20" role="img" aria-label="a &quot;b&quot;">'
        '<text class="tick" x="1" y="2">&lt;</text></svg>'
    )
