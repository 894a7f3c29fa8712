"""What counts as seen before, within a bounded memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from calib.records import AcceptanceRecords, Flag
from monitoring.monitor_deduplication import RESTART_ROWS, RecentRows, request_keys


def records(steps: list[int], **columns: Any) -> AcceptanceRecords:
    count = len(steps)
    given = {
        "confidence_logits": np.zeros((count, 2), dtype=np.float32),
        "verified": [2] * count,
        "accepted": [1] * count,
        "engine": ["e"] * count,
        "request": ["r"] * count,
        "step": steps,
        **columns,
    }
    return AcceptanceRecords.from_columns(2, given)


def test_r41_the_same_engine_request_and_step_counts_once_within_and_across_batches() -> None:
    memory, first = RecentRows(100).admit(records([1, 2, 2, 3]))
    assert first.fresh.tolist() == [True, True, False, True]
    memory, second = memory.admit(records([3, 4, 1]))
    assert second.fresh.tolist() == [False, True, False]
    assert (first.duplicates, second.duplicates) == (1, 2)


def test_a_replay_that_overtook_its_original_does_not_displace_it() -> None:
    both = records([5, 5], flags=np.array([Flag.REPLAY, 0], dtype=np.uint8))
    _, found = RecentRows(100).admit(both)
    assert found.fresh.tolist() == [False, True]


def test_every_rank_of_an_engine_sees_the_same_block() -> None:
    _, found = RecentRows(100).admit(records([1, 1], rank=[0, 1]))
    assert found.fresh.tolist() == [True, False]
    _, other = RecentRows(100).admit(records([1, 1], request=["a", "b"], rank=[0, 1]))
    assert other.fresh.all()


def test_rows_without_a_key_are_never_duplicates() -> None:
    unnamed = records([-1, -1])
    memory, found = RecentRows(100).admit(unnamed)
    assert found.fresh.all()
    assert memory.admit(unnamed)[1].fresh.all()


def test_beyond_the_memory_the_high_water_mark_drops_what_cannot_be_told_apart() -> None:
    memory = RecentRows(8)
    for start in range(0, 40, 4):
        memory, found = memory.admit(records(list(range(start, start + 4))))
        assert found.fresh.all()
    assert sum(len(chunk.keys) for chunk in memory.chunks) <= 8
    memory, found = memory.admit(records([2, 100]))
    assert found.fresh.tolist() == [False, True]
    assert found.late == 1


def test_an_engine_that_counts_from_the_start_again_is_heard_after_some_rows() -> None:
    memory = RecentRows(8)
    for start in range(1000, 1040, 4):
        memory, _ = memory.admit(records(list(range(start, start + 4))))
    dropped = 0
    for start in range(0, 2 * RESTART_ROWS, 8):
        memory, found = memory.admit(records(list(range(start, start + 8)), request=["new"] * 8))
        dropped += found.late
    assert RESTART_ROWS - 8 <= dropped <= RESTART_ROWS


def test_keys_do_not_depend_on_the_process() -> None:
    """Python's own hash of a text differs from process to process; these are stored."""
    memory, _ = RecentRows(10).admit(records([7]))
    again, _ = RecentRows(10).admit(records([7]))
    assert memory.chunks[0].keys.tolist() == again.chunks[0].keys.tolist() == [EXPECTED]


def test_a_request_has_one_key_whoever_else_is_in_the_batch() -> None:
    def keys(engines: Any, requests: list[str | None]) -> list[int]:
        found = request_keys(records([1] * len(requests), engine=engines, request=requests))
        assert found is not None
        codes, known = found
        return [0 if code < 0 else int(known[code]) for code in codes]

    mixed = keys(["e", "f", None, "e"], ["a", "a", "a", None])
    assert len(set(mixed)) == 4
    assert mixed[3] == 0
    assert keys(["e", "e"], ["a", None]) == [mixed[0], 0]
    assert keys(["f"], ["a"]) == [mixed[1]]
    assert keys([None], ["a"]) == keys(None, ["a"]) == [mixed[2]]


# Computed by hand from BLAKE2b and SplitMix64 in Python integers.
def _mixed(value: int) -> int:
    mask = (1 << 64) - 1
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & mask
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & mask
    return value ^ (value >> 31)


def _expected() -> int:
    import hashlib

    def name(text: str) -> int:
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") | 1

    mask = (1 << 64) - 1
    first = _mixed((name("e") + 0x9E3779B97F4A7C15) & mask)
    return _mixed(_mixed(first ^ name("r")) ^ 7)


EXPECTED = _expected()
