"""Handing over rows: whatever they are, they are taken or counted, and nothing raises."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dspark_calib_client.coded_text import CodedText
from dspark_calib_client.counters import Counters
from dspark_calib_client.row_queue import RowQueue
from dspark_calib_client.single_rows import Applied, grouped
from dspark_calib_client.telemetry import Telemetry
from dspark_calib_client.telemetry_options import TelemetryOptions

GAMMA = 3


class Desk:
    """A :class:`Telemetry` and what it hands to."""

    def __init__(self, *, mismatch: bool = False, **options: Any) -> None:
        chosen = TelemetryOptions(**options)
        self.queue = RowQueue(chosen)
        self.counters = Counters()
        self.rows = Telemetry(
            GAMMA,
            chosen,
            self.queue,
            self.counters,
            refuses=lambda: mismatch,
            wall_clock=lambda: 1234.5,
        )

    def observe(self, logits: Any = (0.1, 0.2, 0.3), **cells: Any) -> bool:
        request, step = cells.pop("request", None), cells.pop("step", None)
        return self.rows.observe(logits, 3, 1, request, step, cells)


def test_a_row_is_stamped_with_time_and_revision() -> None:
    desk = Desk()
    desk.rows.applied = Applied(publication=5, revision=4, form="temperatures")
    assert desk.observe(request="r1", step=9, domain="code")
    assert _columns_of(desk) == {
        "confidence_logits": [(0.1, 0.2, 0.3)],
        "verified": [3],
        "accepted": [1],
        "request": ["r1"],
        "step": [9],
        "timestamp": [1234.5],
        "revision": [4],
        "applied_form": ["temperatures"],
        "domain": ["code"],
    }


def test_nothing_applied_is_an_unknown_revision() -> None:
    desk = Desk()
    desk.observe()
    assert _columns_of(desk)["revision"] == [-1]


def test_a_row_may_say_it_itself() -> None:
    desk = Desk()
    desk.observe(revision=2, timestamp=1.0)
    desk.observe()
    columns = _columns_of(desk)
    assert (columns["revision"], columns["timestamp"]) == ([2, -1], [1.0, 1234.5])


def test_the_logits_are_copied() -> None:
    desk = Desk()
    buffer = np.zeros(3, np.float32)
    desk.observe(buffer)
    buffer[:] = 9.0
    assert desk.queue.take(at_once=True)[0][0] == (0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    "logits", [None, 5, "abcd", [], [1.0], [1.0] * 4, np.zeros((3, 3, 3))[0, 0, :2], object()]
)
def test_rows_of_another_shape_are_counted(logits: Any) -> None:
    desk = Desk()
    assert not desk.observe(logits)
    assert desk.counters.value("rows_malformed") == 1
    assert desk.queue.offered == 0


def test_a_column_that_does_not_exist_is_counted() -> None:
    desk = Desk()
    assert not desk.observe(colour="red")
    assert desk.counters.value("rows_malformed") == 1


def test_rows_of_another_key_are_refused() -> None:
    desk = Desk(mismatch=True)
    assert not desk.observe()
    assert desk.rows.record_rows(_columns(5)) == 0
    assert desk.counters.value("rows_other_key") == 6
    assert desk.queue.offered == 0


def test_many_rows_are_cut_into_batches() -> None:
    desk = Desk(batch_rows=40)
    assert desk.rows.record_rows(_columns(100)) == 100
    sizes = []
    while entries := desk.queue.take(at_once=True):
        sizes += [entry.count for entry in entries]
        assert all(len(entry.columns["confidence_logits"]) == entry.count for entry in entries)
    assert sizes == [40, 40, 20]


@pytest.mark.parametrize(
    ("columns", "lost"),
    [
        (None, 1),
        ({}, 1),
        ({"verified": [1, 2, 3]}, 3),
        ("text", 1),
        ({"verified": [1], "accepted": [1], "confidence_logits": 7}, 1),
    ],
)
def test_columns_of_nonsense_are_counted(columns: Any, lost: int) -> None:
    desk = Desk()
    assert desk.rows.record_rows(columns) == 0
    assert desk.counters.value("rows_malformed") == lost


def test_no_rows_are_no_rows() -> None:
    desk = Desk()
    assert desk.rows.record_rows(_columns(0)) == 0
    assert desk.counters.snapshot() == {}


@pytest.mark.parametrize("one_by_one", [True, False])
@pytest.mark.parametrize("arrays", [True, False])
@pytest.mark.parametrize("coded", [True, False])
def test_requests_are_sampled_whole(one_by_one: bool, arrays: bool, coded: bool) -> None:
    desk = Desk(share=0.5)
    requests = [f"r{index % 50}" for index in range(1000)]
    if one_by_one:
        for request in requests:
            desk.observe(request=request)
        taken = _columns_of(desk)["request"]
    else:
        columns = _columns(1000) if arrays else {n: list(c) for n, c in _columns(1000).items()}
        codes = CodedText(np.arange(1000) % 50, requests[:50])
        desk.rows.record_rows({**columns, "request": codes if coded else requests})
        taken = [name for entry in _all(desk) for name in _list(entry.columns["request"])]
    kept = set(taken)
    assert 5 < len(kept) < 45
    assert taken == [request for request in requests if request in kept]
    assert desk.counters.value("rows_sampled_out") == 1000 - len(taken)


def test_the_sample_knows_nothing_of_outcomes() -> None:
    """The same requests are kept whatever was accepted."""
    kept = []
    for accepted in (0, 3):
        desk = Desk(share=0.5)
        for index in range(200):
            desk.rows.observe((0.0, 0.0, 0.0), 3, accepted, f"r{index}", index, {})
        kept.append(_columns_of(desk)["request"])
    assert kept[0] == kept[1]


@pytest.mark.parametrize("with_steps", [True, False])
def test_rows_without_a_request_are_sampled_too(with_steps: bool) -> None:
    """Within five standard deviations (32) of half of 1,000."""
    desk = Desk(share=0.5)
    for index in range(1000):
        desk.observe(step=index if with_steps else None)
    assert abs(desk.queue.offered - 500) < 80


def _columns(count: int) -> dict[str, Any]:
    return {
        "confidence_logits": np.zeros((count, GAMMA), np.float32),
        "verified": np.full(count, 3),
        "accepted": np.zeros(count, int),
    }


def _list(cells: Any) -> list[Any]:
    return cells if isinstance(cells, list) else list(cells.tolist())


def _all(desk: Desk) -> list[Any]:
    entries: list[Any] = []
    while more := desk.queue.take(at_once=True):
        entries += more
    return entries


def _columns_of(desk: Desk) -> dict[str, Any]:
    """The columns of all rows that were taken one by one."""
    (block,) = grouped(_all(desk))
    return dict(block.columns)
