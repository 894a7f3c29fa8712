"""Speculative decoding of many requests: bookkeeping, stop tokens, streams, refused input."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from calib.errors import ConfigurationError
from heads.backbone import KeysValues
from heads.drafter import Drafter, Proposal
from heads.sampling import SamplingParameters
from heads.speculative_decoding import DecodingRequest, DecodingStep, SpeculativeDecoder
from heads.targets import HuggingFaceTarget
from tests.heads.tiny_models import plain_logits, tiny_configuration, tiny_drafter, tiny_target

pytestmark = pytest.mark.torch

TARGET = tiny_target(eos=3)
DRAFTER = tiny_drafter(TARGET)
PROMPTS = [(5, 9, 1), (7,), (30, 2, 8, 11, 20), (4, 4), (12, 13, 14, 15), (1, 2)]


def requests(
    temperature: float = 0.0, count: int = 6, max_new_tokens: int = 14
) -> list[DecodingRequest]:
    parameters = SamplingParameters(temperature)
    return [
        DecodingRequest(n, PROMPTS[n % len(PROMPTS)], parameters, max_new_tokens)
        for n in range(count)
    ]


def decoder(
    target: HuggingFaceTarget = TARGET, drafter: Drafter = DRAFTER, **changes: Any
) -> SpeculativeDecoder:
    options = {"slots": 3, "capacity": 24, "seed": 2, **changes}
    return SpeculativeDecoder(target, drafter, **options)


def greedy_answer(
    target: HuggingFaceTarget, prompt: tuple[int, ...], limit: int
) -> tuple[int, ...]:
    """The target's own greedy decoding, token by token, without drafter or cache."""
    tokens = list(prompt)
    while len(tokens) < len(prompt) + limit:
        tokens.append(int(plain_logits(target, tokens)[-1].argmax()))
        if tokens[-1] in target.eos_token_ids:
            break
    return tuple(tokens[len(prompt) :])


@pytest.mark.parametrize(
    "drafter",
    [
        DRAFTER,
        tiny_drafter(TARGET, markov_head_type="rnn"),
        tiny_drafter(TARGET, markov_rank=0),
        tiny_drafter(TARGET, draft_vocabulary=(0, 3, 4, 9, 11, 20, 29, 33, 40)),
        tiny_drafter(TARGET, gamma=6),
    ],
    ids=["vanilla", "rnn", "bare", "reduced", "gamma6"],
)
def test_greedy_decoding_is_the_targets_own(drafter: Drafter) -> None:
    run = decoder(drafter=drafter)
    list(run.run(requests()))
    for request in requests():
        assert run.answers[request.number] == greedy_answer(TARGET, request.prompt, 14)


def test_greedy_decoding_stops_at_the_targets_stop_token() -> None:
    """Every token that greedy decoding reaches is a stop token once."""
    plain = tiny_target()
    drafter = tiny_drafter(plain)
    reached = greedy_answer(plain, PROMPTS[0], 10)
    for stop in sorted(set(reached)):
        plain.config.eos_token_id = stop
        run = decoder(plain, drafter)
        list(run.run(requests(count=1, max_new_tokens=10)))
        assert run.answers[0] == reached[: reached.index(stop) + 1]


def test_steps_add_up_to_the_answers() -> None:
    run = decoder()
    found: dict[int, list[int]] = {n: [] for n in range(6)}
    contexts: dict[int, int] = {}
    for number, step in enumerate(run.run(requests(temperature=1.0))):
        assert step.step == number
        assert len(step.requests) <= 3
        for row, request in enumerate(step.requests):
            n = int(step.verdict.accepted[row])
            emitted = step.emitted[row]
            drafted = step.proposal.tokens[row].tolist()
            full = [*drafted[:n], int(step.verdict.next_token[row])]
            assert list(emitted) == full[: len(emitted)]
            assert n <= int(step.verified[row]) <= int(step.scheduled[row]) == 3
            context = int(step.context_lengths[row])
            before = contexts.get(request.number, len(request.prompt))
            assert context == before  # the anchor is the one token not counted
            contexts[request.number] = context + len(emitted)
            found[request.number] += emitted
    for request in requests():
        answer = run.answers[request.number]
        assert answer[1:] == tuple(found[request.number])  # the first token comes with the prompt
        assert len(answer) == 14 or answer[-1] == 3
        assert 3 not in answer[:-1]
    assert run.active == frozenset()


@pytest.mark.slow
def test_a_requests_tokens_do_not_depend_on_its_company() -> None:
    alone, wide = decoder(slots=1), decoder(slots=6)
    for temperature in (1.0, 0.6):
        list(alone.run(requests(temperature)))
        list(wide.run(reversed(requests(temperature))))
        assert alone.answers == wide.answers
        alone, wide = decoder(slots=1), decoder(slots=6)
    other = decoder(seed=3)
    list(other.run(requests(1.0)))
    assert other.answers != wide.answers


def test_requests_are_taken_as_slots_fall_free() -> None:
    taken: list[int] = []

    def endless() -> Iterator[DecodingRequest]:
        number = 0
        while len(run.answers) < 5:  # decided by what was seen
            taken.append(number)
            yield DecodingRequest(number, (5, 9), SamplingParameters(1.0), 6)
            number += 1

    run = decoder(slots=2)
    first = next(stream := run.run(endless()))
    assert taken == [0, 1]
    assert len(first.requests) == 2
    list(stream)
    assert sorted(run.answers) == taken
    assert 5 <= len(taken) <= 7


def test_a_first_token_that_stops_needs_no_step() -> None:
    target = tiny_target()
    first = int(plain_logits(target, (5, 9))[-1].argmax())
    target.config.eos_token_id = first
    run = decoder(target, tiny_drafter(target))
    assert list(run.run([DecodingRequest(0, (5, 9), SamplingParameters(0.0), 5)])) == []
    assert run.answers == {0: (first,)}
    run = decoder()
    assert list(run.run([DecodingRequest(0, (5, 9), SamplingParameters(1.0), 1)])) == []
    assert len(run.answers[0]) == 1
    assert list(run.run([])) == []


# ---- stop tokens ----


class Scripted(Drafter):
    """Drafts what a script says at each position, with certainty."""

    script: tuple[int, ...]

    def propose(
        self,
        anchors: Tensor,
        positions: Tensor,
        context: list[KeysValues],
        context_mask: Tensor,
        parameters: list[SamplingParameters],
        uniforms: Tensor,
    ) -> Proposal:
        drawn = super().propose(anchors, positions, context, context_mask, parameters, uniforms)
        start = int(positions[0]) + 1
        tokens = torch.tensor([self.script[start : start + self.gamma]])
        probabilities = torch.zeros_like(drawn.probabilities).scatter_(-1, tokens[..., None], 1.0)
        return replace(drawn, tokens=tokens, draft_ids=tokens, probabilities=probabilities)


def scripted(target: HuggingFaceTarget, script: tuple[int, ...], gamma: int) -> Scripted:
    configuration = tiny_configuration(target, gamma=gamma)
    drafter = Scripted(configuration, target.embed_tokens.weight, target.lm_head.weight)
    drafter.script = script
    return drafter.eval()


def distinct_greedy(length: int) -> tuple[HuggingFaceTarget, tuple[int, ...], tuple[int, ...]]:
    """A target and a prompt whose greedy answer repeats no token for a while."""
    for seed in range(60):
        target = tiny_target(seed=seed)
        for prompt in PROMPTS:
            answer = greedy_answer(target, prompt, length)
            if len(set(answer)) == length:
                return target, prompt, answer
    raise LookupError("no such prompt")


def one_step(
    target: HuggingFaceTarget, drafter: Drafter, prompt: tuple[int, ...], **options: Any
) -> tuple[DecodingStep, SpeculativeDecoder]:
    run = decoder(target, drafter, slots=1, capacity=40, **options)
    request = DecodingRequest(0, prompt, SamplingParameters(0.0), 12)
    return next(run.run([request])), run


def test_r38_a_stop_token_ends_the_block() -> None:
    """γ = 6, all match, the stop token is the third: ℓ = 3, three tokens emitted, no bonus."""
    target, prompt, answer = distinct_greedy(8)
    script = (*prompt, *answer)
    target.config.eos_token_id = answer[3]  # answer[0] is the anchor
    step, run = one_step(target, scripted(target, script, 6), prompt)
    assert step.scheduled.tolist() == [6]
    assert step.verified.tolist() == [3]
    assert step.verdict.accepted.tolist() == [3]
    assert step.stopped.tolist() == [True]
    assert step.emitted == (answer[1:4],)
    assert run.answers[0] == answer[:4]


def test_a_drafted_stop_token_cuts_even_when_it_is_rejected() -> None:
    target, prompt, answer = distinct_greedy(8)
    stop = next(t for t in range(41) if t not in answer)
    target.config.eos_token_id = stop
    script = [*prompt, *answer]
    script[len(prompt) + 3] = stop  # the third drafted token
    step, _ = one_step(target, scripted(target, tuple(script), 6), prompt)
    assert step.verified.tolist() == [3]
    assert step.verdict.accepted.tolist() == [2]
    assert step.stopped.tolist() == [True]
    assert step.emitted == (answer[1:4],)  # two accepted and the replacement


@pytest.mark.parametrize(("length", "stopped"), [(2, False), (3, True), (4, True)])
def test_a_policys_cut_and_the_stop_tokens(length: int, stopped: bool) -> None:
    target, prompt, answer = distinct_greedy(8)
    target.config.eos_token_id = answer[3]
    drafter = scripted(target, (*prompt, *answer), 6)
    step, _ = one_step(target, drafter, prompt, policy=lambda z: torch.full((len(z),), length))
    assert step.scheduled.tolist() == [length]
    assert step.verified.tolist() == [min(length, 3)]
    # A stop token at the very end of ℓ shortens nothing, and still there is no bonus after it.
    assert step.stopped.tolist() == [stopped]
    assert len(step.emitted[0]) == 3


def test_the_longest_answer_is_kept_exactly() -> None:
    plain = tiny_target()
    for limit in range(1, 9):
        run = decoder(plain, tiny_drafter(plain))
        list(run.run(requests(count=2, max_new_tokens=limit)))
        assert all(len(answer) == limit for answer in run.answers.values())


# ---- policies ----


def test_a_policy_sees_raw_logits_and_decides_lengths() -> None:
    seen: list[Tensor] = []

    def policy(logits: Tensor) -> Tensor:
        seen.append(logits)
        return (torch.sigmoid(logits) > 0.5).int().cumprod(dim=1).sum(dim=1)

    run = decoder(policy=policy)
    for index, step in enumerate(run.run(requests(1.0))):
        assert step.proposal.confidence_logits is not None
        assert torch.equal(seen[index], step.proposal.confidence_logits)
        expected = (seen[index] > 0).int().cumprod(dim=1).sum(dim=1)
        assert step.scheduled.tolist() == expected.tolist()
        assert (step.verdict.accepted <= step.verified).all()


@pytest.mark.parametrize(
    "lengths", [lambda z: torch.full((len(z),), 4), lambda z: -z[:, 0].abs() - 1, lambda z: z]
)
def test_impossible_lengths_are_refused(lengths: Any) -> None:
    with pytest.raises(ConfigurationError, match="policy"):
        list(decoder(policy=lengths).run(requests()))


# ---- refused input ----


def test_models_must_belong_together() -> None:
    with pytest.raises(ConfigurationError, match="layer_ids"):
        decoder(tiny_target(layer_ids=(0, 1)))
    with pytest.raises(ConfigurationError, match="vocab_size"):
        decoder(tiny_target(vocab_size=50))
    bare = tiny_drafter(TARGET)
    bare.confidence_head = None
    with pytest.raises(ConfigurationError, match="policy"):
        decoder(drafter=bare, policy=lambda z: torch.zeros(len(z)))
    with pytest.raises(ConfigurationError, match="slots"):
        decoder(slots=0)


def test_requests_are_checked() -> None:
    with pytest.raises(ConfigurationError, match="prompt"):
        DecodingRequest(0, (), SamplingParameters(), 5)
    with pytest.raises(ConfigurationError, match="max_new_tokens"):
        DecodingRequest(0, (1,), SamplingParameters(), 0)
    with pytest.raises(ConfigurationError, match="number"):
        DecodingRequest(-1, (1,), SamplingParameters(), 5)
    with pytest.raises(ConfigurationError, match="capacity"):
        list(decoder(capacity=10).run([DecodingRequest(0, (1,) * 6, SamplingParameters(), 5)]))
    same = DecodingRequest(0, (5, 9), SamplingParameters(), 5)
    with pytest.raises(ConfigurationError, match="number"):
        list(decoder().run([same, same]))
    run = decoder()
    list(run.run([same]))
    with pytest.raises(ConfigurationError, match="number"):
        list(run.run([same]))


def test_the_capacity_can_be_used_to_the_last_token() -> None:
    plain = tiny_target()
    run = decoder(plain, tiny_drafter(plain), capacity=11, slots=1)
    list(run.run([DecodingRequest(0, (1,) * 6, SamplingParameters(), 5)]))
    assert len(run.answers[0]) == 5
