"""Logits by slot, and a step's rows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from dspark_calib_client.plugins.common.step_copies import StepCopy  # noqa: E402
from dspark_calib_client.plugins.vllm.attachment import Applied  # noqa: E402
from dspark_calib_client.plugins.vllm.engine import EngineFacts  # noqa: E402
from dspark_calib_client.plugins.vllm.request_tags import VLLMTags  # noqa: E402
from dspark_calib_client.plugins.vllm.sources import HeadSource  # noqa: E402
from dspark_calib_client.plugins.vllm.step_rows import (  # noqa: E402
    GradedNote,
    graded_columns,
    row_width,
)

pytestmark = pytest.mark.torch
FACTS = EngineFacts(2, "head", 4, 0, 1, "g", None, "dspark", True, False, False)


def test_logits_follow_their_slot() -> None:
    numbers = torch.tensor([[0.5, 1.0], [0.0, 1.0], [1.0, 1.0]])
    source = HeadSource(2, 4, "cpu", numbers)
    assert source.serve(torch.tensor([2.0, 4.0, 6.0, 8.0])).tolist() == [1.0, 5.0, 3.0, 9.0]
    source.record(torch.tensor([3, 1]), 2)
    assert source.logits(torch.tensor([1, 3])).tolist() == [[6.0, 8.0], [2.0, 4.0]]


def test_only_the_kept_rows_of_a_batch_are_told() -> None:
    def tags(name: str) -> VLLMTags:
        new = SimpleNamespace(req_id=name, sampling_params=SimpleNamespace(temperature=1.0))
        return VLLMTags(new, "d", "t")

    all_tags: list[Any] = [None, tags("a"), tags("b"), tags("c"), tags("d")]
    made_with = [Applied(1, 0, "identity"), Applied(4, 3, "affine")]
    note = GradedNote(
        tags=all_tags,
        drafted=[0, 1, 0, None, 1],
        drafts=np.array([2, 2, 2, 2, 2]),
        prefilling=np.array([False, False, False, False, True]),
        made_with=made_with,
        step=5,
        timestamp=1.0,
        facts=FACTS,
        explored=0.25,
    )
    logits = np.array([[9.0, 9.0], [1.0, 2.0], [3.0, 4.0], [9.0, 9.0], [9.0, 9.0]], np.float32)
    blocks, texts = [[7, 7]] * 5, [[0, 0, 0], [21, 22, 23], [31, 0, 0], [0, 0, 0], [0, 0, 0]]
    sampled, rejected, lengths = [1, 2, 1, 1, 0], [0, 1, 1, 1, 0], [9, 53, 62, 9, 9]
    parts = [logits, *map(np.array, (blocks, texts, sampled, rejected, lengths))]
    assert sum(part.size for part in parts) == 5 * row_width(2, 3)
    columns, past = graded_columns([StepCopy(note, parts)])
    assert past == 0
    assert columns["confidence_logits"].tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert columns["verified"].tolist() == [2, 1]
    assert columns["accepted"].tolist() == [1, 0]
    assert columns["context_length"].tolist() == [50, 60]  # before the anchor
    assert columns["acceptance_rule"].tolist() == ["block", "block"]
    assert columns["explored"].tolist() == [True, True]
    assert columns["propensity"].tolist() == [0.25, 0.25]
    # One sat out the change between the two: each row names what its block was made with.
    assert columns["revision"].tolist() == [3, 0]
    assert columns["applied_form"].tolist() == ["affine", "identity"]
    alike, _ = graded_columns([StepCopy(note._replace(drafted=[1] * 5), parts)])
    assert alike["revision"].tolist() == [3, 3, 3]
    assert alike["applied_form"].tolist() == ["affine"] * 3
    nothing = note._replace(drafted=[None] * 5)
    empty, _ = graded_columns([StepCopy(nothing, parts)])
    assert {len(cells) for cells in empty.values()} == {0}
