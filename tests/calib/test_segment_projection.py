from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from calib.calibration import Calibration, Form
from calib.conditional_likelihood import ConditionalLikelihood
from calib.errors import CalibrationValueError, ConfigurationError, FitRefusedError
from calib.pair_sketch import PairSketch
from calib.segment_fitting import fit_segments
from calib.segment_model import SegmentModel
from calib.segment_projection import project_segments
from calib.segment_serving import SegmentTable
from calib.segment_sketches import SegmentSketches
from calib.segment_tags import POOL, SegmentKey, SegmentLevels
from calib.survival_model import fit_survival_model
from calib.survival_projection import project_survival
from tests.support.segment_generator import NAMES, segment_errors, simulate_segments

LEVELS = SegmentLevels((("domain",),))
TRAFFIC = simulate_segments(12_000, seed=1)
RECORDS = TRAFFIC.records()
CODE = SegmentKey.of({"domain": "code"})


def pooled() -> ConditionalLikelihood:
    return ConditionalLikelihood("affine").fit_records(RECORDS)


@pytest.fixture(scope="module")
def model() -> SegmentModel:
    return fit_segments(SegmentSketches.from_records(RECORDS, levels=LEVELS), levels=LEVELS)


@pytest.fixture(scope="module")
def pool() -> Calibration:
    return pooled().calibration()


@pytest.fixture(scope="module")
def table(model: SegmentModel, pool: Calibration) -> SegmentTable:
    return project_segments(model, RECORDS, pool, sample_rows=1000)


def test_served_numbers_halve_the_error_of_the_pool(table: SegmentTable, pool: Calibration) -> None:
    test = simulate_segments(30_000, seed=2)
    records = test.records()
    alone = segment_errors(pool.survival(test.blocks.logits, form="affine"), test).mean()
    affine = segment_errors(table.survival(records, "affine"), test).mean()
    temperatures = segment_errors(table.survival(records), test).mean()
    assert affine < 0.5 * alone
    # Temperatures cannot follow a bias, and still tell segments apart.
    assert affine < temperatures < 0.7 * alone


def test_the_pool_is_served_as_published(
    model: SegmentModel, table: SegmentTable, pool: Calibration
) -> None:
    entry = table.segments[POOL]
    assert entry.temperatures == pool.temperatures
    assert entry.slopes == pool.slopes
    assert entry.rows == model.segments[POOL].rows[0]


def test_a_product_serves_its_own_slopes(model: SegmentModel, table: SegmentTable) -> None:
    fit, entry = model.segments[CODE], table.segments[CODE]
    assert entry.slopes == pytest.approx(fit.slopes, rel=1e-5)
    assert entry.intercepts == pytest.approx(fit.intercepts, rel=1e-5)
    survival = table.survival(RECORDS, "affine")
    assert survival == pytest.approx(model.survival(RECORDS), abs=1e-4)


def test_without_an_affine_pool_no_segment_has_one(model: SegmentModel) -> None:
    plain = Calibration.from_temperatures([1.4] * 7, gamma=7)
    table = project_segments(model, RECORDS, plain, sample_rows=200)
    assert all(entry.slopes is None for entry in table.segments.values())
    assert table.answer({"domain": "code"}).affine is None


def test_any_order_of_rows_gives_the_same_table(
    model: SegmentModel, table: SegmentTable, pool: Calibration
) -> None:
    order = np.random.default_rng(0).permutation(len(RECORDS))
    shuffled = project_segments(model, RECORDS.select(order), pool, sample_rows=1000)
    assert shuffled.to_json() == table.to_json()


def test_a_segment_without_logits_borrows_its_parents(
    model: SegmentModel, table: SegmentTable, pool: Calibration
) -> None:
    """Only chat is left in the log: code is projected on chat's rows, and comes out close."""
    chat = RECORDS.select(TRAFFIC.segment == NAMES.index("chat"))
    two = replace(model, segments={key: model.segments[key] for key in (POOL, CODE)})
    entry = project_segments(two, chat, pool, sample_rows=1000).segments[CODE]
    own = table.segments[CODE]
    assert entry.temperatures == pytest.approx(own.temperatures, rel=0.1)


def test_a_segment_that_is_its_parent_is_served_as_it(
    model: SegmentModel, pool: Calibration
) -> None:
    root = model.segments[POOL]
    twin = replace(model.segments[CODE], slopes=root.slopes, intercepts=root.intercepts)
    two = replace(model, segments={POOL: root, CODE: twin})
    table = project_segments(two, RECORDS, pool, sample_rows=300)
    assert table.segments[CODE].temperatures == pool.temperatures


def test_numbers_that_may_not_be_served_are_the_parents(
    model: SegmentModel, pool: Calibration
) -> None:
    steep = replace(model.segments[CODE], slopes=(30.0,) * 7)
    two = replace(model, segments={POOL: model.segments[POOL], CODE: steep})
    table = project_segments(two, RECORDS, pool, sample_rows=300)
    assert table.segments[CODE].slopes == pool.slopes
    assert all(0.05 <= t <= 20.0 for t in table.segments[CODE].temperatures)


def test_a_model_that_reveals_more_is_projected(model: SegmentModel, pool: Calibration) -> None:
    """Hazards with the next logit: slopes are no longer the conditional ones."""
    pairs = PairSketch.from_records(RECORDS)
    fitted = fit_survival_model(pooled(), [pairs])
    forced = replace(
        fitted, hazards=tuple(replace(hazard, following=0.4) for hazard in fitted.hazards)
    )
    one = replace(model, segments={key: model.segments[key] for key in (POOL, CODE)})
    table = project_segments(one, RECORDS, pool, survival=forced, sample_rows=1000)
    target = one.survival_model(CODE, forced)
    code = RECORDS.select(TRAFFIC.segment == NAMES.index("code"))
    wanted = target.survival(code.confidence_logits).mean(axis=0)
    plain = project_segments(one, RECORDS, pool, sample_rows=1000)
    # Temperatures that came closer would sharpen positions to 0 or 1, at the cost of log loss.
    shares: dict[Form, float] = {"affine": 0.5, "temperatures": 0.8}
    for form, share in shares.items():
        found, blind = (
            np.abs(t.survival(code, form).mean(axis=0) - wanted) for t in (table, plain)
        )
        assert found.mean() < share * blind.mean()
    assert table.segments[CODE].slopes != one.segments[CODE].slopes


def test_wrong_input_is_named(model: SegmentModel, pool: Calibration) -> None:
    with pytest.raises(CalibrationValueError, match="pool"):
        project_segments(model, RECORDS, pool.prefix(3))
    with pytest.raises(ConfigurationError, match="sample_rows"):
        project_segments(model, RECORDS, pool, sample_rows=0)
    with pytest.raises(FitRefusedError):
        project_segments(model, RECORDS.select(slice(0, 0)), pool)


def test_where_all_traffic_says_too_little_a_segment_has_its_parents_slope() -> None:
    """Positions 1 and 2 of the pool were published, for the others rows were too few."""
    records = simulate_segments(4000, 3).records()
    fitted = fit_segments(SegmentSketches.from_records(records))
    conditional = ConditionalLikelihood("affine", minimum_rows=0, minimum_affine_rows=0)
    conditional.fit_records(records)
    rows = [5000, 4000, 999, 999, 999, 999, 999]
    logits = records.confidence_logits
    survival = fit_survival_model(conditional, [PairSketch.from_records(records)])
    target = survival.survival(logits)
    thin = project_survival(logits, target, evidence_rows=rows).calibration()
    whole = project_survival(logits, target).calibration()
    assert thin.slopes is not None
    table, full = (project_segments(fitted, records, pool) for pool in (thin, whole))
    for key, segment in table.segments.items():
        assert segment.slopes is not None
        assert full.segments[key].slopes is not None
        assert segment.slopes[2:] == thin.slopes[2:]
        if key != POOL:
            assert segment.slopes[:2] == full.segments[key].slopes[:2]
