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
    ],
)
def test_values_out_of_range_are_refused_by_name(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(ConfigurationError, match=name):
        LoopSettings(**wrong)


def test_small_windows_are_fitted_by_likelihood_and_large_ones_by_choice() -> None:
    settings = LoopSettings()
    assert settings.method_for(9_999) == "survival"
    assert settings.method_for(10_000) == "auto"
    assert settings.to_dict()["act_threshold"] == 1e6
