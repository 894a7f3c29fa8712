"""Counting: SGLang's way in, ours out. Lengths are worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from calib.engine_conventions import cut_at_stop_token
from dspark_calib_client.plugins.sglang.request_tags import RequestTags, TagBatch
from dspark_calib_client.plugins.sglang.step_copies import StepCopy
from dspark_calib_client.plugins.sglang.step_rows import StepNote, step_columns
from tests.client.plugins.sglang.host import EOS, Request

pytestmark = pytest.mark.torch

OWNERS: list[Request] = []  # requests live as long as their engine keeps them


def tags(*, ignore_eos: bool = False) -> RequestTags:
    OWNERS.append(Request("r", ignore_eos=ignore_eos))
    return RequestTags(OWNERS[-1], "domain", "tenant")


NOTE = StepNote(
    batch=TagBatch(()),
    step=5,
    timestamp=1.0,
    mode="compact",
    trimmed=True,
    full=False,
    greedy_draft=False,
    block_rule=False,
    forced=False,
    revision=0,
    applied_form="identity",
)


def columns(
    rows: list[tuple[list[int], int, int, int, int]],  # drafts, correct, trim, bonus, verify_len
    named: list[RequestTags] | None = None,
    **changes: Any,
) -> tuple[dict[str, Any], int]:
    note = replace(NOTE, batch=TagBatch(named or [tags() for _ in rows]), **changes)
    integers = [
        [5, *drafts, correct, trim, bonus, 9, length]
        for drafts, correct, trim, bonus, length in rows
    ]
    logits = np.zeros((len(rows), len(rows[0][0])), np.float32)
    return step_columns(StepCopy(note, logits, np.array(integers)))


def lengths(found: dict[str, Any]) -> list[tuple[int, int, int]]:
    names = ("verified", "accepted", "scheduled")
    return [tuple(map(int, row)) for row in zip(*(found[name] for name in names), strict=True)]


def test_the_anchor_is_not_counted() -> None:
    found, _ = columns([([11, 12, 13], 0, 0, 7, 1), ([11, 12, 13], 2, 0, 7, 4)])
    assert lengths(found) == [(0, 0, 0), (3, 2, 3)]


def test_without_a_layout_everything_was_verified() -> None:
    found, _ = columns([([11, 12, 13], 2, 0, 7, 2)], trimmed=False, full=True)
    assert lengths(found) == [(3, 2, 3)]
    assert found["propensity"].tolist() == [1.0]


def test_a_cap_hides_nothing() -> None:
    """Cap-accept: three drafts were right, one was kept, two were trimmed."""
    found, _ = columns([([11, 12, 13], 1, 2, 7, 2)], mode="cap-accept")
    assert lengths(found) == [(3, 3, 3)]


def test_r38_a_drafted_stop_token_ends_the_block_accepted_or_not() -> None:
    rows = [
        ([11, 12, EOS, 13, 14, 15], 6, 0, 7, 7),  # all match, the stop is the third
        ([11, 12, EOS, 13, 14, 15], 1, 0, 7, 7),  # it was rejected before it came to that
        ([11, 12, EOS, 13, 14, 15], 2, 0, 7, 3),  # it was never verified
    ]
    found, _ = columns(rows)
    assert lengths(found) == [(3, 3, 6), (3, 1, 6), (2, 2, 2)]
    assert found["flags"].tolist() == [16, 16, 0]
    cut = cut_at_stop_token([row[0] for row in rows], [6, 6, 2], [6, 1, 2], {EOS})
    assert [row[:2] for row in lengths(found)] == list(
        zip(cut.verified.tolist(), cut.accepted.tolist(), strict=True)
    )
    unmoved, _ = columns(rows[:1], [tags(ignore_eos=True)])
    assert lengths(unmoved) == [(6, 6, 6)]


@pytest.mark.parametrize(
    ("row", "ends"),
    [
        (([11, EOS, 13], 2, 0, 7, 4), True),  # the stop was kept
        (([11, EOS, 13], 1, 0, 7, 4), False),  # rejected: the text goes on with the bonus
        (([11, 12, 13], 1, 0, EOS, 4), True),  # the bonus is the stop
    ],
)
def test_rows_behind_the_end_of_a_text_are_left_out(
    row: tuple[list[int], int, int, int, int], ends: bool
) -> None:
    """Overlapped scheduling decodes a step more before it hears that the request is over."""
    one, other = tags(), tags()
    first, past = columns([row, ([11, 12, 13], 1, 0, 7, 4)], [one, other])
    assert (len(first["verified"]), past) == (2, 0)
    second, past = columns([([21, 22, 23], 3, 0, 7, 4)] * 2, [one, other])
    assert (len(second["verified"]), past) == ((1, 1) if ends else (2, 0))
    assert len(second["request"]) == len(second["verified"])


def test_rules_and_drafts_are_named_row_by_row() -> None:
    greedy = RequestTags(OWNERS.append(Request("g", top_k=1)) or OWNERS[-1], "d", "t")
    both = [greedy, tags()]
    rows = [([11, 12, 13], 1, 0, 7, 4)] * 2
    found, _ = columns(rows, both)
    assert found["acceptance_rule"] == ["greedy", "rejection"]
    assert found["draft_mode"] == ["greedy", "sampled"]
    found, _ = columns(rows, both, block_rule=True, greedy_draft=True, forced=True)
    assert found["acceptance_rule"] == ["greedy", "block"]
    assert found["draft_mode"] == ["greedy", "greedy"]
    assert found["flags"].tolist() == [4, 4]
