"""Decoding with the draft block: lossless, of its own stream, and the same by either twin.

Kernels under the interpreter: ``tests/heads/kernels/test_draft_block_decoding.py``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from calib.errors import ConfigurationError
from heads.draft_block_runner import DraftBlockRunner, ServedCalibration
from heads.drafter import Drafter
from heads.recorder import Recorder, RecordingPlan
from heads.sampling import SamplingParameters
from heads.speculative_decoding import DecodingRequest, DecodingStep, SpeculativeDecoder
from tests.heads.tiny_models import plain_logits, prompts, tiny_drafter, tiny_target

pytestmark = pytest.mark.torch

TARGET = tiny_target(eos=3)
PROMPTS = [(5, 9, 1), (7,), (30, 2, 8, 11, 20), (4, 4)]
SUBSET = (0, 3, 4, 9, 11, 20, 29, 33, 40)
KINDS: list[dict[str, Any]] = [
    {},
    {"markov_head_type": "gated"},
    {"markov_head_type": "rnn"},
    {"draft_vocabulary": SUBSET},
]


def decode(
    drafter: Drafter, temperature: float, *, slots: int = 3, seed: int = 2, **options: Any
) -> tuple[dict[int, tuple[int, ...]], list[DecodingStep], DraftBlockRunner]:
    runner = DraftBlockRunner(drafter, rows=slots, kernels=False, **options)
    decoder = SpeculativeDecoder(
        TARGET, drafter, slots=slots, capacity=24, seed=seed, runner=runner
    )
    parameters = SamplingParameters(temperature)
    requests = [DecodingRequest(n, prompt, parameters, 12) for n, prompt in enumerate(PROMPTS)]
    steps = list(decoder.run(requests))
    return decoder.answers, steps, runner


@pytest.mark.parametrize("kind", KINDS, ids=["vanilla", "gated", "rnn", "reduced"])
def test_greedy_decoding_is_the_targets_own(kind: dict[str, Any]) -> None:
    answers, _, _ = decode(tiny_drafter(TARGET, **kind), 0.0)
    for number, prompt in enumerate(PROMPTS):
        tokens = list(prompt)
        while len(tokens) < len(prompt) + 12 and (len(tokens) == len(prompt) or tokens[-1] != 3):
            tokens.append(int(plain_logits(TARGET, tokens)[-1].argmax()))
        assert answers[number] == tuple(tokens[len(prompt) :])


def test_proposals_say_what_tokens_were_drawn_from() -> None:
    drafter = tiny_drafter(TARGET, draft_vocabulary=SUBSET)
    _, steps, runner = decode(drafter, 0.7)
    assert runner.output is not None
    for step in steps:
        proposal = step.proposal
        expected = torch.softmax(proposal.logits / 0.7, dim=-1)
        assert torch.allclose(proposal.probabilities, expected, atol=1e-6)
        assert torch.equal(proposal.tokens, drafter.draft_to_target[proposal.draft_ids])
    # A proposal keeps its memory when the next block overwrites the workspace.
    assert len({step.proposal.logits.data_ptr() for step in steps}) == len(steps)


def test_a_requests_tokens_do_not_depend_on_its_company() -> None:
    drafter = tiny_drafter(TARGET)
    together, _, _ = decode(drafter, 1.0, slots=4)
    alone, _, _ = decode(drafter, 1.0, slots=1)
    assert together == alone
    other, _, _ = decode(drafter, 1.0, seed=3)
    assert other != together


@pytest.mark.statistical
@torch.no_grad()
def test_drafted_tokens_follow_the_drafters_law() -> None:
    """First drafted tokens of many requests against the softmax that the proposal states."""
    drafter = tiny_drafter(TARGET, draft_vocabulary=SUBSET)
    runner = DraftBlockRunner(drafter, rows=2000, kernels=False)
    decoder = SpeculativeDecoder(TARGET, drafter, slots=2000, capacity=8, seed=0, runner=runner)
    requests = [DecodingRequest(n, (5, 9), SamplingParameters(1.0), 3) for n in range(2000)]
    step = next(decoder.run(requests))
    ids, probabilities = step.proposal.draft_ids[:, 0], step.proposal.probabilities[:, 0].double()
    counts = np.bincount(ids.numpy(), minlength=len(SUBSET))
    expected = probabilities.sum(dim=0).numpy()
    spread = (probabilities * (1 - probabilities)).sum(dim=0).sqrt().numpy()
    assert (np.abs(counts - expected) <= 4.5 * spread + 1).all()


def test_served_calibration_is_applied() -> None:
    drafter = tiny_drafter(TARGET)
    calibration = ServedCalibration.from_temperatures(torch.tensor([2.0, 0.5, 1.0]))
    _, steps, runner = decode(drafter, 0.0, calibration=calibration)
    assert runner.output is not None
    assert runner.output.confidences is not None
    raw = steps[-1].proposal.confidence_logits
    assert raw is not None
    expected = torch.sigmoid(raw / torch.tensor([2.0, 0.5, 1.0]))
    assert torch.allclose(runner.output.confidences, expected, atol=1e-6)
    assert runner.output.survival is not None
    assert torch.allclose(runner.output.survival, expected.cumprod(dim=1), atol=1e-6)


def test_a_recording_with_a_runner_continues_only_with_one(tmp_path: Path) -> None:
    drafter = tiny_drafter(TARGET)
    plan = RecordingPlan(blocks=12, max_new_tokens=8, slots=2, temperatures=(1.0, 0.0), seed=1)
    runner = DraftBlockRunner(drafter, rows=2, kernels=False)
    rows = Recorder(TARGET, drafter, plan, tmp_path, runner=runner).run(prompts(4))
    assert len(rows) >= 12
    assert np.isfinite(rows.confidence_logits).all()
    with pytest.raises(ConfigurationError, match="drafting"):
        Recorder(TARGET, drafter, plan, tmp_path).run(prompts(4))


def test_what_a_runner_cannot_do_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="no Markov head"):
        DraftBlockRunner(tiny_drafter(TARGET, markov_rank=0), rows=1)
    drafter = tiny_drafter(TARGET)
    runner = DraftBlockRunner(drafter, rows=1)
    assert runner.reason.startswith("reference: ")
    decoder = SpeculativeDecoder(TARGET, drafter, slots=1, capacity=24, seed=0, runner=runner)
    cut = DecodingRequest(0, (5, 9), SamplingParameters(1.0, top_p=0.9), 6)
    with pytest.raises(ConfigurationError, match="whole softmax"):
        list(decoder.run([cut]))
    crowded = SpeculativeDecoder(TARGET, drafter, slots=2, capacity=24, seed=0, runner=runner)
    requests = [DecodingRequest(n, (5, 9), SamplingParameters(1.0), 6) for n in range(2)]
    with pytest.raises(ConfigurationError, match="1 to 1 rows"):
        list(crowded.run(requests))
