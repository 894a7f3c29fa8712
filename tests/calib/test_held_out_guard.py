from __future__ import annotations

import logging

import numpy as np
import pytest

from calib.errors import InvalidInputError
from calib.held_out_guard import improves_held_out
from calib.sequential_temperature_scaling import SequentialTemperatureScaling
from calib.statuses import Refusal
from tests.calib.blocks import simulate


def test_r24_worse_on_held_out_rows_keeps_the_old_version(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "calib.held_out_guard"):
        verdict = improves_held_out(0.05, 0.08)
    assert not verdict.replace
    assert verdict.refusal is Refusal.NOT_BETTER
    assert "0.05" in verdict.reason
    assert "0.08" in verdict.reason
    assert "not_better" in caplog.text


def test_r24_a_fit_on_60_rows_that_improves_its_own_error_only() -> None:
    few, held_out = simulate(60, seed=12, gamma=3), simulate(20_000, seed=99, gamma=3)
    # The version in use is already right, so whatever 60 rows say can only be worse.
    many = simulate(50_000, seed=5, gamma=3)
    in_use = SequentialTemperatureScaling(minimum_rows=0).fit(many.logits, many.accepted)
    new = SequentialTemperatureScaling(minimum_rows=0).fit(few.logits, few.accepted)
    assert new.score(few.logits, few.accepted) > in_use.score(few.logits, few.accepted)
    before = -in_use.score(held_out.logits, held_out.accepted)
    after = -new.score(held_out.logits, held_out.accepted)
    assert not improves_held_out(before, after).replace


def test_a_better_version_replaces_the_old_one() -> None:
    verdict = improves_held_out(0.08, 0.05)
    assert verdict.replace
    assert verdict.refusal is None


@pytest.mark.parametrize(("after", "replace"), [(0.05, False), (0.046, False), (0.044, True)])
def test_equal_or_within_the_margin_is_not_better(after: float, replace: bool) -> None:
    assert improves_held_out(0.05, after, margin=0.005).replace is replace


@pytest.mark.parametrize(("after", "replace"), [(0.2322, False), (0.2314, True), (0.2, True)])
def test_a_log_loss_that_rises_keeps_the_old_version(after: float, replace: bool) -> None:
    verdict = improves_held_out(0.071, 0.069, log_losses=(0.2314, after))
    assert verdict.replace is replace
    assert ("rises from 0.2314 to 0.2322 nats" in verdict.reason) is not replace


def test_a_wrong_log_loss_is_named() -> None:
    with pytest.raises(InvalidInputError, match="log_losses"):
        improves_held_out(0.2, 0.1, log_losses=(0.3, float("nan")))


@pytest.mark.parametrize("bad", [-0.1, float("nan"), float("inf"), np.nan])
def test_wrong_errors_are_named(bad: float) -> None:
    with pytest.raises(InvalidInputError, match="after"):
        improves_held_out(0.05, bad)
