from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calib.errors import ConfigurationError, FormatError, InvalidInputError, RecordError
from calib.labels import conditional_labels
from calib.logit_sketch import CELLS, LogitSketch
from calib.record_schema import Flag
from calib.records import AcceptanceRecords
from calib.squashed_logit import CHUNK_ROWS
from tests.support.telemetry import synthetic_records


def test_three_rows_by_hand() -> None:
    sketch = LogitSketch.from_lengths(
        [[4.0, 1.0, 0.0], [4.0, -4.0, 9.0], [0.0, 5.0, 5.0]],
        accepted=[2, 1, 0],
        verified=[2, 3, 3],
    )
    # Observed k <= min(n + 1, l): 2, 2 and 1 positions.
    assert sketch.rows.tolist() == [3, 2, 0]
    unit = 1 << 16
    assert (sketch.count[0, 768], sketch.sum_z[0, 768]) == (2, 8 * unit)
    assert sketch.sum_y[0, 768] == 2 << 30
    assert (sketch.count[0, 512], sketch.sum_y[0, 512]) == (1, 0)
    assert (sketch.count[1, 614], sketch.sum_z[1, 614], sketch.sum_y[1, 614]) == (1, unit, 1 << 30)
    assert (sketch.count[1, 256], sketch.sum_z[1, 256], sketch.sum_y[1, 256]) == (1, -4 * unit, 0)
    assert not sketch.soft


def test_r36_unverified_positions_are_unobserved() -> None:
    """γ 5, verified 2, accepted 2: positions 3-5 leave no trace, not even a zero."""
    sketch = LogitSketch.from_lengths(np.ones((1, 5)), accepted=[2], verified=[2])
    assert sketch.rows.tolist() == [1, 1, 0, 0, 0]
    assert sketch.sum_y.sum() == 2 << 30


@pytest.mark.parametrize("labels", ["hard", "soft"])
def test_agrees_with_the_label_matrix(labels: Any) -> None:
    records = synthetic_records(3000).with_flag(Flag.WARMUP, np.arange(0, 3000, 7))
    sketch = LogitSketch.from_records(records, labels=labels)
    rows = records.fitting_rows()
    observed = conditional_labels(rows)
    if labels == "soft":
        assert rows.soft_labels is not None
        observed = np.where(np.isnan(observed), np.nan, rows.soft_labels)
    assert sketch == LogitSketch.from_labels(rows.confidence_logits, observed)
    assert sketch.soft is (labels == "soft")
    known = ~np.isnan(observed)
    assert sketch.rows.tolist() == known.sum(axis=0).tolist()
    total = np.where(known, rows.confidence_logits, 0.0).sum(axis=0)
    assert sketch.sum_z.sum(axis=1) / 65536 == pytest.approx(total, rel=1e-5)
    accepted = np.nansum(observed, axis=0, dtype=np.float64)
    assert sketch.sum_y.sum(axis=1) / 2**30 == pytest.approx(accepted, rel=1e-8)


def test_r26_any_order_and_split_gives_the_same_bits() -> None:
    records = synthetic_records(2000)
    whole = LogitSketch.from_records(records)
    shuffled = records.select(np.random.default_rng(1).permutation(2000))
    assert LogitSketch.from_records(shuffled) == whole
    thirds = [LogitSketch.from_records(shuffled.select(slice(i, None, 3))) for i in range(3)]
    for order in itertools.permutations(thirds):
        assert LogitSketch.merged(order) == whole


@pytest.mark.property
@given(
    st.lists(
        st.tuples(
            st.floats(-(2.0**127), 2.0**127, width=32), st.floats(0, 1, width=32), st.integers(0, 3)
        ),
        min_size=1,
        max_size=40,
    )
)
def test_merging_is_exact_for_any_logits_and_soft_labels(rows: list[Any]) -> None:
    logits = np.array([[row[0]] for row in rows], dtype=np.float32)
    labels = np.array([[row[1]] for row in rows], dtype=np.float32)
    part = np.array([row[2] for row in rows])
    whole = LogitSketch.from_labels(logits, labels)
    pieces = [LogitSketch.from_labels(logits[part == p], labels[part == p]) for p in range(4)]
    assert LogitSketch.merged(reversed(pieces)) == whole
    assert LogitSketch.from_bytes(whole.to_bytes()) == whole


def test_chunks_join() -> None:
    rows = CHUNK_ROWS + 5
    draw = np.random.default_rng(0)
    logits = draw.normal(size=(rows, 2)).astype(np.float32)
    accepted = draw.integers(0, 3, rows)
    halves = [
        LogitSketch.from_lengths(logits[part], accepted[part])
        for part in (slice(0, 100), slice(100, None))
    ]
    assert halves[0] + halves[1] == LogitSketch.from_lengths(logits, accepted)


def test_bytes_round_trip_and_are_small() -> None:
    sketch = LogitSketch.from_records(synthetic_records(5000))
    data = sketch.to_bytes()
    assert LogitSketch.from_bytes(data) == sketch
    assert len(data) < 100_000
    empty = LogitSketch.empty(3, scale_exponent=-4)
    assert LogitSketch.from_bytes(empty.to_bytes()) == empty
    assert LogitSketch.from_bytes(empty.to_bytes()).scale_exponent == -4


def test_other_bytes_are_refused() -> None:
    data = LogitSketch.empty(2).to_bytes()
    for wrong in (b"", b"DSPS" + data[4:], data[:-1], data[:20] + b"\x01" + data[21:]):
        with pytest.raises(FormatError):
            LogitSketch.from_bytes(wrong)


def test_sketches_of_another_shape_do_not_merge() -> None:
    for other in (LogitSketch.empty(3), LogitSketch.empty(2, scale_exponent=1)):
        with pytest.raises(InvalidInputError, match="one gamma and scale"):
            LogitSketch.empty(2) + other
        assert LogitSketch.empty(2) != other
    with pytest.raises(InvalidInputError):
        LogitSketch.merged([])


def test_wrong_input_is_named() -> None:
    records = AcceptanceRecords.from_columns(
        1, {"confidence_logits": [[0.5]], "verified": [1], "accepted": [1]}
    )
    with pytest.raises(RecordError, match="soft_labels"):
        LogitSketch.from_records(records, labels="soft")
    with pytest.raises(ConfigurationError, match="labels"):
        LogitSketch.from_records(records, labels="half")  # type: ignore[arg-type]
    with pytest.raises(RecordError, match="labels"):
        LogitSketch.from_labels([[0.5]], [[1.5]])
    with pytest.raises(RecordError, match="labels"):
        LogitSketch.from_labels([[0.5]], [[1.0, 0.0]])
    with pytest.raises(RecordError, match="finite"):
        LogitSketch.from_labels([[np.nan]], [[1.0]])
    with pytest.raises(RecordError, match="accepted"):
        LogitSketch.from_lengths([[0.5], [0.5]], accepted=[1], verified=[1])
    with pytest.raises(RecordError, match="confidence_logits"):
        LogitSketch.from_lengths([0.5], accepted=[1])


def test_cells_are_many_enough_for_a_fit_on_rows() -> None:
    """Σz per cell keeps the mean; no cell between -4 and 4 is wider than 0.04."""
    edges = np.linspace(-2.0, 2.0, CELLS // 2 + 1)
    widths = np.diff(edges / (1.0 - np.abs(edges) / 4.0))
    assert widths.max() < 0.04
