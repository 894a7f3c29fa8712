"""Settings of the loop: refused where they mean nothing."""

from __future__ import annotations

from typing import Any

import pytest

from calib.errors import ConfigurationError
from monitoring.loop_settings import LoopSettings


@pytest.mark.parametrize(
    "wrong",
    [
        {"act_threshold": 10.0},
        {"warn_threshold": float("nan")},
        {"tolerance": 0.5},
        {"design_effect": 0.9},
        {"alpha": 1.0},
        {"maximum_segments": 1},
        {"minimum_rows": 0},
        {"refit_seconds": -1.0},
        {"silence_seconds": float("inf")},
        {"fit_judged_share": 0.0},
        {"exploration_share": 0.06},
        {"exploration_share_on_warning": -0.001},
    ],
)
def test_values_out_of_range_are_refused_by_name(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(ConfigurationError, match=name):
        LoopSettings(**wrong)


@pytest.mark.parametrize(
    ("always", "on_warning", "automatic", "expected"),
    [
        (0.0, 0.005, True, 0.005),
        (0.001, 0.005, True, 0.005),
        (0.01, 0.005, True, 0.01),  # never lowered
        (0.0, 0.0, True, 0.0),  # switched off
        (0.0, 0.005, False, 0.0),  # a loop that only tells
    ],
)
def test_a_warning_raises_exploration_and_never_lowers_it(
    always: float, on_warning: float, automatic: bool, expected: float
) -> None:
    settings = LoopSettings(
        automatic=automatic,
        exploration_share=always,
        exploration_share_on_warning=on_warning,
    )
    assert settings.exploration(warned=True) == expected
    assert settings.raises_exploration(warned=True) == (expected > always)
    assert settings.exploration(warned=False) == always
    assert not settings.raises_exploration(warned=False)


def test_small_windows_are_fitted_by_likelihood_and_large_ones_by_choice() -> None:
    settings = LoopSettings()
    assert settings.method_for(9_999) == "survival"
    assert settings.method_for(10_000) == "auto"
    assert settings.to_dict()["act_threshold"] == 1e6
