"""From vLLM's step to rows: its way of counting turned into ours.

vLLM admits a number of drafts for each request and reports sampled and rejected tokens: n =
sampled - 1, and ℓ = n + rejected, because what is rejected is what was admitted and not sampled.
Prefill rows, and requests that were there before the plugin, have no draft of ours and are left
out. None of this looks at an outcome.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from dspark_calib_client.plugins.common.step_copies import StepCopy
from dspark_calib_client.plugins.common.step_rows import StepRows, columns_of
from dspark_calib_client.plugins.vllm.engine import EngineFacts

__all__ = ["GradedNote", "graded_columns", "row_width"]

_NAN = float("nan")


class GradedNote(NamedTuple):
    """What was known on the host when a step's blocks had been verified.

    Attributes:
        tags: of every request of the batch; None for one that was there before the plugin.
        drafted: by row, what its block was made with as a place in ``made_with``; None without one.
        drafts: [rows] drafts that vLLM scheduled.
        prefilling: [rows] whether the prompt was still being read.
        made_with: revision and form by place; it only grows.
        step: the engine's count.
        timestamp: seconds since the epoch.
        facts: of the engine.
        explored: share of steps that verify everything, if this is one of them.
    """

    tags: Sequence[Any]
    drafted: Sequence[int | None]
    drafts: Any
    prefilling: Any
    made_with: Sequence[Any]
    step: int
    timestamp: float
    facts: EngineFacts
    explored: float | None


def row_width(gamma: int, sampled: int) -> int:
    """Numbers of a row: logits and tokens of its block, ``sampled`` token ids, three lengths."""
    return 2 * gamma + sampled + 3


def graded_columns(copies: Sequence[StepCopy]) -> tuple[dict[str, Any], int]:
    """Columns of the row contract, and how many rows were past their request's end.

    Args:
        copies: steps with their :class:`GradedNote`, in order. Parts are logits and tokens of the
            blocks, the sampled token ids, and the lengths: sampled, rejected, sequence.
    """
    return columns_of([_rows(copy) for copy in copies])


def _rows(copy: StepCopy) -> StepRows:
    import numpy

    note: GradedNote = copy.note
    known = [
        row
        for row, (tags, drafted) in enumerate(zip(note.tags, note.drafted))
        if tags is not None and drafted is not None
    ]
    scheduled = (numpy.asarray(note.drafts) > 0) & ~numpy.asarray(note.prefilling)
    kept = numpy.array(known, dtype=numpy.int64)[scheduled[known]]
    logits, blocks, tokens, sampled, rejected, lengths = [part[kept] for part in copy.parts]
    accepted = numpy.maximum(sampled - 1, 0)
    bonus_at = numpy.minimum(accepted, tokens.shape[1] - 1)
    places = kept.tolist()
    revision, form = _made_with(note, places)
    return StepRows(
        tags=[note.tags[row] for row in places],
        logits=logits,
        ids=blocks,
        scheduled=accepted + rejected,
        accepted=accepted,
        kept=accepted,
        bonus=tokens[numpy.arange(len(kept)), bonus_at],
        context=lengths - (accepted + rejected + 1),
        step=note.step,
        timestamp=note.timestamp,
        # Decided by a coin before the blocks were drafted from what they said: see explores().
        propensity=_NAN if note.explored is None else note.explored,
        explored=note.explored is not None,
        greedy_draft=note.facts.greedy_draft,
        block_rule=note.facts.block_rule,
        forced=note.facts.forced,
        revision=revision,
        form=form,
    )


def _made_with(note: GradedNote, rows: Sequence[int]) -> tuple[Any, Any]:
    """Revision and form of these rows' blocks: one for all of them, or one each."""
    import numpy

    places = [note.drafted[row] for row in rows]
    if places and places.count(places[0]) == len(places):
        applied = note.made_with[places[0]]  # type: ignore[index]
        return applied.revision, applied.form
    made = [note.made_with[place] for place in places]  # type: ignore[index]
    revisions = numpy.array([applied.revision for applied in made], dtype=numpy.int64)
    return revisions, [applied.form for applied in made]
