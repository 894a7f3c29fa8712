"""Hours of sketches as a fit reads them: weights, windows, and what stands in the provenance."""

from __future__ import annotations

import json

import numpy as np
import pytest

from calib.errors import ConfigurationError
from calib.logit_sketch import LogitSketch
from calib.sketch_cells import LogitCells
from monitoring.hour_sketches import HOUR_SECONDS, HourSketches
from monitoring.sketch_rows import SketchRows
from tests.monitoring.loop_rows import rows
from tests.monitoring.traffic import GAMMA

START = 500_000  # hours since 1970


def kept(*hours: int, size: int = 60) -> HourSketches:
    sketches = HourSketches()
    for batch, hour in enumerate(hours, 1):
        now = (START + hour) * HOUR_SECONDS
        sketches = sketches.add(rows(hour, size), batch=batch, now=now, hours=24)
    return sketches


def test_an_hour_weighs_half_after_a_half_life() -> None:
    found = SketchRows.of(kept(0, 2, 3), GAMMA, half_life_hours=2.0)
    assert found.weights == pytest.approx((2**-1.5, 2**-0.5, 1.0))
    assert len(found) == 180
    expected = LogitCells.weighted(
        [LogitSketch.from_records(rows(hour, 60)) for hour in (0, 2, 3)], found.weights
    )
    cells = found.cells()
    assert cells.rows.tolist() == expected.rows.tolist()
    assert cells.weight == pytest.approx(expected.weight)
    assert cells.positive == pytest.approx(expected.positive)
    assert found.pairs().weights == list(found.weights)
    assert found.pairs().folds == [0, 0, 1]


def test_hours_and_batches_bound_what_is_read() -> None:
    sketches = kept(0, 2, 3)
    assert [each.hour - START for each in SketchRows.of(sketches, GAMMA, hours=2).hours] == [2, 3]
    assert len(SketchRows.of(sketches, GAMMA, from_batch=3)) == 60
    assert len(SketchRows.of(sketches, GAMMA, from_batch=4)) == 0
    assert SketchRows.of(sketches, GAMMA).weights == (1.0, 1.0, 1.0)
    with pytest.raises(ConfigurationError, match="half_life"):
        SketchRows.of(sketches, GAMMA, half_life_hours=-1.0)


def test_a_clock_that_was_set_back_stops_no_fit() -> None:
    found = SketchRows.of(kept(0, 1, 0), GAMMA, half_life_hours=1.0)
    assert [each.hour - START for each in found.hours] == [0, 1, 0]
    assert found.weights == (0.5, 1.0, 0.5)


def test_the_provenance_names_hours_rows_and_weights() -> None:
    found = SketchRows.of(kept(0, 1), GAMMA, half_life_hours=1.0)
    told = found.to_dict()
    assert told["half_life_hours"] == 1.0
    assert [(each["rows"], each["weight"]) for each in told["hours"]] == [(60, 0.5), (60, 1.0)]
    assert told["hours"][0]["hour"] == "2027-01-15T08:00Z"  # 500,000 hours after 1970
    window = found.window(7)
    assert (window["first_batch"], window["last_batch"], window["rows"]) == (1, 7, 120)
    assert json.dumps([told, window])
    same, other = SketchRows.of(kept(0, 1), GAMMA), SketchRows.of(kept(0, 1, 2), GAMMA)
    assert found.digest != same.digest != other.digest
    assert same.digest == SketchRows.of(kept(0, 1), GAMMA).digest


def test_logits_are_drawn_alike() -> None:
    found = SketchRows.of(kept(0, 1), GAMMA)
    drawn = found.logits(300)
    assert drawn.shape == (300, GAMMA)
    assert np.array_equal(drawn, found.logits(300))
