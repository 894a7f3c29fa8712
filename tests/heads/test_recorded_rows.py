"""Rows say what happened, and their labels are the exact ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from calib.errors import ConfigurationError
from calib.records import AcceptanceRecords, Flag
from calib.soft_labels import block_labels
from heads.drafter import Drafter
from heads.prompts import Prompt
from heads.recorded_rows import exact_labels, rows_of_step
from heads.recording_plan import RecordingPlan
from heads.sampling import SamplingParameters
from heads.speculative_decoding import DecodingRequest, DecodingStep, SpeculativeDecoder
from tests.heads.tiny_models import tiny_drafter, tiny_target

pytestmark = pytest.mark.torch

TARGET = tiny_target(eos=3, sharpness=3.0)
SUBSET = (0, 3, 4, 9, 11, 20, 29, 33, 40)
PLAN = RecordingPlan(engine="here", revision=0)
TEMPERATURES = (1.0, 0.6, 0.0)


def steps(drafter: Drafter, policy: Any = None) -> list[DecodingStep]:
    decoder = SpeculativeDecoder(TARGET, drafter, slots=6, capacity=40, seed=4, policy=policy)
    requests = [
        DecodingRequest(n, (5, 9 + n), SamplingParameters(TEMPERATURES[n % 3]), 30)
        for n in range(12)
    ]
    return list(decoder.run(requests))


def rows(step: DecodingStep, drafter: Drafter, **changes: Any) -> AcceptanceRecords:
    prompts = {n: Prompt(f"prompt {n}", "math", "t") for n in range(12)}
    options = {"everything_verified": True, **changes}
    return rows_of_step(step, prompts, drafter.draft_to_target, PLAN, **options)


def labels64(step: DecodingStep, mapping: Tensor) -> np.ndarray:
    """Σ min(q, p), token by token of the drafter's vocabulary, in float64."""
    q = step.proposal.probabilities.double().numpy()
    p = step.target_probabilities.double().numpy()
    found = np.zeros(q.shape[:2])
    for draft_id, target_id in enumerate(mapping.tolist()):
        found += np.minimum(q[..., draft_id], p[:, :-1, target_id])
    return found


@pytest.mark.parametrize("kind", [{}, {"draft_vocabulary": SUBSET}], ids=["full", "reduced"])
def test_labels_are_exact(kind: dict[str, Any]) -> None:
    drafter = tiny_drafter(TARGET, **kind)
    for step in steps(drafter)[:8]:
        found = exact_labels(step, drafter.draft_to_target)
        assert np.abs(found.numpy() - labels64(step, drafter.draft_to_target)).max() < 1e-6
        for row, request in enumerate(step.requests):
            if request.parameters.greedy:
                equal = step.proposal.tokens[row] == step.target_probabilities[row, :-1].argmax(-1)
                assert found[row].tolist() == equal.float().tolist()


@pytest.mark.parametrize("kind", [{}, {"draft_vocabulary": SUBSET}], ids=["full", "reduced"])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_labels_are_those_of_the_label_functions(kind: dict[str, Any], temperature: float) -> None:
    """From the logits, which the step's own labels never look at."""
    drafter = tiny_drafter(TARGET, **kind)
    for step in steps(drafter)[:4]:
        chosen = [i for i, r in enumerate(step.requests) if r.parameters.temperature == temperature]
        if not chosen:
            continue
        # Logarithms of probabilities at this temperature are logits at temperature 1.
        target = step.target_probabilities[chosen, :-1].log()
        labels = block_labels(
            step.proposal.logits[chosen] / temperature,
            target,
            step.proposal.tokens[chosen],
            rule="rejection",
            draft_mode="sampled",
            draft_to_target=drafter.draft_to_target,
        )
        own = exact_labels(step, drafter.draft_to_target)[chosen]
        assert (labels.conditional - own).abs().max() < 2e-6
        acceptance = step.verdict.token_acceptance[chosen]
        assert (labels.token_acceptance - acceptance).abs().max() < 2e-5


def test_columns_are_what_happened() -> None:
    drafter = tiny_drafter(TARGET)
    for step in steps(drafter):
        found = rows(step, drafter)
        assert found.gamma == 3
        assert len(found) == len(step.requests)
        assert step.proposal.confidence_logits is not None
        assert np.array_equal(found.confidence_logits, step.proposal.confidence_logits.numpy())
        assert found.verified.tolist() == step.verified.tolist()
        assert found.accepted.tolist() == step.verdict.accepted.tolist()
        assert found.scheduled is not None
        assert (found.scheduled == 3).all()
        assert found.context_length is not None
        assert found.context_length.tolist() == step.context_lengths.tolist()
        assert found.step is not None
        assert (found.step == step.step).all()
        assert found.step_requests is not None
        assert (found.step_requests == len(step.requests)).all()
        assert (found.revision == 0).all()
        assert (found.propensity == 1.0).all()
        assert not found.explored.any()
        assert not found.anticipating.any()
        assert found.engine is not None
        assert set(found.engine) == {"here"}
        assert found.request is not None
        assert list(found.request) == [str(r.number) for r in step.requests]
        assert found.prompt is not None
        digests = [Prompt(f"prompt {r.number}", "", "").digest[:16] for r in step.requests]
        assert list(found.prompt) == digests
        greedy = [r.parameters.temperature == 0.0 for r in step.requests]
        assert found.acceptance_rule is not None
        assert [rule == "greedy" for rule in found.acceptance_rule] == greedy
        assert found.draft_mode is not None
        assert [mode == "greedy" for mode in found.draft_mode] == greedy
        assert found.usable().all()


def test_a_stop_token_among_the_verified_is_flagged() -> None:
    drafter = tiny_drafter(TARGET)
    flagged = 0
    for step in steps(drafter):
        found = rows(step, drafter)
        for row in range(len(found)):
            drafted = step.proposal.tokens[row].tolist()
            stop = drafted.index(3) + 1 if 3 in drafted else None
            assert found.verified[row] == (stop or 3)
            assert bool(found.flags[row] & Flag.STOP_TRUNCATED) == (stop is not None)
            flagged += stop == 3  # shortens nothing, and is flagged all the same
    assert flagged > 0


def test_labels_end_with_what_was_verified() -> None:
    drafter = tiny_drafter(TARGET)

    def policy(logits: Tensor) -> Tensor:
        return (torch.arange(len(logits)) % 4).long()

    for step in steps(drafter, policy):
        found = rows(step, drafter, everything_verified=False)
        assert found.soft_labels is not None
        assert found.token_acceptance is not None
        past = np.arange(3) >= found.verified[:, None]
        assert np.isnan(found.soft_labels[past]).all()
        assert np.isnan(found.token_acceptance[past]).all()
        assert np.isfinite(found.soft_labels[~past]).all()
        assert np.isnan(found.propensity).all()  # a policy may have looked at the block
        assert found.scheduled is not None
        assert found.scheduled.tolist() == [i % 4 for i in range(len(found))]


def test_a_drafter_without_confidence_head_cannot_be_recorded() -> None:
    drafter = tiny_drafter(TARGET)
    drafter.confidence_head = None
    with pytest.raises(ConfigurationError, match="no confidence head"):
        rows(steps(drafter)[0], drafter)
