"""What is stored comes back bit for bit, small, and damaged bytes are noticed."""

from __future__ import annotations

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings

from calib.errors import FormatError
from calib.records import AcceptanceRecords
from monitoring.payloads import payload_of, records_of
from tests.calib.record_batches import Columns, batches, plain_records
from tests.monitoring.batch_bodies import records, row


def test_every_column_comes_back() -> None:
    sent = plain_records(50, 7)
    assert records_of(payload_of(sent)).equals(sent)


@pytest.mark.property
@settings(max_examples=50)
@given(batches())
def test_any_batch_comes_back_bit_for_bit(batch: tuple[int, Columns]) -> None:
    sent = AcceptanceRecords.from_columns(*batch)
    back = records_of(payload_of(sent))
    assert back.equals(sent)
    assert back.confidence_logits.tobytes() == sent.confidence_logits.tobytes()


@pytest.mark.parametrize(
    "cells",
    [
        {},
        {"revision": -1},
        {"revision": 7},
        {"explored": True, "propensity": 0.5},
        {"propensity": 0.0},
        {"flags": 16},
        {"anticipating": True},
    ],
)
def test_defaults_are_left_out_and_put_back(cells: dict[str, object]) -> None:
    sent = records([row(**cells), row(**cells)])
    assert records_of(payload_of(sent)).equals(sent)
    mixed = records([row(), row(**cells)]) if cells else sent
    assert records_of(payload_of(mixed)).equals(mixed)


def test_columns_of_unknown_cells_stay_columns() -> None:
    sent = records([row(domain=None, step=None, scheduled=None, soft_labels=None)])
    assert sent.domain is not None
    assert records_of(payload_of(sent)).equals(sent)


def test_no_rows_come_back_as_no_rows() -> None:
    back = records_of(payload_of(AcceptanceRecords.empty(5)))
    assert (back.gamma, len(back)) == (5, 0)


def test_a_small_batch_takes_little_more_than_its_rows() -> None:
    draw = np.random.default_rng(0)
    rows = [row(confidence_logits=draw.normal(size=3).tolist()) for _ in range(10)]
    assert len(payload_of(records(rows))) < 10 * 3 * 4 + 500


@pytest.mark.parametrize("place", [0, 20, 100, -5, -1])
def test_damage_is_noticed(place: int) -> None:
    payload = bytearray(payload_of(plain_records(50, 3)))
    payload[place] ^= 1
    with pytest.raises(FormatError, match="stored batch"):
        records_of(bytes(payload))


@pytest.mark.parametrize(
    "payload",
    [b"", b"text", payload_of(plain_records())[:-3], zstandard.compress(b"no stream")],
)
def test_foreign_bytes_are_refused(payload: bytes) -> None:
    with pytest.raises(FormatError, match="stored batch"):
        records_of(payload)
