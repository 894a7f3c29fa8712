"""What detectors promise: run length under the null, and delay after real drift, over many seeds.

Run length at A = 10³ counts in rows: E[N] ≥ A and P(N ≤ t) ≤ t/A, whatever the traffic does while
it is calibrated. The alarm row of the e-CUSUM is later than that of the e-detector in the proof,
so observed run lengths are longer than promised.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from monitoring.detectors.betting import BettingDetector, Stream
from monitoring.detectors.levels import DriftLevels
from monitoring.detectors.likelihood_ratio import Alternative, LikelihoodRatioDetector
from monitoring.detectors.observations import Observations
from monitoring.detectors.residuals import survival_residual
from tests.monitoring.traffic import heads_traffic, leaky_traffic, miscalibrated

pytestmark = [pytest.mark.statistical, pytest.mark.slow]

THRESHOLD = 1e3
ROWS = 4000  # four times the promised mean
SEEDS = 300


def stable(rng: np.random.Generator) -> Observations:
    return heads_traffic(rng, ROWS).served()


def trimmed_with_leak(rng: np.random.Generator) -> Observations:
    return leaky_traffic(rng, ROWS, threshold=0.4).served()


def drifting_but_calibrated(rng: np.random.Generator) -> Observations:
    """Traffic gets harder and easier, in waves and in steps, and is trimmed all the while."""
    row = np.arange(ROWS)
    center = 1.5 * np.sin(row / 300.0) + np.where(row > ROWS // 2, -1.0, 0.0)
    return heads_traffic(rng, ROWS, center=center, threshold=0.3).served()


TRAFFIC = [stable, trimmed_with_leak, drifting_but_calibrated]


def check_run_lengths(lengths: list[float]) -> None:
    """Observed alarms against t/A, and the mean (of run lengths cut at ROWS) against A."""
    observed = np.array(lengths)
    for rows in (128, 256, 512):
        allowed = rows / THRESHOLD
        error = np.sqrt(allowed * (1.0 - allowed) / len(observed))
        assert (observed < rows).mean() <= allowed + 2.0 * error
    assert observed.mean() >= THRESHOLD


@pytest.mark.parametrize("traffic", TRAFFIC)
def test_likelihood_ratio_run_length(
    traffic: Callable[[np.random.Generator], Observations],
) -> None:
    detector = LikelihoodRatioDetector(gamma=7, tolerance=0.0, threshold=THRESHOLD, minimum_rows=0)
    lengths = []
    for seed in range(SEEDS):
        rows = traffic(np.random.default_rng([1, seed]))
        alarm = detector.update(detector.start(), rows).verdict.alarm
        lengths.append(float(ROWS if alarm is None else alarm.row + 1))
    check_run_lengths(lengths)


@pytest.mark.parametrize("traffic", TRAFFIC)
def test_betting_run_length(traffic: Callable[[np.random.Generator], Observations]) -> None:
    streams = (Stream("survival residual", 0.0, 1.0),)
    detector = BettingDetector(streams, threshold=THRESHOLD, minimum_rows=0)
    lengths = []
    for seed in range(SEEDS):
        residual = survival_residual(traffic(np.random.default_rng([2, seed])))
        alarm = detector.update(detector.start(), residual[:, None]).verdict.alarm
        lengths.append(float(ROWS if alarm is None else alarm.row + 1))
    check_run_lengths(lengths)


def test_likelihood_ratio_with_one_sharp_alternative() -> None:
    """The least slack: one alternative, all weight on it, confidence on the cells' edges."""
    detector = LikelihoodRatioDetector(
        gamma=1,
        tolerance=0.0,
        threshold=THRESHOLD,
        minimum_rows=0,
        alternatives=(Alternative(1.0, 0.4, None, 1.0),),
    )
    lengths = []
    for seed in range(SEEDS):
        rng = np.random.default_rng([3, seed])
        accepted = (rng.random(ROWS) < 0.5).astype(np.uint8)
        rows = Observations(np.full((ROWS, 1), 0.5, np.float32), np.ones(ROWS, int), accepted)
        alarm = detector.update(detector.start(), rows).verdict.alarm
        lengths.append(float(ROWS if alarm is None else alarm.row + 1))
    check_run_lengths(lengths)


@pytest.mark.parametrize(("slope", "limit"), [(1.6, 250.0), (1.25, 2000.0)])
def test_mean_delay_at_the_act_level(slope: float, limit: float) -> None:
    """T × 1.6 costs over 1 % of throughput, T × 1.25 is an error of .04; 2,000 quiet rows first."""
    detector = LikelihoodRatioDetector(gamma=7, tolerance=0.01, threshold=1e6)
    delays, errors = [], []
    for seed in range(60):
        traffic = heads_traffic(np.random.default_rng([4, seed]), 2000 + 8000)
        rows = miscalibrated(traffic, 2000, slope=slope)
        alarm = detector.update(detector.start(), rows).verdict.alarm
        assert alarm is not None
        assert alarm.row >= 2000
        delays.append(alarm.row + 1 - 2000)
        errors.append(alarm.change_point.row - 2000)
    assert np.mean(delays) <= limit
    assert abs(float(np.median(errors))) <= 150


def test_harmless_change_stays_silent_at_both_levels() -> None:
    """A tolerable shift at act; calibrated traffic that changes at warn and act."""
    levels = DriftLevels.standard(7)
    for seed in range(6):
        rng = np.random.default_rng([5, seed])
        tolerable = heads_traffic(rng, 100_000).served(1.0, -0.03)
        assert levels.act.update(levels.act.start(), tolerable).verdict.alarm is None
        center = np.where(np.arange(50_000) < 25_000, 0.0, -1.2)
        benign = heads_traffic(rng, 50_000, center=center, threshold=0.3).served()
        assert levels.update(levels.start(), benign).verdict.level is None
