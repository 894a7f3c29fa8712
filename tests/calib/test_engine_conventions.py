from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from calib.data_quality import first_position_always_accepted
from calib.engine_conventions import cut_at_stop_token, draft_lengths, drop_anchor_slot
from calib.errors import RecordError
from calib.record_schema import Flag
from calib.records import AcceptanceRecords, validate_rows


def anchored_batch(rows: int = 500) -> dict[str, Any]:
    """Eight slots for γ = 7: slot 0 is the anchor and counted in both lengths."""
    rng = np.random.default_rng(49)
    logits = rng.normal(size=(rows, 8)).astype(np.float32)
    return {
        "confidence_logits": logits,
        "verified": np.full(rows, 8, dtype=np.uint8),
        "accepted": rng.integers(1, 9, size=rows).astype(np.uint8),
    }


def test_r49_the_anchor_slot_is_dropped() -> None:
    sent = anchored_batch()
    records = AcceptanceRecords.from_columns(7, drop_anchor_slot(7, sent))
    assert records.gamma == 7
    assert np.array_equal(records.confidence_logits, sent["confidence_logits"][:, 1:])
    assert (records.verified == 7).all()
    assert np.array_equal(records.accepted, sent["accepted"] - 1)
    assert not first_position_always_accepted(records)


def test_r49_without_it_eight_slots_do_not_pass_for_gamma_7() -> None:
    with pytest.raises(RecordError, match="drop_anchor_slot"):
        AcceptanceRecords.from_columns(7, anchored_batch())


def test_r49_sent_as_gamma_8_the_first_position_is_flagged() -> None:
    records = AcceptanceRecords.from_columns(8, anchored_batch())
    assert first_position_always_accepted(records)


def test_lists_and_arrays_lose_the_same_slot() -> None:
    sent = anchored_batch(20) | {"scheduled": np.full(20, 255, dtype=np.uint8)}
    sent["soft_labels"] = np.full((20, 8), 0.5, dtype=np.float32)
    as_lists = {name: values.tolist() for name, values in sent.items()}
    from_arrays = AcceptanceRecords.from_columns(7, drop_anchor_slot(7, sent))
    from_lists = AcceptanceRecords.from_columns(7, drop_anchor_slot(7, as_lists))
    assert from_lists.equals(from_arrays)
    assert from_lists.scheduled is not None
    assert (from_lists.scheduled == 255).all()


def test_bad_cells_stay_bad_after_dropping_the_anchor() -> None:
    sent = {
        "confidence_logits": [[0.0] * 3, [0.0] * 2, [0.0] * 3, [0.0] * 3, None],
        "verified": [3, 3, 0, True, 3],
        "accepted": [1, 1, 0, 1, 1],
        "domain": None,
    }
    good, rejected = validate_rows(2, drop_anchor_slot(2, sent))
    assert len(good) == 1
    assert [(entry.row, entry.field) for entry in rejected] == [
        (1, "confidence_logits"),
        (2, "verified"),
        (3, "verified"),
        (4, "confidence_logits"),
    ]


def test_an_array_without_an_anchor_slot_is_refused() -> None:
    with pytest.raises(RecordError, match=r"give shape \(rows, 8\)"):
        drop_anchor_slot(7, {"confidence_logits": np.zeros((5, 7))})
    floats = drop_anchor_slot(7, {"verified": np.zeros(2)})
    assert validate_rows(7, floats)[1][0].field == "confidence_logits"


def test_zero_lengths_do_not_wrap() -> None:
    converted = drop_anchor_slot(7, {"verified": np.zeros(1, dtype=np.uint8)})
    assert np.asarray(converted["verified"]).tolist() == [-1]


def test_r39_padding_is_no_draft() -> None:
    lengths = draft_lengths([[-1, -1, -1, -1], [17, 9, -1, -1], [1, 2, 3, 4]])
    assert lengths.tolist() == [0, 2, 4]


@pytest.mark.parametrize("tokens", [[[17, -1, 9]], [[-1, 3, 4]], [[-2, -1, -1]], [[1.5]], [1, 2]])
def test_padding_inside_a_block_is_refused(tokens: Any) -> None:
    with pytest.raises(RecordError, match=r"^draft_tokens: "):
        draft_lengths(tokens)


def test_r38_cut_at_the_first_drafted_stop_token() -> None:
    cut = cut_at_stop_token([[11, 12, 2, 13, 2, 15]], [6], [6], stop_ids=[2])
    assert (cut.verified.tolist(), cut.accepted.tolist()) == ([3], [3])
    assert cut.scheduled.tolist() == [6]
    assert cut.flags.tolist() == [int(Flag.STOP_TRUNCATED)]


@pytest.mark.parametrize(
    ("verified", "accepted", "expected"),
    [
        (6, 1, (3, 1, True)),  # the stop token was never reached: still cut
        (3, 3, (3, 3, True)),  # nothing to cut, but no bonus either
        (2, 2, (2, 2, False)),  # not verified: the scheduler trimmed before it
        (0, 0, (0, 0, False)),
    ],
)
def test_the_cut_depends_on_the_draft_not_on_the_outcome(
    verified: int, accepted: int, expected: tuple[int, int, bool]
) -> None:
    cut = cut_at_stop_token([[11, 12, 2, 13, 14, 15]], [verified], [accepted], stop_ids={2})
    found = (int(cut.verified[0]), int(cut.accepted[0]), bool(cut.stop_truncated[0]))
    assert found == expected
    assert cut.scheduled.tolist() == [verified]


def test_rows_without_stop_tokens_are_untouched() -> None:
    tokens = [[5, 6, 7], [2, -1, -1]]
    for stop_ids in ((), {9}):
        cut = cut_at_stop_token(tokens, [3, 1], [2, 1], stop_ids)
        assert cut.verified.tolist() == [3, 1]
        assert cut.accepted.tolist() == [2, 1]
        assert cut.flags.tolist() == [0, 0]
        assert cut.flags.dtype == np.uint8


@pytest.mark.parametrize(
    ("verified", "accepted", "stop_ids", "field"),
    [
        ([4], [1], {2}, "verified"),
        ([3], [4], {2}, "accepted"),
        ([3], [-1], {2}, "accepted"),
        ([3.0], [1], {2}, "verified"),
        ([3, 3], [1, 1], {2}, "verified"),
        ([3], [1], {-1}, "stop_ids"),
        ([3], [1], {True}, "stop_ids"),
    ],
)
def test_a_cut_of_lengths_that_mean_nothing_is_refused(
    verified: Any, accepted: Any, stop_ids: Any, field: str
) -> None:
    with pytest.raises(RecordError) as caught:
        cut_at_stop_token([[5, 6, 7]], verified, accepted, stop_ids)
    assert caught.value.field == field
