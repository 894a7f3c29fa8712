"""Sketches by hour: exact, bounded, and the same however the rows were cut."""

from __future__ import annotations

from calib.logit_sketch import LogitSketch
from calib.pair_sketch import PairSketch
from monitoring.hour_sketches import HourSketches, pack_open, unpack_open
from monitoring.payloads import payload_of
from tests.monitoring.loop_rows import rows

HOUR = 3600.0


def test_an_hour_holds_exactly_its_rows() -> None:
    records = rows(1, 900, domain=["a", "b", "c"] * 300)
    sketches = HourSketches()
    for start in range(0, 900, 300):
        part = records.select(slice(start, start + 300))
        sketches = sketches.add(part, batch=1 + start // 300, now=10.0 * HOUR + start, hours=24)
    (found,) = sketches.newest(from_batch=1)
    assert found.labels == LogitSketch.from_records(records)
    assert found.pairs == PairSketch.from_records(records)
    assert sketches.newest(from_batch=2) == ()  # the hour began with batch 1


def test_old_hours_go_and_the_newest_ones_are_fitted_apart() -> None:
    sketches = HourSketches()
    for hour in range(5):
        sketches = sketches.add(rows(hour, 50), batch=hour, now=hour * HOUR + 1.0, hours=3)
    whole = sketches.settled(hours=3)
    assert [each.hour for each in whole.closed] == [2, 3]
    assert whole.open is not None
    assert whole.open.hour == 4
    for found in (sketches.newest(from_batch=3), sketches.newest(2)):
        assert [each.hour for each in found] == [3, 4]
        for each in found:
            assert each.labels == LogitSketch.from_records(rows(each.hour, 50))
    assert [each.hour for each in whole.newest()] == [2, 3, 4]
    assert [each.hour for each in sketches.newest(1)] == [4]


def test_hours_without_rows_count_by_the_clock() -> None:
    sketches = HourSketches()
    for hour in (1, 2, 9):
        sketches = sketches.add(rows(hour, 20), batch=hour, now=hour * HOUR, hours=24)
    assert [each.hour for each in sketches.newest(3)] == [9]
    assert [each.hour for each in sketches.newest(8)] == [2, 9]


def test_an_open_hour_comes_back_as_it_was() -> None:
    sketches = HourSketches().add(rows(3, 80), batch=1, now=1.0, hours=2).settled(hours=2)
    assert sketches.open is not None
    again = unpack_open(pack_open(sketches.open))
    assert again.labels == sketches.open.labels
    assert again.pairs == sketches.open.pairs


def test_sketches_do_not_grow_with_the_words_that_requests_use() -> None:
    few, many = (
        HourSketches().add(
            rows(5, 400, domain=[f"d{row % words}" for row in range(400)]),
            batch=1,
            now=1.0,
            hours=2,
        )
        for words in (1, 400)
    )
    sizes = [[len(payload_of(part)) for part in found.joined().pending] for found in (few, many)]
    assert sizes[0] == sizes[1]
    packed = [pack_open(found.newest()[0]) for found in (few, many)]
    assert packed[0] == packed[1]


def test_no_rows_no_hour() -> None:
    empty = rows(4, 10).select(slice(0, 0))
    assert HourSketches().add(empty, batch=1, now=1.0, hours=2).newest() == ()
