"""What each method serves, and that the models behind it are the same ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from calib.records import AcceptanceRecords
from calib.segment_sketches import SegmentSketches
from calib.segment_tags import SegmentKey
from calib.statuses import PositionStatus
from monitoring import recalibration_methods
from monitoring.recalibration_methods import (
    MethodRules,
    PooledMethod,
    _coarser,
    fit_pool,
    with_segments,
    without_affine,
    without_segments,
)
from monitoring.recalibration_rows import FitRows
from tests.support.leaky_generator import TRUE_TEMPERATURES
from tests.support.segment_generator import simulate_segments
from tests.support.telemetry import TEMPERATURES, synthetic_records

GAMMA = 3


@pytest.fixture(scope="module")
def rows() -> FitRows:
    return FitRows.of(synthetic_records(8000, gamma=GAMMA, prompts=200))


@pytest.mark.parametrize("method", ["temperature", "affine", "sts", "survival"])
def test_every_method_finds_the_true_temperatures_of_a_full_log(
    rows: FitRows, method: PooledMethod
) -> None:
    found = fit_pool(method, rows, MethodRules())
    assert found.calibration.temperatures == pytest.approx(TEMPERATURES[:GAMMA], rel=0.12)
    assert found.model.pooled == fit_pool("temperature", rows, MethodRules()).model.pooled
    affine = found.calibration.slopes is not None
    assert affine == (method in ("affine", "survival"))
    assert found.table is None


def test_one_position_has_no_hazards() -> None:
    found = fit_pool("survival", FitRows.of(synthetic_records(3000, gamma=1)), MethodRules())
    assert found.model.pooled.hazards == ()
    assert found.calibration.temperatures == pytest.approx(TEMPERATURES[:1], rel=0.2)


def test_few_rows_keep_the_parents_numbers_in_both_forms(rows: FitRows) -> None:
    few = FitRows.of(rows.records.select(slice(0, 500)))
    parent = (1.5, 1.25, 1.125)
    for method in ("temperature", "affine", "survival"):
        found = fit_pool(method, few, MethodRules(parent=parent))
        assert set(found.calibration.position_statuses) == {PositionStatus.INSUFFICIENT}
        assert found.calibration.temperatures == parent
        if found.calibration.slopes is not None:
            assert found.calibration.slopes == pytest.approx([1 / t for t in parent], rel=1e-5)


def test_segments_come_with_models_and_go_with_them() -> None:
    traffic = simulate_segments(6000, 5, gamma=2)
    rows = FitRows.of(traffic.records())
    pool = fit_pool("affine", rows, MethodRules())
    found = with_segments(pool, rows, MethodRules())
    assert found.table is not None
    assert found.model.segments is not None
    assert set(found.table.segments) == set(found.model.segments.segments)
    assert found.segments["levels"][0]["tags"] == ["domain"]
    plain = without_affine(found)
    assert plain.calibration.method == "temperature"
    assert plain.table is not None
    assert all(segment.slopes is None for segment in plain.table.segments.values())
    assert without_segments(found).model.segments is None
    assert np.mean(np.array(pool.calibration.temperatures) / TRUE_TEMPERATURES[:2]) < 1.3


def test_a_capped_tenant_counts_less_in_every_method() -> None:
    """One tenant of 90 percent needs T twice as large as the others: the cap moves T away."""
    records = synthetic_records(8000, gamma=2, prompts=200)
    small = np.arange(8000) % 10 == 0
    logits = np.where(small[:, None], 1.0, 2.0) * records.confidence_logits
    names = np.where(small, "small", "large").astype(object)
    columns = {**records.columns(), "confidence_logits": logits, "tenant": names}
    told = AcceptanceRecords.from_columns(2, columns)
    free, capped = FitRows.of(told, 1.0), FitRows.of(told, 0.5)
    for method in ("temperature", "sts", "survival"):
        rules = replace(MethodRules(), minimum_rows=100)
        before = fit_pool(method, free, rules).calibration.temperatures[0]
        after = fit_pool(method, capped, rules).calibration.temperatures[0]
        assert after < 0.9 * before, method


def test_more_words_than_segments_count_for_the_coarser_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each finest segment is a sketch, and requests may bring a word of their own each."""
    monkeypatch.setattr(recalibration_methods, "MOST_LEAVES", 4)
    columns = synthetic_records(800, gamma=GAMMA).columns()
    number = np.arange(800)
    columns["adapter"] = np.where(number % 2, number.astype(str), "base").astype(object)
    columns["domain"] = np.where(number < 600, "code", "chat").astype(object)
    columns["sampling_temperature"] = np.zeros(800, dtype=np.float32)
    columns.pop("context_length", None)
    columns.pop("acceptance_rule", None)
    records = AcceptanceRecords.from_columns(GAMMA, columns)
    counts, whole = map(SegmentSketches.from_records, (_coarser(records), records))
    assert len(counts.sketches) <= 4 + 2 < len(whole.sketches)
    for tags in ({"domain": "code"}, {"domain": "chat"}, {"adapter": "base"}):
        key = SegmentKey.of(tags)  # parents lose nothing
        assert counts.segment(key) == whole.segment(key)
    columns["domain"] = number.astype(str).astype(object)
    many = _coarser(AcceptanceRecords.from_columns(GAMMA, columns))
    assert len(SegmentSketches.from_records(many).sketches) <= 8 + 1
    few = AcceptanceRecords.from_columns(GAMMA, columns).select(slice(0, 4))
    assert _coarser(few) is few


def test_segments_take_the_last_step_only_where_full_verification_was_no_choice() -> None:
    traffic = simulate_segments(6000, 5, gamma=2)
    whole = FitRows.of(traffic.records())
    found = with_segments(fit_pool("affine", whole, MethodRules()), whole, MethodRules())
    step = found.segments["rescaling"]
    assert step["rows"] == 6000
    assert set(step) == {"taken", "factors", "shifts", "rows", "brier_gain", "log_loss_gain"}
    # Trimmed where confidence was low: what was verified fully was chosen by confidence.
    verified = np.where(traffic.blocks.logits[:, 0] < 1.0, 1, 2)
    trimmed = FitRows.of(traffic.records(verified))
    assert 0.1 < trimmed.trimmed_share < 0.9
    found = with_segments(fit_pool("affine", trimmed, MethodRules()), trimmed, MethodRules())
    assert found.table is not None
    assert found.segments["rescaling"] is None
