"""e-values by hand and for every cell; what alarms, what must not, and where."""

from __future__ import annotations

import doctest
import json
from typing import Any

import numpy as np
import pytest
from scipy.special import expit, logit

from calib.errors import ConfigurationError, FormatError, RecordError
from monitoring.detectors import likelihood_ratio
from monitoring.detectors.e_cusum import BLOCK_ROWS, CusumState
from monitoring.detectors.label_counts import CELLS
from monitoring.detectors.likelihood_ratio import (
    Alternative,
    LikelihoodRatioDetector,
    log_factor_table,
    standard_alternatives,
    update_both,
)
from monitoring.detectors.observations import Observations
from monitoring.detectors.verdict import Verdict, VerdictStatus
from tests.monitoring.traffic import heads_traffic, leaky_traffic, miscalibrated

ROUNDING = 2.0**-16


def detector(**options: Any) -> LikelihoodRatioDetector:
    settings = {"gamma": 7, "tolerance": 0.01, "threshold": 1e6} | options
    return LikelihoodRatioDetector(**settings)


def judge(chosen: LikelihoodRatioDetector, rows: Observations) -> Verdict:
    return chosen.update(chosen.start(), rows).verdict


def coins(rng: np.random.Generator, said: Any, truth: Any, rows: int) -> Observations:
    """One position: the champion says ``said``, the truth is ``truth``."""
    accepted = (rng.random(rows) < truth).astype(np.uint8)
    confidence = np.broadcast_to(np.float32(said), rows)[:, None]
    return Observations(confidence, np.ones(rows, np.uint8), accepted)


def test_factor_by_hand() -> None:
    # c in [.5, .5 + 1/2048): q = σ(.9 + logit(.500244)) above the band ends at .510488.
    table = log_factor_table(np.array([1.0]), np.array([0.9]), 0.01)
    claimed = float(expit(0.9 + logit(0.5 + 0.5 / CELLS)))
    nearest = 0.5 + 1 / CELLS + 0.01
    row = 2 * (CELLS // 2)
    assert table[row + 1, 0] == pytest.approx(np.log(claimed / nearest), abs=ROUNDING)
    assert table[row, 0] == pytest.approx(np.log((1 - claimed) / (1 - nearest)), abs=ROUNDING)


@pytest.mark.parametrize("tolerance", [0.0, 0.003, 0.01, 0.1])
def test_every_cell_holds_valid_e_values(tolerance: float) -> None:
    """Mean at most 1 for every c in the cell and every truth in its band."""
    chosen = standard_alternatives(1)
    table = log_factor_table(
        np.array([a.slope for a in chosen]), np.array([a.shift for a in chosen]), tolerance
    )
    rejected, accepted = np.exp(table[0::2]), np.exp(table[1::2])
    edges = np.arange(CELLS + 1) / CELLS
    for truth in (
        np.maximum(edges[:-1] - tolerance, 0.0),
        (edges[:-1] + edges[1:]) / 2.0,
        np.minimum(edges[1:] + tolerance, 1.0),
    ):
        mean = truth[:, None] * accepted + (1.0 - truth[:, None]) * rejected
        assert mean.max() <= 1.0 + 1e-12


def test_no_bet_inside_the_band() -> None:
    table = log_factor_table(np.array([1.0]), np.array([0.02]), 0.01)  # moves c by .005 at most
    assert (table == 0.0).all()


def test_block_sums_match_a_loop_over_labels() -> None:
    rng = np.random.default_rng(2)
    rows = heads_traffic(rng, 3 * BLOCK_ROWS, threshold=0.4).served(1.3)
    chosen = detector()
    alternatives = [*chosen._alternatives]
    tables = log_factor_table(
        np.array([a.slope for a in alternatives]), np.array([a.shift for a in alternatives]), 0.01
    )
    expected = np.zeros((3, len(alternatives)))
    for row in range(len(rows)):
        for k in range(min(int(rows.accepted[row]) + 1, int(rows.verified[row]))):
            cell = min(int(np.float64(rows.conditional[row, k]) * CELLS), CELLS - 1)
            entry = 2 * cell + int(k < rows.accepted[row])
            for m, alternative in enumerate(alternatives):
                if alternative.position in (None, k + 1):
                    expected[row // BLOCK_ROWS, m] += tables[entry, m]
    [(count, sums)] = list(chosen._block_sums(rows, 0))
    assert count == 3 * BLOCK_ROWS
    assert sums.tolist() == expected.tolist()  # exact


def states(found: list[CusumState]) -> list[dict[str, Any]]:
    return [state.to_dict() for state in found]


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 45, 400])
def test_many_streams_at_once_are_each_stream_by_itself(batch: int) -> None:
    """Unequal shares, one stream that drifts into an alarm, streams that begin late."""
    rng = np.random.default_rng(4)
    rows = heads_traffic(rng, 2000, threshold=0.4)
    observed = rows.served(np.where(np.arange(2000) > 900, 1.8, 1.0)[:, None])
    streams = rng.choice(4, 2000, p=[0.7, 0.2, 0.09, 0.01])
    streams[:500] = np.minimum(streams[:500], 1)
    chosen = detector()
    together = [chosen.start() for _ in range(4)]
    alone = list(together)
    for start in range(0, 2000, batch):
        part = np.arange(start, min(start + batch, 2000))
        own = streams[part]
        together = chosen.update_many(together, observed.select(part), own)
        for stream in np.unique(own).tolist():
            mine = observed.select(part[own == stream])
            alone[stream] = chosen.update(alone[stream], mine).state
    assert states(together) == states(alone)
    assert [state.alarm is not None for state in together] == [True, True, False, False]


def test_two_detectors_of_one_stream_share_its_counts() -> None:
    rows = heads_traffic(np.random.default_rng(5), 20_000).served(1.1)
    first, second = detector(tolerance=0.003), detector(tolerance=0.01)
    before, other = first.start(), second.start()
    for part in (rows.select(slice(0, 45)), rows.select(slice(45, None))):
        one, two = update_both(first, second, before, other, part)
        assert one.state.to_dict() == first.update(before, part).state.to_dict()
        assert two.state.to_dict() == second.update(other, part).state.to_dict()
        before, other = one.state, two.state
    with pytest.raises(ConfigurationError, match="rows"):
        update_both(first, second, before, second.start(), part)


def test_doctest_is_the_regression_test() -> None:
    assert doctest.testmod(likelihood_ratio).failed == 0


@pytest.mark.parametrize("gap", [-0.15, 0.15])
@pytest.mark.parametrize("seed", range(3))
def test_r54_residual_shifts_after_500_rows(gap: float, seed: int) -> None:
    """Mean of y − c is 0 for 500 rows, then ∓.15."""
    rng = np.random.default_rng(seed)
    truth = np.where(np.arange(3000) < 500, 0.6, 0.6 + gap)
    found = judge(detector(gamma=1), coins(rng, 0.6, truth, 3000))
    assert found.alarm is not None
    assert 500 <= found.alarm.row < 1500
    assert abs(found.alarm.change_point.row - 500) < 250


def test_r55_one_event_and_none_after_re_baselining() -> None:
    """1,000 windows at a true error of .02 within tolerance, then 1,000 at .12."""
    rng = np.random.default_rng(55)
    chosen = detector(gamma=1, tolerance=0.03)
    state, raised = chosen.start(), []
    for window in range(2000):
        gap = 0.02 if window < 1000 else 0.12
        step = chosen.update(state, coins(rng, 0.7, 0.7 - gap, 20))
        state = step.state
        raised += [window] if step.verdict.raised else []
    [window] = raised
    assert 1000 <= window < 1100
    state = chosen.start()  # new champion: it says what is true
    for _ in range(1000):
        step = chosen.update(state, coins(rng, 0.58, 0.58, 20))
        state = step.state
        assert step.verdict.alarm is None


def test_r56_stable_streams() -> None:
    chosen = detector(tolerance=0.003, threshold=1e5)  # warn level, the more nervous one
    alarms = 0
    for seed in range(200):
        rows = heads_traffic(np.random.default_rng(seed), 1000).served()
        alarms += judge(chosen, rows).alarm is not None
    assert alarms <= 10  # promised: P ≤ 1000/10^5 each, so 2 are expected at most


def test_r58_eight_rows_are_insufficient() -> None:
    rng = np.random.default_rng(58)
    found = judge(detector(gamma=1), coins(rng, 0.75, 0.4, 8))
    assert found.status is VerdictStatus.INSUFFICIENT
    assert found.alarm is None
    # Not even when every one of them contradicts a head that was certain.
    found = judge(detector(gamma=1), coins(rng, 0.999, 0.0, 8))
    assert found.status is VerdictStatus.INSUFFICIENT


def test_r59_effect_floor() -> None:
    """A million rows at .705 instead of .700: z is 11, the effect below the floor."""
    rng = np.random.default_rng(59)
    rows = coins(rng, 0.7, 0.705, 1_000_000)
    z = (rows.accepted.mean() - 0.7) / np.sqrt(0.21 / 1e6)
    assert z > 7.0
    assert judge(detector(gamma=1), rows).alarm is None


def test_r68_restart_at_any_row_alarms_at_the_same_row() -> None:
    rows = miscalibrated(heads_traffic(np.random.default_rng(68), 3000), 1000, slope=1.6)
    chosen = detector()
    whole = judge(chosen, rows)
    assert whole.alarm is not None
    for cut in (1, 31, 32, 1100, whole.alarm.row, whole.alarm.row + 1, 2999):
        before = chosen.update(chosen.start(), rows.select(slice(0, cut))).state
        stored = CusumState.from_dict(json.loads(json.dumps(before.to_dict())))
        resumed = detector().update(stored, rows.select(slice(cut, None))).verdict
        assert resumed.alarm == whole.alarm
        assert resumed.log_evidence == whole.log_evidence
    with pytest.raises(FormatError, match="other settings"):
        detector(tolerance=0.02).update(before, rows)


def test_batch_longer_than_a_pass_equals_many_short_ones() -> None:
    rows = heads_traffic(np.random.default_rng(1), 40_000).served(1.05)
    chosen = detector()
    whole = chosen.update(chosen.start(), rows)
    state = chosen.start()
    for start in range(0, len(rows), 7001):
        state = chosen.update(state, rows.select(slice(start, start + 7001))).state
    assert state.to_dict() == whole.state.to_dict()


def test_segments_of_two_hours_join_to_the_same_evidence() -> None:
    rows = heads_traffic(np.random.default_rng(5), 6400).served(1.1)
    chosen = detector()
    first = chosen.summarise(rows.select(slice(0, 3200)))
    second = chosen.summarise(rows.select(slice(3200, 6400)))
    joined = chosen.append(chosen.start(), first.later(second))
    assert joined.state.to_dict() == chosen.update(chosen.start(), rows).state.to_dict()
    with pytest.raises(ConfigurationError, match="whole blocks"):
        chosen.summarise(rows.select(slice(0, 33)))


def test_m7_perfect_conditional_confidence_under_leak_and_trimming() -> None:
    """The next logit reveals the token and trims on it: no alarm even without tolerance."""
    rows = leaky_traffic(np.random.default_rng(77), 60_000).served()
    assert judge(detector(tolerance=0.0, threshold=1e5), rows).alarm is None
    assert judge(detector(), rows).alarm is None


def test_traffic_may_change_while_calibration_holds() -> None:
    rng = np.random.default_rng(9)
    center = np.where(np.arange(40_000) < 20_000, 0.0, -1.5)  # much harder traffic
    rows = heads_traffic(rng, 40_000, center=center, threshold=0.3).served()
    assert judge(detector(tolerance=0.003, threshold=1e5), rows).alarm is None


def test_drift_at_one_position_is_named() -> None:
    rng = np.random.default_rng(3)
    shift = np.zeros(7)
    shift[2] = 0.9
    rows = heads_traffic(rng, 20_000).served(1.0, shift)
    found = judge(detector(), rows)
    assert found.alarm is not None
    assert found.alarm.leading == "shift -0.5 at position 3"


def test_miscalibrated_from_the_first_row() -> None:
    found = judge(detector(), heads_traffic(np.random.default_rng(4), 5000).served(1.25))
    assert found.alarm is not None


def test_rows_without_labels_are_neutral() -> None:
    nothing = Observations(
        np.full((640, 7), 0.5, np.float32), np.zeros(640, int), np.zeros(640, int)
    )
    found = judge(detector(), nothing)
    assert found.rows == 640
    assert found.log_evidence == pytest.approx(np.log(BLOCK_ROWS))


def test_certain_confidence_is_no_number_problem() -> None:
    said = np.tile(np.array([[0.0, 1.0]], np.float32), (320, 1))
    wrong = Observations(said, np.full(320, 2), np.where(np.arange(320) % 2, 1, 0))
    found = judge(detector(gamma=2), wrong)
    assert found.alarm is not None
    assert np.isfinite(found.log_evidence)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"tolerance": 0.5}, "tolerance"),
        ({"tolerance": -0.1}, "tolerance"),
        ({"threshold": 10.0}, "threshold"),
        ({"alternatives": (Alternative(0.0, 0.0, None, 1.0),)}, "slope"),
        ({"alternatives": (Alternative(1.0, 0.5, 8, 1.0),)}, "position"),
        ({"alternatives": (Alternative(1.0, 0.5, None, 1.1),)}, "weights"),
    ],
)
def test_options_are_checked(options: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigurationError, match=field):
        detector(**options)


def test_gamma_is_stated() -> None:
    with pytest.raises(RecordError, match="gamma"):
        detector(gamma=0)
    with pytest.raises(ConfigurationError, match="gamma"):
        judge(detector(gamma=3), heads_traffic(np.random.default_rng(0), 10).served())


def test_standard_weights_sum_to_one() -> None:
    for gamma in (1, 7, 16):
        chosen = standard_alternatives(gamma)
        assert sum(item.weight for item in chosen) == pytest.approx(1.0)
        assert len({item.name for item in chosen}) == 21 + 2 * gamma
