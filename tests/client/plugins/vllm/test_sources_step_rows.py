"""Logits by slot, and a step's rows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from dspark_calib_client.plugins.sglang.step_copies import StepCopy  # noqa: E402
from dspark_calib_client.plugins.vllm.engine import EngineFacts  # noqa: E402
from dspark_calib_client.plugins.vllm.request_tags import RequestTags  # noqa: E402
from dspark_calib_client.plugins.vllm.sources import HeadSource  # noqa: E402
from dspark_calib_client.plugins.vllm.step_rows import GradedNote, graded_columns  # noqa: E402

pytestmark = pytest.mark.torch
FACTS = EngineFacts(2, "head", 4, 0, 1, "g", None, "dspark", True, False, False)


def test_logits_follow_their_slot() -> None:
    numbers = torch.tensor([[0.5, 1.0], [0.0, 1.0], [1.0, 1.0]])
    source = HeadSource(2, 4, "cpu", numbers)
    assert source.serve(torch.tensor([2.0, 4.0, 6.0, 8.0])).tolist() == [1.0, 5.0, 3.0, 9.0]
    source.record(torch.tensor([3, 1]), 2)
    assert source.logits(torch.tensor([1, 3]), 2).tolist() == [[6.0, 8.0], [2.0, 4.0]]


def test_only_the_kept_rows_of_a_batch_are_told() -> None:
    def tags(name: str) -> RequestTags:
        new = SimpleNamespace(req_id=name, sampling_params=SimpleNamespace(temperature=1.0))
        return RequestTags(new, "d", "t")

    all_tags: list[Any] = [None, tags("a"), tags("b")]
    note = GradedNote([1, 2], all_tags, 5, 1.0, FACTS, 3, "affine", 0.25)
    logits = torch.tensor([[9.0, 9.0], [1.0, 2.0], [3.0, 4.0]]).numpy()
    # anchor, two drafts, accepted, trimmed, bonus, context, anchor and verified drafts
    integers = torch.tensor(
        [[0, 7, 7, 0, 0, 7, 7, 1], [0, 7, 7, 1, 0, 7, 50, 3], [0, 7, 7, 0, 0, 7, 60, 2]]
    ).numpy()
    columns, past = graded_columns(StepCopy(note, logits, integers))
    assert past == 0
    assert columns["confidence_logits"].tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert columns["verified"].tolist() == [2, 1]
    assert columns["accepted"].tolist() == [1, 0]
    assert list(columns["acceptance_rule"]) == ["block", "block"]
    assert columns["explored"] == [True, True]
    assert columns["propensity"] == [0.25, 0.25]
    assert list(columns["revision"]) == [3, 3]
