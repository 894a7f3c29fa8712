"""Marks of a stream, and the state a drafter starts from."""

from __future__ import annotations

from monitoring.monitor_state import MOST_MARKS, StreamMarks, start_monitor


def test_a_row_leads_to_the_first_batch_that_holds_none_before_it() -> None:
    marks = StreamMarks()
    for number in range(5):
        marks = marks.add(100 * number, number + 1, 10.0 * number)
    assert marks.at(0) == (1, 0.0)
    assert marks.at(100) == (2, 10.0)
    assert marks.at(101) == (3, 20.0)
    assert marks.at(10_000) == (5, 40.0)
    assert StreamMarks().at(3) is None


def test_marks_stay_few_and_the_newest_ones_whole() -> None:
    marks = StreamMarks()
    for number in range(5000):
        marks = marks.add(number, number, float(number))
    assert len(marks.rows) <= MOST_MARKS
    assert marks.rows[-100:] == tuple(range(4900, 5000))
    assert list(marks.rows) == sorted(set(marks.rows))


def test_a_fresh_state_watches_nothing_yet_and_shows_itself_briefly() -> None:
    state = start_monitor("d", 7, now=5.0, window_rows=100, consumed_through=9)
    assert (state.champion, state.rows, state.consumed_through) == (-1, 0, 9)
    assert repr(state) == "MonitorState(drafter='d', champion=-1, rows=0, consumed_through=9)"
