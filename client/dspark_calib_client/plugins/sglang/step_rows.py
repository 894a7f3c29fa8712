"""From a step's tensors to rows of telemetry: the engine's way of counting turned into ours.

``verify_lens`` counts the anchor: ℓ = ``verify_lens`` - 1 in compact mode. In cap-accept mode the
target checks every position and the cap only shortens what is kept: ℓ = γ and n = ``correct_len``
+ ``cap_trim_lens``. Blocks are cut at the first drafted stop token, accepted or not, and rows of a
request that has ended are left out: with overlapped scheduling the engine decodes one step more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dspark_calib_client.plugins.sglang.request_tags import FORCED, STOPPED, TagBatch
from dspark_calib_client.plugins.sglang.step_copies import StepCopy

__all__ = ["StepNote", "step_columns"]


@dataclass(frozen=True)
class StepNote:
    """What was known on the host when a step was observed.

    Attributes:
        batch: its requests, in order.
        step: the engine's count.
        timestamp: seconds since the epoch.
        mode: ``compact`` or ``cap-accept``.
        trimmed: whether ``verify_lens`` limited what the target checked.
        full: whether everything was checked whatever the confidences of this block said.
        greedy_draft: whether all drafts are the drafter's likeliest tokens.
        block_rule: whether sampled requests are verified as blocks.
        forced: whether acceptance was simulated.
        revision: calibration that the step's confidences were made with.
        applied_form: in which form.
    """

    batch: TagBatch
    step: int
    timestamp: float
    mode: str
    trimmed: bool
    full: bool
    greedy_draft: bool
    block_rule: bool
    forced: bool
    revision: int
    applied_form: str


def step_columns(copy: StepCopy) -> tuple[dict[str, Any], int]:
    """Columns of the row contract for one step, and how many rows were past their request's end.

    Args:
        copy: a step with its :class:`StepNote`.

    Returns:
        NumPy arrays and lists of equal length by column, possibly of no rows.
    """
    import numpy

    note: StepNote = copy.note
    batch = note.batch
    gamma = copy.logits.shape[1]
    ids = copy.integers[:, 1 : gamma + 1]
    correct, trimmed, bonus, context, verify_len = copy.integers[:, gamma + 1 :].T
    if note.mode == "cap-accept":
        scheduled = numpy.full(len(correct), gamma)
        accepted = correct + trimmed
    else:
        scheduled = verify_len - 1 if note.trimmed else numpy.full(len(correct), gamma)
        accepted = correct
    verified, stopped, ends = _cut(ids, scheduled, correct, bonus, batch)
    flags = batch.flags | (STOPPED * stopped).astype(numpy.uint8)
    if note.forced:
        flags |= numpy.uint8(FORCED)
    columns = {
        "confidence_logits": copy.logits,
        "verified": verified,
        "accepted": numpy.minimum(accepted, verified),
        "scheduled": scheduled,
        "flags": flags,
        "context_length": context,
        **_named(note),
    }
    ended = [row for row, tags in enumerate(batch.tags) if tags.ended]
    if ends.any():
        for row in numpy.flatnonzero(ends).tolist():
            batch.tags[row].ended = True
    if not ended:
        return columns, 0
    kept = numpy.delete(numpy.arange(len(batch)), ended)
    return {
        name: [cells[row] for row in kept] if isinstance(cells, list) else cells[kept]
        for name, cells in columns.items()
    }, len(ended)


def _named(note: StepNote) -> dict[str, Any]:
    """Columns that no tensor holds; arrays, because the uploader need not look at their cells."""
    import numpy

    batch = note.batch
    rows = len(batch)
    sampled = "block" if note.block_rule else "rejection"
    drafts = "greedy" if note.greedy_draft else "sampled"
    numbers: dict[str, float] = {
        **({"propensity": 1.0} if note.full else {}),  # left out where it is unknown
        "rank": 0,
        "step": note.step,
        "step_requests": rows,
        "timestamp": note.timestamp,
        "revision": note.revision,
    }
    return {
        **batch.columns,
        **{name: numpy.full(rows, number) for name, number in numbers.items()},
        "acceptance_rule": ["greedy" if tags.greedy else sampled for tags in batch.tags],
        "draft_mode": ["greedy" if tags.greedy else drafts for tags in batch.tags],
        "applied_form": [note.applied_form] * rows,
    }


def _cut(
    ids: Any,  # [rows, gamma] drafted tokens
    scheduled: Any,  # [rows] positions that the target checked
    correct: Any,  # [rows] drafts that were kept
    bonus: Any,  # [rows] token that follows them
    batch: TagBatch,
) -> tuple[Any, Any, Any]:
    """ℓ after the cut, whether a stop token lies within the old ℓ, and whether the text ended."""
    import numpy

    is_stop = numpy.zeros(ids.shape, dtype=bool)
    last = numpy.zeros(len(ids), dtype=bool)
    if batch.stops is not None:
        for token in batch.stops:
            is_stop |= ids == token
            last |= bonus == token
    else:
        for row, tags in enumerate(batch.tags):
            for token in tags.stops:
                is_stop[row] |= ids[row] == token
                last[row] |= bonus[row] == token
    gamma = ids.shape[1]
    first = numpy.where(is_stop.any(axis=1), is_stop.argmax(axis=1) + 1, gamma + 1)
    # A bonus token is drawn only where no kept draft has ended the text before it.
    return numpy.minimum(scheduled, first), first <= scheduled, last | (first <= correct)
