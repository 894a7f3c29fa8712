"""The step moves segments together, on rows whose hard labels speak for all, and nothing else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import calib.segment_rescaling as rescaling
from calib.calibration import Calibration
from calib.errors import CalibrationValueError
from calib.records import AcceptanceRecords
from calib.segment_rescaling import FEWEST_ROWS, rescale_segments
from calib.segment_serving import SegmentTable
from calib.segment_tags import POOL, SegmentBuckets, SegmentKey, SegmentLevels
from calib.served_segment import ServedSegment, pool_segment

GAMMA = 3
TRUTH = {"code": (2.0, 1.0), "chat": (1.2, -0.6), "math": (1.0, 0.0)}  # slope and intercept
FACTOR, SHIFT = 1.5, 0.4


def log(rows: int = 6000, seed: int = 0, **columns: object) -> AcceptanceRecords:
    """Blocks of three domains, fully verified."""
    draw = np.random.default_rng(seed)
    domain = draw.choice(list(TRUTH), rows)
    logits = draw.normal(0.5, 1.0, (rows, GAMMA)).astype(np.float32)
    slope, intercept = np.array([TRUTH[name] for name in domain]).T
    chance = 1.0 / (1.0 + np.exp(-(logits * slope[:, None] + intercept[:, None])))
    accepted = np.cumprod(draw.random((rows, GAMMA)) < chance, axis=1).sum(axis=1)
    found = {
        "confidence_logits": logits,
        "accepted": accepted,
        "verified": np.full(rows, GAMMA),
        "domain": domain,
    }
    return AcceptanceRecords.from_columns(GAMMA, found | columns)


def served(name: str, *, right: bool = False) -> ServedSegment:
    """A segment whose odds are FACTOR too flat and SHIFT too low, or as they should be."""
    slope, intercept = TRUTH[name]
    if not right:
        slope, intercept = slope / FACTOR, (intercept - SHIFT) / FACTOR
    return ServedSegment(
        SegmentKey.of({"domain": name}),
        rows=1000,
        temperatures=(1.0,) * GAMMA,
        slopes=(slope,) * GAMMA,
        intercepts=(intercept,) * GAMMA,
    )


def table(*, right: bool = False, names: tuple[str, ...] = ("code", "chat")) -> SegmentTable:
    """Segments of their own, and math, which is served as the pool."""
    pool = replace(
        Calibration.from_temperatures([1.0] * GAMMA, gamma=GAMMA),
        slopes=(1.0,) * GAMMA,
        intercepts=(0.0,) * GAMMA,
    )
    like_pool = replace(pool_segment(pool, 3000), key=SegmentKey.of({"domain": "math"}))
    segments = {POOL: pool_segment(pool, 3000), like_pool.key: like_pool}
    segments |= {each.key: each for each in (served(name, right=right) for name in names)}
    levels = SegmentLevels((("domain",),))
    seen = {"domain": tuple(sorted(TRUTH))}
    return SegmentTable(GAMMA, SegmentBuckets(), levels, segments, seen)


def numbers(found: SegmentTable, name: str) -> tuple[np.ndarray, np.ndarray]:
    segment = found.segments[SegmentKey.of({"domain": name})]
    return np.array(segment.slopes), np.array(segment.intercepts)


def test_all_segments_are_brought_back_by_one_step() -> None:
    before = table()
    after, step = rescale_segments(before, log(30_000))
    assert step is not None
    assert step.taken
    assert np.allclose(step.factors, FACTOR, atol=0.12)
    assert np.allclose(step.shifts, SHIFT, atol=0.08)
    for name in ("code", "chat"):
        slopes, intercepts = numbers(before, name)
        found = numbers(after, name)
        assert np.allclose(found[0], slopes * step.factors, rtol=1e-5)
        assert np.allclose(found[1], intercepts * step.factors + step.shifts, rtol=1e-5, atol=1e-6)


def test_temperatures_and_whoever_is_served_as_the_pool_stay() -> None:
    before = table()
    after, _ = rescale_segments(before, log())
    assert after.segments[POOL] == before.segments[POOL]
    math = SegmentKey.of({"domain": "math"})
    assert after.segments[math] == before.segments[math]
    for key, segment in before.segments.items():
        assert after.segments[key].temperatures == segment.temperatures


def test_rows_of_the_pool_take_no_part() -> None:
    records = log()
    own = records.select(np.asarray(records.domain) != "math")
    assert rescale_segments(table(), records)[1] == rescale_segments(table(), own)[1]


def test_right_numbers_stay() -> None:
    before = table(right=True)
    after, step = rescale_segments(before, log(seed=1))
    assert step is not None
    assert not step.taken
    assert after == before


@pytest.mark.parametrize("column", ["prompt", "request"])
def test_rows_of_a_prompt_are_one_piece_of_luck(column: str) -> None:
    before = table()
    after, step = rescale_segments(before, log(**{column: ["one"] * 6000}))
    assert step is not None
    assert not step.taken
    assert after == before


def test_few_rows_or_no_slopes_are_not_tried() -> None:
    few = log().select(np.arange(FEWEST_ROWS))  # a third of them is served as the pool
    assert rescale_segments(table(), few) == (table(), None)
    plain = {
        key: replace(segment, slopes=None, intercepts=None)
        for key, segment in table().segments.items()
    }
    bare = replace(table(), segments=plain)
    assert rescale_segments(bare, log()) == (bare, None)
    assert rescale_segments(table(), log().select(slice(0, 0)))[1] is None


def test_the_rows_that_are_read_depend_on_no_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rescaling, "MOST_ROWS", 2000)
    records = log(prompt=[f"p{row % 300}" for row in range(6000)])
    first = rescale_segments(table(), records)[1]
    assert first is not None
    assert first.rows == 2000
    backwards = rescale_segments(table(), records.select(np.arange(6000)[::-1]))[1]
    assert backwards is not None
    assert backwards.rows == 2000
    assert np.allclose(backwards.factors, first.factors, rtol=1e-9)
    assert backwards.brier_gain == pytest.approx(first.brier_gain, rel=1e-9)


def test_a_slope_out_of_bounds_leaves_all_as_they_were() -> None:
    steep = replace(served("chat"), slopes=(19.9, 1.0, 1.0))
    before = table(names=("code",))
    before = replace(before, segments={**before.segments, steep.key: steep})
    records = log()
    after, step = rescale_segments(before, records.select(np.asarray(records.domain) == "code"))
    assert step is not None
    assert step.brier_gain[0] > step.brier_gain[1]
    assert (step.taken, step.factors, step.shifts) == (False, (1.0,) * GAMMA, (0.0,) * GAMMA)
    assert after == before


def test_a_row_that_was_cut_is_read_as_far_as_it_goes() -> None:
    """Scheduled fully, and cut by something that no flag names: no reason to stop a fit."""
    verified = np.full(6000, GAMMA)
    verified[17] = 1
    accepted = np.minimum(log().accepted, verified)
    step = rescale_segments(table(), log(verified=verified, accepted=accepted))[1]
    assert step is not None
    assert step.rows < 6000
    with pytest.raises(CalibrationValueError, match="gamma"):
        rescale_segments(SegmentTable.of_pool(Calibration.identity(2)), log())
