"""The recursion against a plain loop; batches, restarts and merges change nothing."""

from __future__ import annotations

import itertools
import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calib.errors import ConfigurationError, FormatError
from monitoring.detectors.e_cusum import (
    BLOCK_ROWS,
    CusumState,
    EvidenceCusum,
    Step,
    block_offsets,
    round_down,
)
from monitoring.detectors.verdict import VerdictStatus

WEIGHTS = np.array([0.5, 0.3, 0.2])


def cusum(threshold: float = 1e4, minimum_rows: int = 0, signature: str = "a") -> EvidenceCusum:
    return EvidenceCusum("test", signature, ("x", "y", "z"), WEIGHTS, threshold, minimum_rows)


def factors(rows: int, seed: int = 0, drift: float = 0.0) -> np.ndarray:
    """Log e-values of three bets on a fair coin, which is worth ``drift`` more than it claims."""
    rng = np.random.default_rng(seed)
    heads = rng.random((rows, 1)) < 0.5 + drift
    stakes = np.array([0.1, 0.3, -0.2])
    return round_down(np.log1p(stakes * np.where(heads, 1.0, -1.0)))


def sums(logs: np.ndarray, before: int) -> np.ndarray:
    return np.add.reduceat(logs, block_offsets(before, len(logs)), axis=0)


def run(detector: EvidenceCusum, logs: np.ndarray, cuts: list[int]) -> tuple[Step, int]:
    """The last step, and how often an alarm was raised."""
    step = Step(detector.start(), detector.advance(detector.start(), []).verdict)
    raised = 0
    for start, stop in itertools.pairwise([0, *cuts, len(logs)]):
        if stop > start:
            part = (stop - start, sums(logs[start:stop], start))
            step = detector.advance(step.state, [part])
            raised += step.verdict.raised
    return step, raised


def plain_loop(logs: np.ndarray, threshold: float) -> tuple[int | None, list[float], list[int]]:
    """Alarm row, M and starts by the formula of the module, block by block in float64."""
    values, starts, alarm = [0.0] * 3, [0] * 3, None
    for first in range(0, len(logs) // BLOCK_ROWS * BLOCK_ROWS, BLOCK_ROWS):
        for m in range(3):
            if values[m] <= BLOCK_ROWS:
                values[m], starts[m] = BLOCK_ROWS, first
            values[m] *= math.exp(logs[first : first + BLOCK_ROWS, m].sum())
        if alarm is None and float(WEIGHTS @ values) >= threshold:
            alarm = first + BLOCK_ROWS - 1
    return alarm, values, starts


@pytest.mark.parametrize("seed", range(5))
def test_matches_the_plain_loop(seed: int) -> None:
    logs = factors(2000, seed, drift=0.15)
    expected, values, starts = plain_loop(logs, 1e4)
    step, raised = run(cusum(), logs, [])
    assert expected is not None
    assert raised == 1
    assert step.verdict.alarm is not None
    assert step.verdict.alarm.row == expected
    assert np.exp(step.state.log_values) * BLOCK_ROWS == pytest.approx(values, rel=1e-9)
    assert step.state.starts.tolist() == starts
    assert step.verdict.log_evidence == pytest.approx(math.log(float(WEIGHTS @ values)))


@pytest.mark.property
@settings(max_examples=20)
@given(st.lists(st.integers(0, 1500), max_size=8))
def test_cutting_into_batches_changes_nothing(cuts: list[int]) -> None:
    logs = factors(1500, 3, drift=0.15)
    whole, _ = run(cusum(), logs, [])
    parts, raised = run(cusum(), logs, sorted(cuts))
    assert raised == 1
    assert parts.state.to_dict() == whole.state.to_dict()  # bit for bit


def test_r68_restart_in_the_middle_of_a_block() -> None:
    logs = factors(1500, 3, drift=0.15)
    whole, _ = run(cusum(), logs, [])
    before = cusum().advance(cusum().start(), [(777, sums(logs[:777], 0))])
    stored = json.dumps(before.state.to_dict(), allow_nan=False)
    restored = CusumState.from_dict(json.loads(stored))
    after = cusum().advance(restored, [(723, sums(logs[777:], 777))])
    assert after.state.to_dict() == whole.state.to_dict()
    assert after.verdict.alarm == whole.verdict.alarm


def test_merging_in_time_is_associative_and_equal_to_running_through() -> None:
    logs = factors(960, 4, drift=0.05)
    detector = cusum(threshold=1e9)
    pieces = [logs[start:stop] for start, stop in ((0, 320), (320, 352), (352, 960))]
    a, b, c = (detector.summarise(len(part), sums(part, 0)) for part in pieces)
    left, right = a.later(b).later(c), a.later(b.later(c))
    for one in (left, right):
        joined = detector.append(detector.start(), one)
        through, _ = run(detector, logs, [])
        assert joined.state.to_dict() == through.state.to_dict()
    assert left.rows == right.rows == 960
    nothing = detector.summarise(0, np.zeros((0, 3)))
    assert nothing.later(a).log_own.tolist() == a.log_own.tolist()
    assert a.later(nothing).log_own.tolist() == a.log_own.tolist()


def test_merged_stretch_alarms_at_its_end() -> None:
    logs = factors(1600, 3, drift=0.15)
    detector = cusum()
    nothing = detector.summarise(0, np.zeros((0, 3)))
    through, _ = run(detector, logs, [])
    step = detector.append(detector.start(), detector.summarise(1600, sums(logs, 0)))
    assert through.verdict.alarm is not None
    assert through.verdict.alarm.row < 1599
    assert step.verdict.raised
    assert step.verdict.alarm is not None
    assert step.verdict.alarm.row == 1599
    assert not detector.append(step.state, nothing).verdict.raised


def test_an_alarm_is_raised_once_and_stays() -> None:
    logs = factors(3000, 3, drift=0.15)
    step, raised = run(cusum(), logs, list(range(100, 3000, 100)))
    assert raised == 1
    assert step.verdict.status is VerdictStatus.ALARM
    assert not step.verdict.raised
    quiet = cusum().advance(step.state, [(500, sums(factors(500, 5), 3000))])
    assert quiet.verdict.alarm == step.verdict.alarm


def test_minimum_rows_delay_the_alarm_but_not_the_evidence() -> None:
    logs = np.full((320, 3), 0.5)
    early, _ = run(cusum(), logs, [])
    late, _ = run(cusum(minimum_rows=200), logs, [150])
    assert early.verdict.alarm is not None
    assert early.verdict.alarm.row == 31
    assert late.verdict.alarm is not None
    assert late.verdict.alarm.row == 223  # the first block that ends at row 200 or later
    few = cusum(minimum_rows=200).advance(cusum().start(), [(40, sums(logs[:40], 0))])
    assert few.verdict.status is VerdictStatus.INSUFFICIENT
    assert few.verdict.alarm is None


def test_no_rows() -> None:
    step = cusum().advance(cusum().start(), [(0, np.zeros((0, 3)))])
    assert step.state.rows == 0
    assert step.verdict.status is VerdictStatus.QUIET


def test_blocks_lie_at_fixed_rows_of_the_stream() -> None:
    assert block_offsets(0, 64).tolist() == [0, 32]
    assert block_offsets(31, 2).tolist() == [0, 1]
    assert block_offsets(5, 20).tolist() == [0]


def test_round_down() -> None:
    assert round_down(np.array([0.1, -0.1])).tolist() == [6553 / 65536, -6554 / 65536]


@pytest.mark.parametrize(
    "options",
    [{"threshold": 32.0}, {"threshold": math.inf}, {"threshold": math.nan}],
)
def test_thresholds_are_checked(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="threshold"):
        cusum(**options)


def test_weights_are_checked() -> None:
    for weights in ([0.5, 0.6], [1.0, 0.0], [1.0]):
        with pytest.raises(ConfigurationError, match="weights"):
            EvidenceCusum("test", "a", ("x", "y"), np.array(weights), 1e3)


def test_states_and_segments_of_other_detectors_are_refused() -> None:
    other = cusum(signature="b")
    segment = other.summarise(32, np.zeros((1, 3)))
    with pytest.raises(FormatError, match="other settings"):
        cusum().advance(other.start(), [])
    with pytest.raises(FormatError, match="other settings"):
        cusum().append(cusum().start(), segment)
    with pytest.raises(FormatError, match="other settings"):
        cusum().summarise(32, np.zeros((1, 3))).later(segment)
    with pytest.raises(FormatError, match="detector state"):
        CusumState.from_dict({"rows": 3})


def test_only_whole_blocks_merge() -> None:
    detector = cusum()
    with pytest.raises(ConfigurationError, match="whole blocks"):
        detector.summarise(33, np.zeros((2, 3)))
    odd = detector.advance(detector.start(), [(5, np.zeros((1, 3)))]).state
    with pytest.raises(ConfigurationError, match="whole blocks"):
        detector.append(odd, detector.summarise(32, np.zeros((1, 3))))
