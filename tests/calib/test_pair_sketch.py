from __future__ import annotations

import numpy as np
import pytest

from calib.errors import ConfigurationError, FormatError, InvalidInputError, RecordError
from calib.labels import observed_mask
from calib.pair_sketch import SIDE, PairSketch, pair_cells
from tests.support.telemetry import synthetic_records


def test_two_rows_by_hand() -> None:
    sketch = PairSketch.from_lengths(
        [[4.0, -4.0, 0.0], [4.0, 1.0, 2.0]], accepted=[0, 2], verified=[1, 2]
    )
    # y_1 in both rows, though the first was verified to 1 only; y_2 in the second.
    assert sketch.rows.tolist() == [2, 1]
    unit = 1 << 16
    first = 48 * SIDE + 16  # u = 2 and -2 on 64 cells of (-4, 4)
    assert (sketch.count[0, first], sketch.sum_y[0, first]) == (1, 0)
    assert (sketch.sum_first[0, first], sketch.sum_second[0, first]) == (4 * unit, -4 * unit)
    cells = pair_cells([sketch])
    assert cells[1].first.tolist() == [1.0]
    assert cells[1].second.tolist() == [2.0]
    assert cells[1].positive.tolist() == [1.0]


def test_rows_are_those_with_an_observed_label() -> None:
    records = synthetic_records(2000)
    sketch = PairSketch.from_records(records)
    assert sketch.rows.tolist() == observed_mask(records).sum(axis=0)[:-1].tolist()
    soft = PairSketch.from_records(records, labels="soft")
    assert np.array_equal(soft.count, sketch.count)
    assert not np.array_equal(soft.sum_y, sketch.sum_y)


def test_r26_any_order_and_split_gives_the_same_bits() -> None:
    records = synthetic_records(1500)
    whole = PairSketch.from_records(records)
    shuffled = records.select(np.random.default_rng(1).permutation(1500))
    parts = [PairSketch.from_records(shuffled.select(slice(i, None, 3))) for i in range(3)]
    assert parts[2] + parts[0] + parts[1] == whole
    assert PairSketch.from_bytes(whole.to_bytes()) == whole
    assert len(whole.to_bytes()) < 150_000


def test_one_position_has_no_pairs() -> None:
    sketch = PairSketch.from_lengths([[1.0], [2.0]], accepted=[1, 0])
    assert sketch.rows.tolist() == []
    assert pair_cells([sketch]) == ()
    assert PairSketch.from_bytes(sketch.to_bytes()) == sketch


def test_weights() -> None:
    one = PairSketch.from_lengths([[1.0, 2.0]], accepted=[1])
    two = PairSketch.from_lengths([[1.0, 2.0]], accepted=[0])
    cells = pair_cells([one, two], [0.5, 1.0])[0]
    assert cells.weight.tolist() == [1.5]
    assert cells.positive.tolist() == [0.5]
    backward = pair_cells([two, one], [1.0, 0.5])[0]
    assert backward.positive.tolist() == [0.5]


def test_wrong_input_is_named() -> None:
    sketch = PairSketch.empty(3)
    with pytest.raises(InvalidInputError, match="one gamma and scale"):
        sketch + PairSketch.empty(2)
    with pytest.raises(InvalidInputError):
        pair_cells([])
    with pytest.raises(ConfigurationError):
        pair_cells([sketch], [-1.0])
    with pytest.raises(ConfigurationError):
        pair_cells([sketch], [1.0, 1.0])
    with pytest.raises(FormatError):
        PairSketch.from_bytes(b"DSLS" + sketch.to_bytes()[4:])
    with pytest.raises(RecordError):
        PairSketch.from_lengths([[1.0, 2.0]], accepted=[1, 0], verified=[2, 2])
