"""One decoding step as telemetry rows.

Every row carries the true acceptance of a lossless verification, the exact label c* of every
verified position and the acceptance probability of every drafted token there, so that hard and
soft labels can be compared on the same blocks.

Letters: R rows of a step, γ positions, V target vocabulary, V' draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from calib.errors import ConfigurationError
from calib.record_schema import pack_flags
from calib.records import AcceptanceRecords
from heads.prompts import Prompt
from heads.recording_plan import RecordingPlan
from heads.speculative_decoding import DecodingStep


def rows_of_step(
    step: DecodingStep,
    prompts: Mapping[int, Prompt],
    draft_to_target: Tensor,  # [V'] long
    plan: RecordingPlan,
    *,
    everything_verified: bool,
) -> AcceptanceRecords:
    """The step's rows, in its request order.

    Args:
        step: what was seen.
        prompts: by request number.
        draft_to_target: of the drafter.
        plan: engine and revision are taken from it.
        everything_verified: no policy ran, so that full verification was certain beforehand.

    Raises:
        ConfigurationError: the drafter has no confidence head.
    """
    if step.proposal.confidence_logits is None:
        raise ConfigurationError(
            "drafter", "no confidence head", "record with a drafter that has one"
        )
    # Past the cut nothing was verified, and nothing follows a stop token: no label there.
    unknown = torch.arange(step.proposal.tokens.shape[1]) >= step.verified[:, None]
    labels = exact_labels(step, draft_to_target).masked_fill(unknown, torch.nan)
    acceptance = step.verdict.token_acceptance.masked_fill(unknown, torch.nan)
    rows = len(step.requests)
    gamma = step.proposal.tokens.shape[1]
    columns = {
        "confidence_logits": step.proposal.confidence_logits.numpy(),
        "verified": step.verified.numpy().astype(np.uint8),
        "accepted": step.verdict.accepted.numpy().astype(np.uint8),
        "soft_labels": labels.numpy(),
        "token_acceptance": acceptance.numpy(),
        "scheduled": step.scheduled.numpy().astype(np.uint8),
        "context_length": step.context_lengths.numpy().astype(np.int32),
        "step": np.full(rows, step.step, np.int64),
        "step_requests": np.full(rows, rows, np.int64),
        "revision": np.full(rows, plan.revision, np.int32),
        "propensity": np.full(rows, 1.0 if everything_verified else np.nan, np.float32),
        "flags": pack_flags(rows, stop_truncated=step.stopped.numpy()),
        "engine": [plan.engine] * rows,
        **_tags(step, prompts),
    }
    return AcceptanceRecords.from_columns(gamma, columns)


def _tags(step: DecodingStep, prompts: Mapping[int, Prompt]) -> dict[str, object]:
    parameters = [request.parameters for request in step.requests]
    tagged = [prompts[request.number] for request in step.requests]
    return {
        "sampling_temperature": np.array([p.temperature for p in parameters], np.float32),
        "acceptance_rule": ["greedy" if p.greedy else "rejection" for p in parameters],
        "draft_mode": ["greedy" if p.greedy else "sampled" for p in parameters],
        "domain": [prompt.domain for prompt in tagged],
        "prompt": [prompt.digest[:16] for prompt in tagged],
        "request": [str(request.number) for request in step.requests],
    }


def exact_labels(step: DecodingStep, draft_to_target: Tensor) -> Tensor:
    """c* of every drafted position given its drafted prefix; [R, γ] float32.

    Both distributions are the processed ones, which the step already holds; from scores,
    :func:`calib.soft_labels.soft_labels` gives the same. On the one-hot distributions of greedy
    requests the rejection rule's overlap is the greedy rule's 0 or 1.
    """
    draft = step.proposal.probabilities
    target = step.target_probabilities[:, :-1]
    shared = target[..., draft_to_target]
    overlap = torch.minimum(draft, shared).sum(dim=-1)
    outside = (target.sum(dim=-1) - shared.sum(dim=-1)).clamp(min=0.0)
    distance = 0.5 * ((draft - shared).abs().sum(dim=-1) + outside)
    return overlap / (overlap + distance)
