"""From SGLang's step to rows: its way of counting turned into ours.

``verify_lens`` counts the anchor: ℓ = ``verify_lens`` - 1 in compact mode. In cap-accept mode the
target checks every position and the cap only shortens what is kept: ℓ = γ and n = ``correct_len``
+ ``cap_trim_lens``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from dspark_calib_client.plugins.common.request_tags import RequestTags
from dspark_calib_client.plugins.common.step_copies import StepCopy
from dspark_calib_client.plugins.common.step_rows import StepRows, columns_of

__all__ = ["StepNote", "parts_of", "row_width", "step_columns"]

_NAMES = ("confidence_raw", "verify_ids_2d", "correct_len", "bonus", "prefix_lens")
_NAN = float("nan")


class StepNote(NamedTuple):
    """What was known on the host when a step was observed.

    Attributes:
        tags: of its requests, in order.
        step: the engine's count.
        timestamp: seconds since the epoch.
        capped: whether the mode is ``cap-accept``.
        full: whether everything was checked whatever the confidences of this block said.
        greedy_draft: whether all drafts are the drafter's likeliest tokens.
        block_rule: whether sampled requests are verified as blocks.
        forced: whether acceptance was simulated.
        revision: calibration that the step's confidences were made with.
        form: in which form.
    """

    tags: Sequence[RequestTags]
    step: int
    timestamp: float
    capped: bool
    full: bool
    greedy_draft: bool
    block_rule: bool
    forced: bool
    revision: int
    form: str


def row_width(gamma: int) -> int:
    """Numbers of a row: logits, anchor and drafts, and one each of four lengths and tokens."""
    return gamma + (gamma + 1) + 4


def parts_of(step: dict[str, Any], *, capped: bool) -> list[Any]:
    """The step's tensors on the engine's device, as :func:`step_columns` finds them again.

    Args:
        step: what SGLang's observers are called with.
        capped: whether the mode is ``cap-accept``.
    """
    parts = [step[name] for name in _NAMES]
    if capped:
        parts.append(step["cap_trim_lens"])
    elif step["layout"] is not None:
        parts.append(step["layout"].verify_lens)
    return parts


def step_columns(copies: Sequence[StepCopy]) -> tuple[dict[str, Any], int]:
    """Columns of the row contract, and how many rows were past their request's end.

    Args:
        copies: steps with their :class:`StepNote`, in order.
    """
    return columns_of([_rows(copy) for copy in copies])


def _rows(copy: StepCopy) -> StepRows:
    import numpy

    note: StepNote = copy.note
    logits, ids, correct, bonus, context, *last = copy.parts
    whole = note.capped or not last
    return StepRows(
        tags=note.tags,
        logits=logits,
        ids=ids[:, 1:],
        scheduled=numpy.full(len(logits), logits.shape[1]) if whole else last[0] - 1,
        accepted=correct + last[0] if note.capped else correct,
        kept=correct,
        bonus=bonus,
        context=context,
        step=note.step,
        timestamp=note.timestamp,
        propensity=1.0 if note.full else _NAN,
        explored=False,
        greedy_draft=note.greedy_draft,
        block_rule=note.block_rule,
        forced=note.forced,
        revision=note.revision,
        form=note.form,
    )
