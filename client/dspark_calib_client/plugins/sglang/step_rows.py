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

_NAMES = ("correct_len", "cap_trim_lens", "bonus", "prefix_lens")  # one number a row each
_NAN = float("nan")


class StepNote(NamedTuple):
    """What was known on the host when a step was observed.

    Attributes:
        tags: of its requests, in order.
        step: the engine's count.
        timestamp: seconds since the epoch.
        capped: whether the mode is ``cap-accept``.
        trimmed: whether ``verify_lens`` limited what the target checked.
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
    trimmed: bool
    full: bool
    greedy_draft: bool
    block_rule: bool
    forced: bool
    revision: int
    form: str


def row_width(gamma: int) -> int:
    """Integers of a row: anchor and drafts, :data:`_NAMES`, and the verified length."""
    return gamma + 1 + len(_NAMES) + 1


def parts_of(step: dict[str, Any], rows: int) -> list[Any]:
    """The step's integers on the engine's device, as :func:`step_columns` finds them again.

    Args:
        step: what SGLang's observers are called with.
        rows: requests; tensors may be padded behind them.
    """
    layout = step["layout"]
    last = step["correct_len"] if layout is None else layout.verify_lens
    parts = [step["verify_ids_2d"], *[step[name] for name in _NAMES], last]
    return [part if part.shape[0] == rows else part[:rows] for part in parts]


def step_columns(copies: Sequence[StepCopy]) -> tuple[dict[str, Any], int]:
    """Columns of the row contract, and how many rows were past their request's end.

    Args:
        copies: steps with their :class:`StepNote`, in order.
    """
    return columns_of([_rows(copy) for copy in copies])


def _rows(copy: StepCopy) -> StepRows:
    import numpy

    note: StepNote = copy.note
    rows, gamma = copy.logits.shape
    at = rows * (gamma + 1)
    ids = copy.integers[:at].reshape(rows, gamma + 1)[:, 1:]
    correct, trimmed, bonus, context, verify_len = copy.integers[at:].reshape(-1, rows)
    checked = verify_len - 1 if note.trimmed and not note.capped else numpy.full(rows, gamma)
    return StepRows(
        tags=note.tags,
        logits=copy.logits,
        ids=ids,
        scheduled=checked,
        accepted=correct + trimmed if note.capped else correct,
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
