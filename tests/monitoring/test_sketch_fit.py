"""Fits from sketches: as from the rows they counted, proposed without a held-out part."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from calib.calibration import Calibration
from calib.errors import ConfigurationError
from calib.segment_serving import SegmentTable
from calib.segment_tags import SegmentKey
from calib.served_segment import ServedSegment
from monitoring.challenger_fit import Champion
from monitoring.hour_sketches import HOUR_SECONDS, HourSketches
from monitoring.recalibration_methods import MethodRules, fit_pool
from monitoring.recalibration_options import RecalibrationOptions
from monitoring.recalibration_rows import FitRows
from monitoring.revision_model import RevisionModel
from monitoring.served_numbers import ServedNumbers
from monitoring.sketch_fit import fit_sketches
from monitoring.sketch_rows import SketchRows
from tests.monitoring.loop_rows import rows
from tests.support.leaky_generator import simulate_leaky, survival_ece, trimmed_lengths
from tests.support.shifted_head import shifted_head

GAMMA = 7


def options(method: str = "auto", **more: Any) -> RecalibrationOptions:
    return RecalibrationOptions(method=method, source="sketches", **more)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def trimmed() -> tuple[FitRows, SketchRows]:
    """20,000 trimmed rows of a leaking head, and the sketches of their two hours."""
    blocks = simulate_leaky(20_000, 5, partial=0.18)
    records = blocks.records(trimmed_lengths(blocks.logits))
    sketches = HourSketches()
    for hour in range(2):
        part = records.select(slice(10_000 * hour, 10_000 * (hour + 1)))
        sketches = sketches.add(part, batch=hour + 1, now=hour * HOUR_SECONDS, hours=24)
    return FitRows.of(records), SketchRows.of(sketches, GAMMA)


@pytest.mark.parametrize("method", ["temperature", "affine"])
def test_a_conditional_fit_from_sketches_is_that_of_their_rows(
    trimmed: tuple[FitRows, SketchRows], method: Any
) -> None:
    by_rows, sketches = trimmed
    expected = fit_pool(method, by_rows, MethodRules()).calibration
    found = fit_sketches(sketches, options(method))
    assert found.refusal is None
    assert found.calibration is not None
    assert found.calibration.temperatures == expected.temperatures
    assert found.calibration.slopes == expected.slopes
    assert found.method == method


def test_auto_serves_survival_that_the_product_misses(
    trimmed: tuple[FitRows, SketchRows],
) -> None:
    truth = simulate_leaky(20_000, 99, partial=0.18)
    found = fit_sketches(trimmed[1], options())
    assert found.method == "survival"
    assert found.calibration is not None
    error = survival_ece(found.calibration.survival(truth.logits), truth)[:4].mean()
    product = fit_sketches(trimmed[1], options("temperature")).calibration
    assert product is not None
    assert error < 0.008 < 0.015 < survival_ece(product.survival(truth.logits), truth)[:4].mean()
    assert RevisionModel.from_dict(found.model or {}).gamma == GAMMA
    assert [each["rows"] for each in found.evidence["sketches"]["hours"]] == [10_000, 10_000]
    assert "sketches of 20,000 blocks of 2 hours" in found.summary[0]


def test_forgetting_follows_the_newer_hours() -> None:
    sketches = HourSketches()
    for hour, scale in enumerate((1.0, 1.0, 1.6)):
        part = rows(hour, 6000, scale=scale)
        sketches = sketches.add(part, batch=hour + 1, now=hour * HOUR_SECONDS, hours=24)
    served = [
        fit_sketches(source, options("temperature")).calibration
        for source in (
            SketchRows.of(sketches, GAMMA),
            SketchRows.of(sketches, GAMMA, half_life_hours=0.5),
            SketchRows.of(sketches, GAMMA, hours=1),
        )
    ]
    first = [each.temperatures[0] for each in served if each is not None]
    assert 1.1 < first[0] < 1.35 < first[1]
    assert first[2] == pytest.approx(1.6, rel=0.06)


def test_refusals_are_results() -> None:
    empty = fit_sketches(SketchRows.of(HourSketches(), GAMMA), options())
    assert (empty.refusal, empty.calibration) == ("no_rows", None)
    few = SketchRows.of(HourSketches().add(rows(1, 50), batch=1, now=0.0, hours=2), GAMMA)
    assert fit_sketches(few, options()).refusal == "insufficient"
    same = fit_sketches(few, options("temperature", minimum_rows=1)).calibration
    assert same is not None
    again = fit_sketches(
        few, options("temperature", minimum_rows=1), champion=Champion(4, ServedNumbers(same))
    )
    assert again.refusal == "not_better"
    assert "revision 4" in again.reason
    with pytest.raises(ConfigurationError, match="method"):
        fit_pool("sts", few, MethodRules())


def test_positions_that_sketches_cannot_tell_keep_the_champions() -> None:
    part = rows(2, 3000)
    stopped = HourSketches().add(part, batch=1, now=0.0, hours=2)
    champion = Champion(1, ServedNumbers(Calibration.from_temperatures([1.7] * 7, gamma=7)))
    found = fit_sketches(
        SketchRows.of(stopped, GAMMA), options("temperature", minimum_rows=1500), champion=champion
    )
    assert found.calibration is not None
    labels = np.minimum(part.accepted + 1, part.verified)
    reached = [int((labels >= k).sum()) >= 1500 for k in range(1, 8)]
    assert not all(reached)
    for fitted, temperature in zip(reached, found.calibration.temperatures, strict=True):
        assert (temperature == 1.7) is not fitted


def test_slopes_of_a_head_that_no_temperature_mends_are_proposed_to_the_gate() -> None:
    sketches = HourSketches().add(shifted_head(shift=0.5), batch=1, now=0, hours=24)
    served = Calibration.from_temperatures([1.125, 0.875], gamma=2)
    source = SketchRows.of(sketches, 2)
    champion = Champion(2, ServedNumbers(served))
    found = fit_sketches(source, options("affine"), champion=champion)
    assert found.calibration is not None, found.reason
    assert found.calibration.temperatures == served.temperatures
    assert found.calibration.intercepts == pytest.approx((-0.5,) * 2, abs=0.15)
    assert found.calibration.status == "partial"
    assert found.segments is None
    # A champion's segments keep their temperatures.
    code = ServedSegment(SegmentKey.of({"domain": "code"}), 500, (1.5, 0.75))
    table = SegmentTable.of_pool(served)
    table = replace(table, segments={**table.segments, code.key: code})
    champion = Champion(2, ServedNumbers(served, table))
    found = fit_sketches(source, options("affine"), champion=champion)
    assert found.segments is not None
    kept = SegmentTable.from_dict(found.segments).segments[code.key]
    assert kept.temperatures == code.temperatures
    assert found.calibration is not None
    assert kept.intercepts == found.calibration.intercepts
