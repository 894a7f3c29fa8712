from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calib.acceptance_summary import AcceptanceSummary
from calib.engine_conventions import cut_at_stop_token
from calib.errors import RecordError
from calib.record_schema import Flag
from calib.records import AcceptanceRecords
from tests.calib.record_batches import lengths


def rates(summary: AcceptanceSummary, name: str) -> list[float | None]:
    return [getattr(position, name) for position in summary.positions]


def geometric_lengths(rate: float, gamma: int, rows: int) -> list[int]:
    """Accepted lengths with exactly ``rows * rate**k`` blocks reaching k; rows divide evenly."""
    survivors = [round(rows * rate**k) for k in range(gamma + 1)] + [0]
    return [n for n in range(gamma + 1) for _ in range(survivors[n] - survivors[n + 1])]


def test_r43_what_nobody_observed_is_null_never_zero() -> None:
    summary = AcceptanceSummary.from_lengths([3] * 10, [0] * 10, 3)
    assert rates(summary, "marginal") == [0.0, 0.0, 0.0]
    assert rates(summary, "conditional") == [0.0, None, None]
    assert summary.accepted_length == 1.0
    assert rates(summary, "observed") == [10, 0, 0]


def test_r37_rate_among_verified_with_its_coverage() -> None:
    trimmed = AcceptanceSummary.from_lengths([3] * 60 + [2] * 40, [3] * 54 + [2] * 46, 3)
    third = trimmed.positions[2]
    assert (third.conditional, third.coverage) == (0.90, 0.60)
    assert (third.observed, third.survived) == (60, 54)
    untrimmed = AcceptanceSummary.from_lengths([3] * 100, [3] * 70 + [2] * 30, 3)
    assert untrimmed.positions[2].conditional == 0.70
    (note,) = trimmed.incomparable_because(untrimmed)
    assert note.startswith("position 3: coverage 0.60 against 1.00")
    assert trimmed.incomparable_because(trimmed) == ()


def test_r47_lengths_are_pooled_never_averaged() -> None:
    first = AcceptanceSummary.from_lengths([4], [0], 4)
    second = AcceptanceSummary.from_lengths([4] * 9, [4] * 9, 4)
    assert second.accepted_length == 5.0
    assert (first + second).accepted_length == 4.6


def test_r48_a_mean_rate_depends_on_gamma_and_is_not_compared() -> None:
    rows = 5**8
    short = geometric_lengths(0.8, 4, rows)
    long = geometric_lengths(0.8, 8, rows)
    four = AcceptanceSummary.from_lengths([4] * rows, short, 4)
    eight = AcceptanceSummary.from_lengths([8] * rows, long, 8)
    assert rates(four, "conditional") == pytest.approx([0.8] * 4, abs=1e-12)
    assert rates(eight, "conditional") == pytest.approx([0.8] * 8, abs=1e-12)
    assert four.mean_rate == pytest.approx(0.590, abs=5e-4)
    assert eight.mean_rate == pytest.approx(0.416, abs=5e-4)
    (note,) = four.incomparable_because(eight)
    assert "gamma 4 against 8" in note
    with pytest.raises(RecordError, match=r"gamma: got \(4, 8\)"):
        four + eight


def test_r38_a_block_that_ends_with_its_stop_token_emits_no_bonus() -> None:
    tokens = [[11, 12, 2, 13, 14, 15]]
    cut = cut_at_stop_token(tokens, [6], [6], stop_ids={2})
    columns = lengths((int(cut.verified[0]), int(cut.accepted[0])), gamma=6)
    columns |= {"flags": cut.flags.tolist(), "scheduled": cut.scheduled.tolist()}
    summary = AcceptanceSummary.from_records(AcceptanceRecords.from_columns(6, columns))
    assert rates(summary, "observed") == [1, 1, 1, 0, 0, 0]
    assert summary.emitted_tokens == 3
    assert summary.emitted_per_round == 3.0


def test_a_rejected_stop_token_leaves_the_bonus() -> None:
    stopped = np.array([True, True])
    summary = AcceptanceSummary.from_lengths([3, 3], [3, 1], 6, stopped)
    assert summary.emitted_tokens == 3 + 2


def test_r51_warm_up_is_ignored() -> None:
    normal = [(2, row % 3) for row in range(500)]
    columns = lengths(*[(2, 0)] * 50, *normal, gamma=2)
    columns["flags"] = [int(Flag.WARMUP)] * 50 + [0] * 500
    summary = AcceptanceSummary.from_records(AcceptanceRecords.from_columns(2, columns))
    alone = AcceptanceRecords.from_columns(2, lengths(*normal, gamma=2))
    assert summary == AcceptanceSummary.from_records(alone)
    assert summary.rows == 500


def test_r52_forced_rows_raise_no_rate() -> None:
    columns = lengths((2, 0), (2, 2), gamma=2) | {"flags": [0, int(Flag.FORCED_ACCEPTANCE)]}
    summary = AcceptanceSummary.from_records(AcceptanceRecords.from_columns(2, columns))
    assert rates(summary, "marginal") == [0.0, 0.0]


def test_no_rows_have_no_rates() -> None:
    summary = AcceptanceSummary.from_records(AcceptanceRecords.empty(2))
    assert summary.accepted_length is None
    assert summary.mean_rate is None
    assert summary.emitted_per_round is None
    assert rates(summary, "coverage") == [None, None]
    assert summary.incomparable_because(summary) == ("no rows on one side",)


def test_to_dict_is_plain_json_without_nan() -> None:
    summary = AcceptanceSummary.from_lengths([2, 1], [0, 1], 2)
    document = json.loads(json.dumps(summary.to_dict(), allow_nan=False))
    assert document["accepted_length"] == 1.5
    assert document["positions"][0] == {
        "position": 1,
        "reached": 2,
        "observed": 2,
        "survived": 1,
        "coverage": 1.0,
        "marginal": 0.5,
        "conditional": 0.5,
    }
    assert document["positions"][1]["conditional"] is None


@pytest.mark.property
@given(
    pairs=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=20),
    cut=st.integers(0, 20),
)
def test_parts_add_up_to_the_whole(pairs: list[tuple[int, int]], cut: int) -> None:
    verified = np.array([max(pair) for pair in pairs])
    accepted = np.array([min(pair) for pair in pairs])
    whole = AcceptanceSummary.from_lengths(verified, accepted, 5)
    head = AcceptanceSummary.from_lengths(verified[:cut], accepted[:cut], 5)
    tail = AcceptanceSummary.from_lengths(verified[cut:], accepted[cut:], 5)
    assert head + tail == whole
    assert whole.accepted_length == pytest.approx(1 + accepted.mean())
