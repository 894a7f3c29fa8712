"""What both kinds of sketches share; their cells are tested with each kind."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from calib.errors import FormatError, InvalidInputError, RecordError
from calib.logit_sketch import LogitSketch
from calib.mergeable_sketch import MergeableSketch
from calib.pair_sketch import PairSketch
from tests.support.telemetry import synthetic_records

KINDS = pytest.mark.parametrize("kind", [LogitSketch, PairSketch])


@KINDS
def test_r26_any_split_and_order_gives_the_same_bytes(kind: type[MergeableSketch]) -> None:
    records = synthetic_records(900)
    whole = kind.from_records(records).to_bytes()
    parts = [kind.from_records(records.select(slice(i, None, 3))) for i in range(3)]
    for order in itertools.permutations(parts):
        assert kind.merged(order).to_bytes() == whole
    assert kind.merged([kind.empty(7), *parts]).to_bytes() == whole


@KINDS
def test_labels_and_lengths_are_two_ways_to_say_one_thing(kind: type[MergeableSketch]) -> None:
    logits = [[1.0, 0.5, -2.0], [0.25, -1.0, 3.0]]
    by_length = kind.from_lengths(logits, accepted=[1, 2], verified=[3, 2])
    by_label = kind.from_labels(logits, [[1, 0, np.nan], [1, 1, np.nan]])
    assert by_length == by_label
    assert by_length != kind.empty(3)


@KINDS
def test_kinds_and_scales_do_not_mix(kind: type[MergeableSketch]) -> None:
    other: type[MergeableSketch] = PairSketch if kind is LogitSketch else LogitSketch
    with pytest.raises(TypeError):
        kind.empty(3) + other.empty(3)
    assert kind.empty(3) != other.empty(3)
    with pytest.raises(InvalidInputError, match="one gamma and scale"):
        kind.empty(3) + kind.empty(3, scale_exponent=2)
    with pytest.raises(FormatError):
        kind.from_bytes(other.empty(3).to_bytes())


@KINDS
def test_no_rows_are_an_empty_sketch(kind: type[MergeableSketch]) -> None:
    nothing = kind.from_lengths(np.zeros((0, 3)), accepted=[])
    assert nothing == kind.empty(3)
    assert nothing.rows.sum() == 0


@KINDS
def test_bytes_of_another_resolution_are_refused(kind: type[MergeableSketch]) -> None:
    data = bytearray(kind.empty(2).to_bytes())
    data[12:16] = (100).to_bytes(4, "little")  # the second of three header fields
    with pytest.raises(FormatError, match="cells where this release"):
        kind.from_bytes(bytes(data))


@KINDS
def test_wrong_shapes_are_named(kind: type[MergeableSketch]) -> None:
    with pytest.raises(RecordError, match="confidence_logits"):
        kind.from_lengths([1.0, 2.0], accepted=[1, 0])
    with pytest.raises(RecordError, match="accepted"):
        kind.from_lengths([[1.0, 2.0]], accepted=[1, 0], verified=[2, 2])
    with pytest.raises(InvalidInputError, match="parts"):
        kind.merged([])
