from __future__ import annotations

import numpy as np
import pytest

from calib.errors import ConfigurationError, InvalidInputError
from calib.records import AcceptanceRecords
from calib.segment_cells import READ_CELLS, SegmentReader, joined
from calib.segment_sketches import SegmentSketches
from calib.segment_tags import POOL, SegmentKey, SegmentLevels
from calib.sketch_cells import LogitCells
from tests.support.telemetry import synthetic_records

LEVELS = SegmentLevels((("domain",),))
CODE = SegmentKey.of({"domain": "code"})


def sketched(records: AcceptanceRecords) -> SegmentSketches:
    return SegmentSketches.from_records(records, levels=LEVELS)


def test_stacks_hold_the_sums_of_a_segment() -> None:
    records = synthetic_records(1500)
    reader = SegmentReader.of(sketched(records))
    both = joined(reader.stacks([CODE, POOL]))
    assert both.logit.shape == (2, 7, READ_CELLS)
    code = records.select(np.array(records.domain) == "code")
    for place, rows in ((0, code), (1, records)):
        observed = np.minimum(rows.accepted + 1, rows.verified) >= 1
        logit = rows.confidence_logits[observed, 0]
        assert both.weight[place, 0].sum() == observed.sum()
        sums = (both.weight * both.logit)[place, 0].sum()
        assert sums == pytest.approx(float(logit.sum()), abs=1e-2)
        assert both.positive[place, 0].sum() == (rows.accepted[observed] >= 1).sum()
    assert reader.rows(CODE).tolist() == both.weight[0].sum(axis=-1).tolist()


def test_weights_count_rows_less_and_change_nothing_else() -> None:
    first, second = (sketched(synthetic_records(400, seed=seed)) for seed in (1, 2))
    reader = SegmentReader.of([first, second], [1.0, 0.25])
    stack = joined(reader.stacks([POOL]))
    parts = [joined(SegmentReader.of(part).stacks([POOL])) for part in (first, second)]
    assert stack.weight == pytest.approx(parts[0].weight + 0.25 * parts[1].weight)
    assert stack.positive == pytest.approx(parts[0].positive + 0.25 * parts[1].positive)
    # Counted rows say how much was seen, whatever it weighs.
    assert reader.rows(POOL).sum() == parts[0].weight.sum() + parts[1].weight.sum()


def test_the_order_of_parts_does_not_matter() -> None:
    parts = [sketched(synthetic_records(200, seed=seed)) for seed in range(3)]
    one = SegmentReader.of(parts, [0.3, 1.0, 0.3]).stacks([POOL, CODE])
    other = SegmentReader.of(parts[::-1], [0.3, 1.0, 0.3]).stacks([POOL, CODE])
    for mine, theirs in zip(one, other, strict=True):
        assert np.array_equal(mine.weight, theirs.weight)
        assert np.array_equal(mine.logit, theirs.logit)


def test_the_pool_is_read_at_full_resolution() -> None:
    records = synthetic_records(500)
    reader = SegmentReader.of(sketched(records))
    cells = reader.cells()
    pool = reader.first.segment(POOL)
    wanted = LogitCells.of(pool[0] + pool[1])
    assert cells.logit.tolist() == wanted.logit.tolist()
    assert reader.cells((0,)).rows.tolist() == pool[0].rows.tolist()


def test_keys_and_buckets_that_occur() -> None:
    reader = SegmentReader.of([sketched(synthetic_records(300))])
    names = [key.to_dict()["domain"] for key in reader.keys(("domain",))]
    assert names == ["chat", "code", "math"]
    assert reader.keys(("adapter",)) == ()
    assert reader.keys(()) == (POOL,)
    assert reader.seen("domain") == ("chat", "code", "math")


def test_wrong_parts_are_named() -> None:
    part = sketched(synthetic_records(50))
    with pytest.raises(InvalidInputError, match="parts"):
        SegmentReader.of([])
    for weights in ([1.0], [1.0, -1.0], [1.0, float("inf")]):
        with pytest.raises(ConfigurationError, match="weights"):
            SegmentReader.of([part, part], weights)
    with pytest.raises(InvalidInputError, match="one shape"):
        SegmentReader.of([part, sketched(synthetic_records(50, gamma=2))], [1.0, 0.5])
