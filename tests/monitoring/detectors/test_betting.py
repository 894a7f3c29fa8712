"""Stakes by hand; what the weaker null tolerates and what it does not."""

from __future__ import annotations

import json

import numpy as np
import pytest

from calib.errors import ConfigurationError, FormatError, RecordError
from monitoring.detectors.betting import STAKES, BettingDetector, Stream
from monitoring.detectors.e_cusum import BLOCK_ROWS, CusumState
from monitoring.detectors.residuals import survival_residual
from monitoring.detectors.verdict import Verdict
from tests.monitoring.traffic import heads_traffic, leaky_traffic, miscalibrated

ONE = (Stream("survival residual", 0.01, 1.0),)


def judge(detector: BettingDetector, residuals: np.ndarray) -> Verdict:
    return detector.update(detector.start(), residuals).verdict


def test_evidence_by_hand() -> None:
    residuals = np.full((BLOCK_ROWS, 1), 0.25)
    found = judge(BettingDetector(ONE, threshold=1e9), residuals)
    wealth = [(1 + stake * side) ** BLOCK_ROWS for side in (0.24, -0.26) for stake in STAKES]
    assert found.log_evidence == pytest.approx(np.log(np.mean(wealth) * BLOCK_ROWS), abs=1e-3)
    assert found.leading == "survival residual above by stake 0.8"


@pytest.mark.parametrize("mean", [-0.1, 0.1])
def test_both_sides_are_found(mean: float) -> None:
    rng = np.random.default_rng(0)
    residuals = rng.uniform(-0.5, 0.5, (4000, 1))
    residuals[2000:] += mean
    found = judge(BettingDetector(ONE, threshold=1e6), residuals)
    assert found.alarm is not None
    assert 2000 <= found.alarm.row < 3500
    assert abs(found.alarm.change_point.row - 2000) < 300
    assert ("below" if mean < 0 else "above") in found.alarm.leading


def test_mean_within_the_tolerance_is_tolerated() -> None:
    rng = np.random.default_rng(1)
    residuals = rng.uniform(-0.5, 0.5, (200_000, 1)) + 0.009
    assert judge(BettingDetector(ONE, threshold=1e5), residuals).alarm is None


def test_m7_survival_residual_stays_silent() -> None:
    residual = survival_residual(leaky_traffic(np.random.default_rng(3), 60_000).served())
    assert judge(BettingDetector(ONE, threshold=1e5), residual[:, None]).alarm is None


def test_drift_of_survival_is_found() -> None:
    rows = miscalibrated(heads_traffic(np.random.default_rng(4), 8000), 2000, slope=1.6)
    detector = BettingDetector(ONE, threshold=1e6)
    found = detector.update(detector.start(), [survival_residual(rows)]).verdict
    assert found.alarm is not None
    assert found.alarm.row >= 2000


def test_restart_and_batches_change_nothing() -> None:
    rng = np.random.default_rng(2)
    streams = (Stream("a", 0.01, 0.7), Stream("b", 0.02, 0.3))
    detector = BettingDetector(streams, threshold=1e6)
    residuals = rng.uniform(-0.8, 0.8, (9000, 2))
    residuals[rng.random((9000, 2)) < 0.3] = np.nan  # sits the row out
    residuals[5000:, 1] += 0.15
    residuals = np.clip(residuals, -1.0, 1.0)
    whole = detector.update(detector.start(), residuals)
    state = detector.start()
    for start in range(0, 9000, 997):
        state = CusumState.from_dict(json.loads(json.dumps(state.to_dict())))
        state = detector.update(state, residuals[start : start + 997]).state
    assert state.to_dict() == whole.state.to_dict()
    assert whole.verdict.alarm is not None
    joined = detector.summarise(residuals[:4480]).later(detector.summarise(residuals[4480:8960]))
    expected = detector.update(detector.start(), residuals[:8960]).state
    merged = detector.append(detector.start(), joined).state
    assert merged.log_values.tolist() == expected.log_values.tolist()


def test_inputs_are_checked() -> None:
    detector = BettingDetector(ONE, threshold=1e6)
    with pytest.raises(RecordError, match="residuals"):
        judge(detector, np.zeros((3, 2)))
    with pytest.raises(RecordError, match="residuals"):
        judge(detector, np.full((3, 1), 1.01))
    with pytest.raises(ConfigurationError, match="tolerance"):
        BettingDetector((Stream("a", 0.2, 1.0),), 1e6)
    with pytest.raises(ConfigurationError, match="weights"):
        BettingDetector((Stream("a", 0.1, 1.2),), 1e6)
    with pytest.raises(ConfigurationError, match="whole blocks"):
        detector.summarise(np.zeros((5, 1)))
    with pytest.raises(FormatError, match="other settings"):
        BettingDetector(ONE, threshold=1e5).update(detector.start(), np.zeros((3, 1)))
