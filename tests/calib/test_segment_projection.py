from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from calib.calibration import Calibration
from calib.conditional_likelihood import ConditionalLikelihood
from calib.errors import CalibrationValueError, ConfigurationError, FitRefusedError
from calib.pair_sketch import PairSketch
from calib.segment_fitting import fit_segments
from calib.segment_model import SegmentModel
from calib.segment_projection import project_segments
from calib.segment_sketches import SegmentSketches
from calib.segment_tags import POOL, SegmentKey, SegmentLevels
from calib.survival_model import fit_survival_model
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


def test_served_numbers_halve_the_error_of_the_pool(model: SegmentModel, pool: Calibration) -> None:
    test = simulate_segments(30_000, seed=2)
    table = project_segments(model, RECORDS, pool)
    records = test.records()
    alone = segment_errors(pool.survival(test.blocks.logits, form="affine"), test).mean()
    affine = segment_errors(table.survival(records, "affine"), test).mean()
    temperatures = segment_errors(table.survival(records), test).mean()
    assert affine < 0.3 * alone
    # Temperatures cannot follow a bias, and still tell segments apart.
    assert affine < temperatures < 0.5 * alone


def test_the_pool_is_served_as_published(model: SegmentModel, pool: Calibration) -> None:
    entry = project_segments(model, RECORDS, pool).segments[POOL]
    assert entry.temperatures == pool.temperatures
    assert entry.slopes == pool.slopes
    assert entry.rows == model.segments[POOL].rows[0]


def test_a_product_serves_its_own_slopes(model: SegmentModel, pool: Calibration) -> None:
    table = project_segments(model, RECORDS, pool)
    fit, entry = model.segments[CODE], table.segments[CODE]
    assert entry.slopes == pytest.approx(fit.slopes, rel=1e-5)
    assert entry.intercepts == pytest.approx(fit.intercepts, rel=1e-5)
    survival = table.survival(RECORDS, "affine")
    assert survival == pytest.approx(model.survival(RECORDS), abs=1e-4)


def test_without_an_affine_pool_no_segment_has_one(model: SegmentModel) -> None:
    plain = Calibration.from_temperatures([1.4] * 7, gamma=7)
    table = project_segments(model, RECORDS, plain)
    assert all(entry.slopes is None for entry in table.segments.values())
    assert table.answer({"domain": "code"}).affine is None


def test_any_order_of_rows_gives_the_same_table(model: SegmentModel, pool: Calibration) -> None:
    order = np.random.default_rng(0).permutation(len(RECORDS))
    shuffled = project_segments(model, RECORDS.select(order), pool, sample_rows=500)
    assert shuffled.to_json() == project_segments(model, RECORDS, pool, sample_rows=500).to_json()


def test_a_segment_without_logits_borrows_its_parents(
    model: SegmentModel, pool: Calibration
) -> None:
    """Only chat is left in the log: code is projected on chat's rows, and comes out close."""
    chat = RECORDS.select(TRAFFIC.segment == NAMES.index("chat"))
    entry = project_segments(model, chat, pool).segments[CODE]
    own = project_segments(model, RECORDS, pool).segments[CODE]
    assert entry.temperatures == pytest.approx(own.temperatures, rel=0.1)


def test_a_segment_that_is_its_parent_is_served_as_it(
    model: SegmentModel, pool: Calibration
) -> None:
    root = model.segments[POOL]
    twin = replace(model.segments[CODE], slopes=root.slopes, intercepts=root.intercepts)
    table = project_segments(
        replace(model, segments={**model.segments, CODE: twin}), RECORDS, pool, sample_rows=300
    )
    assert table.segments[CODE].temperatures == pool.temperatures


def test_numbers_that_may_not_be_served_are_the_parents(
    model: SegmentModel, pool: Calibration
) -> None:
    steep = replace(model.segments[CODE], slopes=(30.0,) * 7)
    table = project_segments(
        replace(model, segments={**model.segments, CODE: steep}), RECORDS, pool, sample_rows=300
    )
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
    table = project_segments(one, RECORDS, pool, survival=forced)
    target = one.survival_model(CODE, forced)
    code = RECORDS.select(TRAFFIC.segment == NAMES.index("code"))
    wanted = target.survival(code.confidence_logits).mean(axis=0)
    for form in ("temperatures", "affine"):
        found = table.survival(code, form).mean(axis=0)
        assert found == pytest.approx(wanted, abs=0.03)
    assert table.segments[CODE].slopes != one.segments[CODE].slopes


def test_wrong_input_is_named(model: SegmentModel, pool: Calibration) -> None:
    with pytest.raises(CalibrationValueError, match="pool"):
        project_segments(model, RECORDS, pool.prefix(3))
    with pytest.raises(ConfigurationError, match="sample_rows"):
        project_segments(model, RECORDS, pool, sample_rows=0)
    with pytest.raises(FitRefusedError):
        project_segments(model, RECORDS.select(slice(0, 0)), pool)
