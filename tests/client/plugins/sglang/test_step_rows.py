"""Counting: SGLang's way in, ours out. Lengths are worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from calib.engine_conventions import cut_at_stop_token  # noqa: E402
from dspark_calib_client.plugins.common.request_tags import RequestTags  # noqa: E402
from dspark_calib_client.plugins.common.step_copies import StepCopies, StepCopy  # noqa: E402
from dspark_calib_client.plugins.sglang.request_tags import tags_of  # noqa: E402
from dspark_calib_client.plugins.sglang.step_rows import (  # noqa: E402
    StepNote,
    parts_of,
    row_width,
    step_columns,
)
from tests.client.plugins.sglang.host import EOS, Request, plain_blocks, step_arguments  # noqa: E402

pytestmark = pytest.mark.torch

OWNERS: list[Request] = []  # requests live as long as their engine keeps them


def tags(*, ignore_eos: bool = False) -> RequestTags:
    OWNERS.append(Request("r", ignore_eos=ignore_eos))
    return tags_of(OWNERS[-1], "domain", "tenant")


NOTE = StepNote(
    tags=(),
    step=5,
    timestamp=1.0,
    capped=False,
    full=False,
    greedy_draft=False,
    block_rule=False,
    forced=False,
    revision=0,
    form="identity",
)


def columns(
    rows: list[tuple[list[int], int, int, int, int]],  # drafts, correct, trim, bonus, verify_len
    named: list[RequestTags] | None = None,
    **changes: Any,
) -> tuple[dict[str, Any], int]:
    return step_columns([step_copy(rows, named, **changes)])


def step_copy(
    rows: list[tuple[list[int], int, int, int, int]],
    named: list[RequestTags] | None = None,
    *,
    layout: bool = True,
    **changes: Any,
) -> StepCopy:
    note = NOTE._replace(tags=named or [tags() for _ in rows], **changes)
    blocks, correct, trim, bonus, length = map(np.array, zip(*rows, strict=True))
    parts = [np.zeros(blocks.shape, np.float32), np.insert(blocks, 0, 5, axis=1)]
    parts += [correct, bonus, np.full(len(rows), 9)]
    if note.capped or layout:
        parts.append(trim if note.capped else length)
    return StepCopy(note, parts)


def lengths(found: dict[str, Any]) -> list[tuple[int, int, int]]:
    names = ("verified", "accepted", "scheduled")
    return [tuple(map(int, row)) for row in zip(*(found[name] for name in names), strict=True)]


def test_the_anchor_is_not_counted() -> None:
    found, _ = columns([([11, 12, 13], 0, 0, 7, 1), ([11, 12, 13], 2, 0, 7, 4)])
    assert lengths(found) == [(0, 0, 0), (3, 2, 3)]


def test_without_a_layout_everything_was_verified() -> None:
    found, _ = columns([([11, 12, 13], 2, 0, 7, 2)], layout=False, full=True)
    assert lengths(found) == [(3, 2, 3)]
    assert found["propensity"].tolist() == [1.0]


def test_a_cap_hides_nothing() -> None:
    """Cap-accept: three drafts were right, one was kept, two were trimmed."""
    found, _ = columns([([11, 12, 13], 1, 2, 7, 2)], capped=True)
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
    greedy = tags_of(OWNERS.append(Request("g", top_k=1)) or OWNERS[-1], "d", "t")
    both = [greedy, tags()]
    rows = [([11, 12, 13], 1, 0, 7, 4)] * 2
    found, _ = columns(rows, both)
    assert found["acceptance_rule"].tolist() == ["greedy", "rejection"]
    assert found["draft_mode"].tolist() == ["greedy", "sampled"]
    found, _ = columns(rows, both, block_rule=True, greedy_draft=True, forced=True)
    assert found["acceptance_rule"].tolist() == ["greedy", "block"]
    assert found["draft_mode"].tolist() == ["greedy", "greedy"]
    assert found["flags"].tolist() == [4, 4]


def test_many_steps_are_told_as_one_by_one() -> None:
    """Requests come, go and end on the way; every column is what single steps give."""

    def steps() -> list[StepCopy]:
        named = [tags(), tags(ignore_eos=True), tags_of(OWNERS[0], "d", "t"), tags()]
        ends = ([11, EOS, 13], 2, 0, 7, 4)
        goes_on = ([11, 12, 13], 1, 0, 7, 3)
        return [
            step_copy([goes_on, ends], named[:2], step=1, revision=3, form="temperatures"),
            step_copy([ends, goes_on, goes_on], named[:3], step=2, greedy_draft=True),
            step_copy([goes_on, ends], [named[0], named[3]], step=3, full=True, forced=True),
            step_copy([goes_on], [named[3]], step=4, block_rule=True),
        ]

    singles = [step_columns([step]) for step in steps()]
    together, past = step_columns(steps())
    assert past == sum(count for _, count in singles) == 2
    assert together["step"].tolist() == [1, 1, 2, 2, 2, 3]
    for name, cells in together.items():
        unknown = [None] * 9
        one_by_one = [
            cell
            for columns, _ in singles
            for cell in (
                columns[name].tolist() if name in columns else unknown[: len(columns["step"])]
            )
        ]
        if name == "propensity":
            assert one_by_one == [None] * 5 + [1.0]
            assert np.isnan(cells[:5]).all()
        else:
            assert cells.tolist() == one_by_one, name


@pytest.mark.parametrize(
    ("mode", "layout", "last"),
    [
        ("compact", True, "verify_lens"),
        ("compact", False, None),
        ("cap-accept", True, "cap_trim_lens"),
        ("cap-accept", False, "cap_trim_lens"),
    ],
)
def test_parts_are_found_again_where_they_were_put(
    mode: str, *, layout: bool, last: str | None
) -> None:
    """What is asked for of a step's tensors, padding left out, is what rows are made of."""
    reqs, capped = [Request("a"), Request("b")], mode == "cap-accept"
    step = step_arguments(mode, reqs, plain_blocks(2, 3), 3)
    kept, checked = step["correct_len"], torch.full((2,), 3)
    accepted = kept + step["cap_trim_lens"] if last == "cap_trim_lens" else kept
    if last == "verify_lens":
        checked = step["layout"].verify_lens - 1
    padded = {"bonus": torch.cat([step["bonus"], torch.zeros(3, dtype=torch.int64)])}
    step.update(padded, **({} if layout else {"layout": None}))
    copies = StepCopies(row_width(3), pinned=False, rows=2)
    note = NOTE._replace(tags=[tags_of(req, "d", "t") for req in reqs], capped=capped)
    assert copies.ask_for(2, parts_of(step, capped=capped), note)
    found, _ = step_columns(copies.take(1))
    assert found["confidence_logits"].tolist() == step["confidence_raw"].tolist()
    assert found["scheduled"].tolist() == checked.tolist()
    assert found["accepted"].tolist() == accepted.tolist()
    assert found["context_length"].tolist() == [100, 100]
    assert {found[name].dtype for name in ("scheduled", "accepted")} == {np.dtype(np.int64)}
