"""From a step of vLLM to rows of telemetry, by way of the counting that SGLang's plugin has.

vLLM admits a number of drafts for each request and reports sampled and rejected tokens: n =
sampled - 1, and ℓ = n + rejected, because what is rejected is what was admitted and not sampled.
Prefill rows, and requests that were there before the plugin, have no draft of ours and are left
out; so is a draft that was made with older numbers than the rest of its batch. None of this looks
at an outcome.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dspark_calib_client.plugins.sglang.request_tags import TagBatch
from dspark_calib_client.plugins.sglang.step_copies import StepCopy
from dspark_calib_client.plugins.sglang.step_rows import StepNote, step_columns
from dspark_calib_client.plugins.vllm.engine import EngineFacts

__all__ = ["GradedNote", "graded_columns"]


@dataclass(frozen=True)
class GradedNote:
    """What was known on the host when a step's blocks had been verified.

    Attributes:
        kept: rows of the batch that become telemetry.
        all_tags: of every request of the batch.
        step: the engine's count.
        timestamp: seconds since the epoch.
        facts: of the engine.
        revision: calibration that the blocks' confidences were made with.
        applied_form: in which form; None where vLLM's own estimate was used.
        explored: share of steps that verify everything, if this is one of them.
    """

    kept: Sequence[int]
    all_tags: Sequence[Any]
    step: int
    timestamp: float
    facts: EngineFacts
    revision: int
    applied_form: str | None
    explored: float | None


def graded_columns(copy: StepCopy) -> tuple[dict[str, Any], int]:
    """Columns of the row contract for one step, and how many rows were past their request's end.

    Args:
        copy: a step with its :class:`GradedNote`.
    """
    note: GradedNote = copy.note
    kept = list(note.kept)
    plain = StepNote(
        batch=TagBatch([note.all_tags[row] for row in kept]),
        step=note.step,
        timestamp=note.timestamp,
        mode="compact",
        trimmed=True,
        full=False,
        greedy_draft=note.facts.greedy_draft,
        block_rule=note.facts.block_rule,
        forced=note.facts.forced,
        revision=note.revision,
        applied_form=note.applied_form or "",
    )
    columns, past = step_columns(StepCopy(plain, copy.logits[kept], copy.integers[kept]))
    rows = len(columns["verified"])
    if note.applied_form is None:
        columns["applied_form"] = [None] * rows
    if note.explored is not None:
        # Decided by a coin before the blocks were drafted from what they said: see explores().
        columns["explored"] = [True] * rows
        columns["propensity"] = [note.explored] * rows
    return columns, past
