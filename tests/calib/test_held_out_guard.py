from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from calib.calibration import Calibration
from calib.conditional_likelihood import ConditionalLikelihood
from calib.errors import InvalidInputError
from calib.evaluation import evaluate
from calib.held_out_guard import improves_held_out, improves_survival
from calib.records import AcceptanceRecords
from calib.sequential_temperature_scaling import SequentialTemperatureScaling
from calib.statuses import Refusal
from tests.calib.blocks import simulate
from tests.support.leaky_generator import simulate_leaky, trimmed_lengths


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


def trimmed(rows: int, seed: int) -> AcceptanceRecords:
    """A log that a scheduler trimmed; raw survival is off by .02."""
    blocks = simulate_leaky(rows, seed, partial=0.09)
    logits = np.float32(0.8) * blocks.logits
    return replace(blocks, logits=logits).records(trimmed_lengths(logits, 128))


def test_a_better_fit_is_seen_in_a_log_that_was_trimmed() -> None:
    """In a plain mean the luck of few deep rows decides, and refuses one fit of two."""
    accepted, plain = [], []
    for seed in range(8):
        fit, judged = trimmed(3000, seed), trimmed(3000, 100 + seed)
        temperatures = ConditionalLikelihood(minimum_rows=0).fit_records(fit).temperatures_
        reports = [
            evaluate(judged, Calibration.from_temperatures(numbers, gamma=7))
            for numbers in (np.ones(7), temperatures)
        ]
        verdict = improves_survival(*reports)
        assert verdict is not None
        accepted.append(verdict.replace)
        before, after = (report.survival.mean.ece or 0.0 for report in reports)
        plain.append(after < before)
    assert sum(accepted) >= 7
    assert sum(plain) <= 6


@dataclass(frozen=True)
class Claims:
    """The same survival for every row."""

    values: tuple[float, float]

    def survival(self, confidence_logits: Any, /) -> Any:
        return np.tile(np.float32(self.values), (len(confidence_logits), 1))

    def conditional(self, confidence_logits: Any, /) -> Any:
        return self.survival(confidence_logits)


def test_positions_count_by_their_rows() -> None:
    verified = np.array([1] * 98 + [2] * 2)
    accepted = np.array([1] * 49 + [0] * 49 + [2] * 2)
    columns = {
        "confidence_logits": np.zeros((100, 2), dtype=np.float32),
        "verified": verified,
        "accepted": accepted,
    }
    records = AcceptanceRecords.from_columns(2, columns)
    old = evaluate(records, Claims((0.5, 0.25)))
    new = evaluate(records, Claims((0.6, 0.99)))
    # 51 of 100 reach position 1, and 2 of 2 position 2.
    assert old.survival.mean.ece == pytest.approx((0.01 + 0.75) / 2, abs=1e-6)
    assert new.survival.mean.ece == pytest.approx((0.09 + 0.01) / 2, abs=1e-6)
    verdict = improves_survival(old, new, against="against revision 3")
    assert verdict is not None
    assert not verdict.replace
    gap, other = (100 * 0.01 + 2 * 0.75) / 102, (100 * 0.09 + 2 * 0.01) / 102
    assert f"ECE against revision 3 goes from {gap:.4g} to {other:.4g}" in verdict.reason


def test_nothing_measured_is_no_verdict() -> None:
    columns = {"confidence_logits": [[0.5]], "verified": [0], "accepted": [0]}
    report = evaluate(AcceptanceRecords.from_columns(1, columns), Calibration.identity(1))
    assert improves_survival(report, report) is None
