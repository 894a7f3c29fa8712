from __future__ import annotations

import pytest

from monitoring.asked_exploration import asked_exploration


@pytest.mark.parametrize(
    ("usual", "on_warning", "raised", "expected"),
    [
        (0.0, 0.005, True, 0.005),
        (0.01, 0.005, True, 0.01),  # never lowered
        (0.0, 0.005, False, 0.0),
        (0.002, 0.0, True, 0.002),  # switched off
    ],
)
def test_the_larger_share_counts_while_raised(
    usual: float, on_warning: float, raised: bool, expected: float
) -> None:
    assert asked_exploration(usual, on_warning, raised=raised) == expected
