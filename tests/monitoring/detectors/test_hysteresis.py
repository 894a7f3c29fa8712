"""A switch that does not flap."""

from __future__ import annotations

import math

import pytest

from calib.errors import ConfigurationError
from monitoring.detectors.hysteresis import Hysteresis


def switches(values: list[float], switch: Hysteresis) -> int:
    on, changes = False, 0
    for value in values:
        new = switch.update(on, value)
        changes += new != on
        on = new
    return changes


def test_r62_signal_around_the_switch_point() -> None:
    assert switches([1.9, 2.1] * 50, Hysteresis(enter=2.0, leave=1.8)) == 1
    assert switches([1.9, 2.1] * 50, Hysteresis(enter=2.2, leave=1.8)) == 0


def test_switches_back_well_below() -> None:
    assert switches([2.0, 1.81, 1.8, 1.9, 2.0], Hysteresis(enter=2.0, leave=1.8)) == 3


def test_not_a_number_changes_nothing() -> None:
    switch = Hysteresis(enter=2.0, leave=1.0)
    assert switch.update(True, math.nan)
    assert not switch.update(False, math.nan)


def test_levels_must_differ() -> None:
    with pytest.raises(ConfigurationError, match="leave"):
        Hysteresis(enter=1.0, leave=1.0)
