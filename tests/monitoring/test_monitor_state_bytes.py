"""Stored states: exact, checked, bounded."""

from __future__ import annotations

from dataclasses import replace

import pytest

from calib.errors import FormatError
from monitoring.loop_decisions import Alarm
from monitoring.loop_settings import LoopSettings
from monitoring.monitor_state_bytes import state_from_bytes, state_to_bytes
from tests.monitoring.loop_rows import folded, of_kind, revision, rows, started

SETTINGS = LoopSettings(refit_seconds=0.0)


@pytest.fixture(scope="module")
def stored() -> bytes:
    """After alarms, a trial under way and a watched promotion."""
    state, _ = folded(started(SETTINGS), rows(1, 1000), champion=revision(0), settings=SETTINGS)
    state, decided = folded(
        state,
        rows(2, 3000, scale=1.4, first_step=1000, domain=["math", "code"] * 1500),
        champion=revision(1, 1.05),
        settings=SETTINGS,
        previous=revision(0),
        challenger=revision(2, 1.2, window={"last_batch": 3}),
        first_batch=3,
    )
    assert of_kind(decided, Alarm)
    assert state.trial is not None
    return state_to_bytes(state)


def test_everything_comes_back_to_the_last_bit(stored: bytes) -> None:
    state = state_from_bytes(stored)
    assert state_to_bytes(state) == stored
    assert (state.champion, state.challengers) == (1, 1)
    assert state.watch is not None
    assert set(state.segments) == {"domain=code", "domain=math"}
    assert state.announced
    assert state.act_row is not None


@pytest.mark.parametrize("damage", ["cut", "flip", "kind", "version", "empty"])
def test_damaged_bytes_are_refused(stored: bytes, damage: str) -> None:
    broken = {
        "cut": stored[:-1],
        "flip": stored[:40] + bytes([stored[40] ^ 1]) + stored[41:],
        "kind": b"XXXX" + stored[4:],
        "version": stored[:4] + b"\x09\x00" + stored[6:],
        "empty": b"",
    }[damage]
    with pytest.raises(FormatError, match="monitor state"):
        state_from_bytes(broken)


def test_a_state_without_rows_comes_back() -> None:
    state = started(SETTINGS)
    assert state_to_bytes(state_from_bytes(state_to_bytes(state))) == state_to_bytes(state)


def test_a_state_stays_small_however_many_rows_and_hours(stored: bytes) -> None:
    state = state_from_bytes(stored)
    settings = replace(SETTINGS, hours=3, automatic=False, window_rows=4096)
    for hour in range(4):
        state = replace(state, updated_at=state.updated_at + 3600.0)
        state, _ = folded(
            state,
            rows(10 + hour, 1000, first_step=10_000 + 1000 * hour),
            champion=revision(1, 1.05),
            settings=settings,
            batch_rows=1000,
            first_batch=100 + 10 * hour,
        )
    assert len(state.sketches.closed) <= 2
    assert len(state_to_bytes(state)) < 2_000_000
