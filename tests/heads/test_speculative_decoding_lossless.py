"""Losslessness end to end: a real target, a random drafter, and the first three tokens of many
requests against the target's exact probabilities."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from calib.cost_table import FlatCostTable
from calib.prefix_scheduler import schedule_early_stop, schedule_lagged, schedule_threshold
from heads.drafter import Drafter
from heads.sampling import SamplingParameters, processed_probabilities
from heads.speculative_decoding import DecodingRequest, SpeculativeDecoder, VerificationPolicy
from heads.targets import HuggingFaceTarget
from tests.heads.tiny_models import plain_logits, tiny_drafter, tiny_target

pytestmark = [pytest.mark.torch, pytest.mark.statistical]

VOCABULARY = 5
LENGTH = 3
PROMPT = (2, 4, 1, 1)
TARGET = tiny_target(vocab_size=VOCABULARY, layers=2, layer_ids=(0, 1), sharpness=1.5)
DRAFTER = tiny_drafter(TARGET, layers=1, confident=4.0)
REDUCED = tiny_drafter(TARGET, layers=1, confident=4.0, draft_vocabulary=(0, 2, 3))


def exact(target: HuggingFaceTarget, parameters: SamplingParameters) -> np.ndarray:
    """Joint probabilities of the first three tokens, [V³], from the plain model."""
    known: dict[tuple[int, ...], Tensor] = {}
    joint = np.ones(VOCABULARY**LENGTH)
    for index, tokens in enumerate(product(range(VOCABULARY), repeat=LENGTH)):
        for k in range(LENGTH):
            prefix = tokens[:k]
            if prefix not in known:
                logits = plain_logits(target, PROMPT + prefix)[-1]
                known[prefix] = processed_probabilities(logits, parameters)
            joint[index] *= float(known[prefix][tokens[k]])
    return joint


def observed(
    drafter: Drafter,
    parameters: SamplingParameters,
    policy: VerificationPolicy | None,
    count: int,
    slots: int = 512,
) -> np.ndarray:
    decoder = SpeculativeDecoder(TARGET, drafter, slots=slots, capacity=8, seed=20, policy=policy)
    requests = (DecodingRequest(n, PROMPT, parameters, LENGTH) for n in range(count))
    lengths = []
    for step in decoder.run(requests):
        lengths += step.scheduled.tolist()
    if policy is not None:
        assert len(set(lengths)) > 1, "the policy decided nothing"
    powers = VOCABULARY ** np.arange(LENGTH - 1, -1, -1)
    answers = np.array([decoder.answers[n] for n in range(count)])
    return np.bincount(answers @ powers, minlength=VOCABULARY**LENGTH)


def p_value(seen: np.ndarray, masses: np.ndarray) -> float:
    """Chi-square, cells that expect fewer than five drawn together."""
    expected = masses / masses.sum() * seen.sum()
    assert seen[expected == 0].sum() == 0
    rare = expected < 5
    seen = np.append(seen[~rare], seen[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    keep = expected > 0
    return float(stats.chisquare(seen[keep], expected[keep]).pvalue)


def threshold(logits: Tensor) -> Tensor:
    """Cut at the first confidence below one half."""
    schedule = schedule_threshold(torch.sigmoid(logits).numpy(), 0.5)
    return torch.from_numpy(schedule.verified)


def survival_of(logits: Tensor) -> np.ndarray:
    survival: np.ndarray = torch.sigmoid(logits).cumprod(dim=1).numpy()
    return survival


# Smooth and falling, so that Algorithm 1 stops somewhere in the middle of the ranking.
_PROBES = tuple(range(1, 2100, 3))
STEPS = FlatCostTable(_PROBES, tuple(1.0 / (1.0 + b / 700) for b in _PROBES), _PROBES[-1])


def early_stop(logits: Tensor) -> Tensor:
    return torch.from_numpy(schedule_early_stop(survival_of(logits), STEPS).verified)


def lagged() -> VerificationPolicy:
    """Capacity from the survivals of two steps ago; what falls short of rows counts as ones."""
    past: list[np.ndarray] = []

    def policy(logits: Tensor) -> Tensor:
        now = survival_of(logits)
        old = np.ones_like(now)
        if len(past) >= 2:
            rows = min(len(now), len(past[-2]))
            old[:rows] = past[-2][:rows]
        past.append(now)
        return torch.from_numpy(schedule_lagged(now, old, STEPS).verified)

    return policy


def leaky(logits: Tensor) -> Tensor:
    """Whether position 1 is verified depends on z_2, which knows x_1."""
    return torch.where(logits[:, 1] > logits[:, 1].median(), 3, 0)


PLAIN, PROCESSED = SamplingParameters(1.0), SamplingParameters(0.7, top_k=4, top_p=0.95)


def test_a_few_requests_with_everything_verified() -> None:
    masses = exact(TARGET, PLAIN)
    assert masses.sum() == pytest.approx(1.0, abs=1e-5)
    assert p_value(observed(DRAFTER, PLAIN, None, 1500, slots=256), masses) > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize(
    "policy",
    [lambda: None, lambda: threshold, lambda: early_stop, lagged],
    ids=["everything", "threshold", "early_stop", "lagged"],
)
@pytest.mark.parametrize(
    ("drafter", "parameters"),
    [(DRAFTER, PLAIN), (REDUCED, PLAIN), (DRAFTER, PROCESSED)],
    ids=["plain", "reduced", "processed"],
)
def test_the_first_three_tokens_are_the_targets(
    policy: Callable[[], VerificationPolicy | None],
    drafter: Drafter,
    parameters: SamplingParameters,
) -> None:
    seen = observed(drafter, parameters, policy(), 20_000)
    assert p_value(seen, exact(TARGET, parameters)) > 1e-4


@pytest.mark.slow
def test_a_leak_is_noticed() -> None:
    """The test has teeth: a policy that lets a token decide about itself fails it."""
    assert p_value(observed(DRAFTER, PLAIN, leaky, 20_000), exact(TARGET, PLAIN)) < 1e-9
