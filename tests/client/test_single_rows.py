"""Rows that came one by one become blocks, in their order."""

from __future__ import annotations

from typing import Any

from dspark_calib_client.rows import Rows
from dspark_calib_client.single_rows import Applied, grouped


def single(step: int, **others: Any) -> tuple[Any, ...]:
    return ((0.5, 0.25), 2, 1, f"r{step}", step, 10.0 + step, Applied(3, 2, "affine"), others)


def test_rows_that_follow_one_another_become_one_block() -> None:
    block = Rows(2, {"step": [7, 8]}, {})
    found = grouped([single(0), single(1), block, single(2)])
    assert [part.count for part in found] == [2, 2, 1]
    assert found[1] is block
    assert found[0].columns["step"] == [0, 1]
    assert found[0].columns["timestamp"] == [10.0, 11.0]
    assert found[0].columns["revision"] == [2, 2]
    assert found[0].columns["applied_form"] == ["affine", "affine"]
    assert found[2].columns["request"] == ["r2"]


def test_other_cells_are_unknown_where_a_row_has_none() -> None:
    (block,) = grouped([single(0, domain="code"), single(1, flags=16)])
    assert block.columns["domain"] == ["code", None]
    assert block.columns["flags"] == [None, 16]


def test_a_row_may_override_what_is_filled_in() -> None:
    (block,) = grouped([single(0, revision=9, timestamp=None), single(1)])
    assert block.columns["revision"] == [9, 2]
    assert block.columns["timestamp"] == [None, 11.0]


def test_nothing_is_nothing() -> None:
    assert grouped([]) == []
    assert Applied() == Applied(0, -1, None)
