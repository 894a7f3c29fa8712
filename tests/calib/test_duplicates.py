from __future__ import annotations

from typing import Any

import numpy as np

from calib.duplicates import drop_duplicates, duplicate_rows
from calib.record_schema import Flag
from calib.records import AcceptanceRecords
from tests.calib.record_batches import lengths

Key = tuple[str | None, str | None, int | None]


def rows_of(*keys: Key, replay: tuple[int, ...] = ()) -> AcceptanceRecords:
    columns: dict[str, Any] = lengths(*[(2, 1)] * len(keys), gamma=2)
    engine, request, step = zip(*keys, strict=True)
    columns |= {"engine": list(engine), "request": list(request), "step": list(step)}
    columns["flags"] = [int(Flag.REPLAY) if row in replay else 0 for row in range(len(keys))]
    return AcceptanceRecords.from_columns(2, columns)


def test_r41_sent_twice_and_replayed_counts_once() -> None:
    same: Key = ("e1", "r1", 17)
    kept = drop_duplicates(rows_of(same, same, same, replay=(2,)))
    assert len(kept) == 1
    assert len(kept.fitting_rows()) == 1


def test_a_replay_that_overtook_its_original_gives_way() -> None:
    same: Key = ("e1", "r1", 17)
    assert duplicate_rows(rows_of(same, same, replay=(0,))).tolist() == [True, False]


def test_replays_without_an_original_are_kept_once_and_stay_out_of_fits() -> None:
    same: Key = ("e1", "r1", 17)
    kept = drop_duplicates(rows_of(same, same, replay=(0, 1)))
    assert len(kept) == 1
    assert len(kept.fitting_rows()) == 0


def test_each_part_of_the_key_tells_rows_apart() -> None:
    rows = rows_of(("e1", "r1", 1), ("e2", "r1", 1), ("e1", "r2", 1), ("e1", "r1", 2))
    assert not duplicate_rows(rows).any()


def test_rows_with_an_unknown_key_are_never_duplicates() -> None:
    rows = rows_of(*[(None, "r1", 1)] * 2, *[("e1", None, 1)] * 2, *[("e1", "r1", None)] * 2)
    assert not duplicate_rows(rows).any()
    bare = AcceptanceRecords.from_columns(2, lengths((2, 1), (2, 1), gamma=2))
    assert len(drop_duplicates(bare)) == 2


def test_order_is_kept() -> None:
    rows = rows_of(("e", "a", 1), ("e", "b", 1), ("e", "a", 1), ("e", "c", 1))
    kept = drop_duplicates(rows)
    assert kept.request is not None
    assert kept.request.tolist() == ["a", "b", "c"]


def test_many_rows_agree_with_looking_at_each() -> None:
    draw = np.random.default_rng(0)
    keys: list[Key] = [
        (f"e{draw.integers(3)}", f"r{draw.integers(20)}", int(draw.integers(-1, 40)))
        for _ in range(3000)
    ]
    keys = [(engine, request, None if step < 0 else step) for engine, request, step in keys]
    seen: set[Key] = set()
    expected = []
    for key in keys:
        expected.append(key[2] is not None and key in seen)
        seen.add(key)
    assert duplicate_rows(rows_of(*keys)).tolist() == expected
