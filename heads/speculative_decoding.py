"""Speculative decoding of many interleaved requests, step by step.

One step drafts a block for every active request, lets a policy decide how much of it is verified,
verifies losslessly in one pass of the target, and hands out what was seen. Nothing here knows
about files: the recorder listens to the steps.

Letters: R active requests, γ positions, V' draft vocabulary, V target vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from calib.errors import ConfigurationError
from heads.context_cache import DraftContextCache
from heads.draft_block import request_key
from heads.draft_block_runner import DraftBlockRunner
from heads.drafter import Drafter, Proposal, processed_by_request
from heads.ragged_attention import RaggedCache
from heads.sampling import RequestStream, SamplingParameters, draw
from heads.targets import HuggingFaceTarget
from heads.verification import Verdict, verify_block

# Decides ℓ from the raw confidence logits [R, γ] of the step: [R] long in 0 … γ. It must not let
# a position depend on its own token or a later one.
VerificationPolicy = Callable[[Tensor], Tensor]

_PREFILL_ROWS = 16


@dataclass(frozen=True, slots=True)
class DecodingRequest:
    """One request to decode.

    Attributes:
        number: identifies it in the run and keys its random stream; 0 or more.
        prompt: token ids, at least one.
        parameters: how it samples.
        max_new_tokens: longest answer.

    Raises:
        ConfigurationError: no prompt, no room for an answer, or a negative number.
    """

    number: int
    prompt: tuple[int, ...]
    parameters: SamplingParameters
    max_new_tokens: int

    def __post_init__(self) -> None:
        if not self.prompt:
            raise ConfigurationError("prompt", (), "give at least one token")
        if self.max_new_tokens < 1:
            raise ConfigurationError("max_new_tokens", self.max_new_tokens, "give 1 or more")
        if self.number < 0:
            raise ConfigurationError("number", self.number, "give 0 or more")


@dataclass(frozen=True, slots=True)
class DecodingStep:
    """All that one step saw, for the requests that had a block in it.

    Attributes:
        step: counts from the start of the run.
        requests: R requests, in row order.
        context_lengths: [R] tokens before the anchor.
        proposal: the drafted blocks.
        target_probabilities: [R, γ + 1, V] processed.
        scheduled: [R] the policy's ℓ.
        verified: [R] ℓ after the cut at a drafted stop token.
        stopped: [R] bool, whether a drafted stop token lies among the verified positions.
        verdict: acceptance.
        emitted: the new tokens of each request, in row order, the next token included; cut at a
            stop token and at the request's longest answer.
    """

    step: int
    requests: tuple[DecodingRequest, ...]
    context_lengths: Tensor
    proposal: Proposal
    target_probabilities: Tensor
    scheduled: Tensor
    verified: Tensor
    stopped: Tensor
    verdict: Verdict
    emitted: tuple[tuple[int, ...], ...]


@dataclass(slots=True)
class _Running:
    request: DecodingRequest
    tokens: list[int]  # prompt and answer; the last one is the anchor
    stream: RequestStream

    @property
    def new_tokens(self) -> int:
        return len(self.tokens) - len(self.request.prompt)


class SpeculativeDecoder:
    """Decodes requests in a batch of slots, refilled as requests finish.

    Args:
        target: frozen, with the drafter's feature layers.
        drafter: in evaluation mode.
        slots: requests at once.
        capacity: longest prompt and answer, in tokens.
        seed: of every request's stream.
        policy: how much to verify; None verifies everything.
        runner: drafts the blocks, made for at least ``slots`` rows of this drafter; None lets the
            drafter do it. A request that cuts tokens from its distribution needs None.

    Attributes:
        step: number of the next step.
        answers: tokens of every finished request by its number, the stop token included.

    Raises:
        ConfigurationError: a target without the drafter's layers or vocabulary, a policy without
            a confidence head, or no slots.
    """

    def __init__(
        self,
        target: HuggingFaceTarget,
        drafter: Drafter,
        *,
        slots: int,
        capacity: int,
        seed: int,
        policy: VerificationPolicy | None = None,
        runner: DraftBlockRunner | None = None,
    ) -> None:
        if tuple(target.layer_ids) != drafter.configuration.target_layer_ids:
            raise ConfigurationError(
                "layer_ids",
                list(target.layer_ids),
                "load the target with the drafter's target_layer_ids, "
                f"{list(drafter.configuration.target_layer_ids)}",
            )
        if target.vocab_size != drafter.configuration.vocab_size:
            raise ConfigurationError(
                "vocab_size",
                target.vocab_size,
                f"the drafter was made for a target of {drafter.configuration.vocab_size} tokens",
            )
        if policy is not None and drafter.confidence_head is None:
            raise ConfigurationError("policy", policy, "a policy needs a confidence head")
        self._target, self._drafter = target, drafter
        self._seed, self._policy, self._slots = seed, policy, slots
        self._runner = runner
        self._capacity = capacity
        self._stops = target.eos_token_ids
        reach = capacity + drafter.gamma + 1
        self._cache = RaggedCache(slots, reach)
        self._context = DraftContextCache(drafter, slots, reach)
        self._running: dict[int, _Running] = {}
        self.answers: dict[int, tuple[int, ...]] = {}
        self._numbers: set[int] = set()
        self.step = 0

    @property
    def active(self) -> frozenset[int]:
        """Numbers of the requests that are still being decoded."""
        return frozenset(r.request.number for r in self._running.values())

    @torch.inference_mode()
    def run(self, requests: Iterable[DecodingRequest]) -> Iterator[DecodingStep]:
        """Yield every step until all requests are answered.

        Args:
            requests: taken one by one as slots fall free, so they may depend on what was seen.
                One whose first token ends it is answered without a step.

        Raises:
            ConfigurationError: a request longer than the capacity, or a number that came before.
        """
        waiting = iter(requests)
        while True:
            free = (s for s in range(self._slots) if s not in self._running)
            admitted = dict(zip(free, waiting, strict=False))
            if admitted:
                self._admit(admitted)
            if self._running:
                yield self._decode_step()
            elif not admitted:
                return

    def _admit(self, admitted: dict[int, DecodingRequest]) -> None:
        """Prefill prompts and draw each request's first token, the first anchor."""
        for request in admitted.values():
            self._check(request)
        order = sorted(admitted, key=lambda s: len(admitted[s].prompt))
        for start in range(0, len(order), _PREFILL_ROWS):  # like lengths together: less padding
            self._prefill({s: admitted[s] for s in order[start : start + _PREFILL_ROWS]})

    def _check(self, request: DecodingRequest) -> None:
        if len(request.prompt) + request.max_new_tokens > self._capacity:
            raise ConfigurationError(
                "capacity",
                self._capacity,
                f"request {request.number} may reach "
                f"{len(request.prompt) + request.max_new_tokens} tokens",
            )
        # A number keys the request's random stream: twins would draw the same tokens.
        if request.number in self._numbers:
            raise ConfigurationError("number", request.number, "give each request its own")
        self._numbers.add(request.number)

    def _prefill(self, admitted: dict[int, DecodingRequest]) -> None:
        slots, requests = list(admitted), list(admitted.values())
        lengths = torch.tensor([len(r.prompt) for r in requests])
        ids = torch.zeros(len(slots), int(lengths.max()), dtype=torch.long)
        for row, request in enumerate(requests):
            ids[row, : len(request.prompt)] = torch.tensor(request.prompt)
        positions = torch.arange(ids.shape[1]).expand_as(ids)
        index = torch.tensor(slots)
        output = self._target.forward(ids, positions, index, self._cache)
        self._context.write(index, positions, output.features)
        last = output.last_hidden[torch.arange(len(slots)), lengths - 1]
        weights = processed_by_request(self._target.logits(last), [r.parameters for r in requests])
        streams = [RequestStream(self._seed, r.number) for r in requests]
        tokens = draw(weights, _float64([s.uniforms(1)[0] for s in streams]))
        for slot, request, stream, token in zip(slots, requests, streams, tokens, strict=True):
            running = _Running(request, list(request.prompt), stream)
            self._extend(slot, running, [int(token)])

    def _decode_step(self) -> DecodingStep:
        slots = sorted(self._running)
        running = [self._running[s] for s in slots]
        index, gamma = torch.tensor(slots), self._drafter.gamma
        parameters = [r.request.parameters for r in running]
        anchors = torch.tensor([r.tokens[-1] for r in running])
        positions = torch.tensor([len(r.tokens) - 1 for r in running])
        # One row of uniforms a request: γ to draft, γ to accept, one for the next token.
        uniforms = _float64([r.stream.uniforms(2 * gamma + 1) for r in running])
        proposal = self._propose(index, anchors, positions, uniforms[:, :gamma])
        block = positions[:, None] + torch.arange(gamma + 1)
        ids = torch.cat([anchors[:, None], proposal.tokens], dim=1)
        output = self._target.forward(ids, block, index, self._cache)
        self._context.write(index, block, output.features)
        logits = self._target.logits(output.last_hidden)
        target_probabilities = _processed_blocks(logits, parameters)
        scheduled = self._schedule(proposal)
        verified, stopped = self._cut_at_stop_token(scheduled, proposal.tokens)
        verdict = verify_block(
            proposal.draft_ids,
            proposal.probabilities,
            target_probabilities,
            self._drafter.draft_to_target,
            verified,
            uniforms[:, gamma : 2 * gamma],
            uniforms[:, -1],
        )
        emitted = self._append(slots, proposal.tokens, verdict)
        self.step += 1
        return DecodingStep(
            step=self.step - 1,
            requests=tuple(r.request for r in running),
            context_lengths=positions,
            proposal=proposal,
            target_probabilities=target_probabilities,
            scheduled=scheduled,
            verified=verified,
            stopped=stopped,
            verdict=verdict,
            emitted=emitted,
        )

    def _propose(
        self, index: Tensor, anchors: Tensor, positions: Tensor, uniforms: Tensor
    ) -> Proposal:
        """One block a running request, in slot order."""
        running = [self._running[slot] for slot in index.tolist()]
        parameters = [r.request.parameters for r in running]
        context, mask = self._context.read(index, positions)
        if self._runner is None:
            return self._drafter.propose(anchors, positions, context, mask, parameters, uniforms)
        keys = torch.tensor([request_key(self._seed, r.request.number) for r in running])
        return self._runner.propose(anchors, positions, context, mask, parameters, keys)

    def _schedule(self, proposal: Proposal) -> Tensor:
        rows, gamma = proposal.tokens.shape
        if self._policy is None or proposal.confidence_logits is None:
            return torch.full((rows,), gamma)
        lengths = self._policy(proposal.confidence_logits).long()
        if lengths.shape != (rows,) or bool(((lengths < 0) | (lengths > gamma)).any()):
            raise ConfigurationError(
                "policy", lengths.tolist(), f"return {rows} lengths from 0 to {gamma}"
            )
        return lengths

    def _cut_at_stop_token(self, scheduled: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """ℓ := min(ℓ, position of the first drafted stop token), and where one lies in ℓ.

        It depends on draft content alone, accepted or not, so nothing leaks from the outcome.
        """
        is_stop = torch.isin(tokens, torch.tensor(sorted(self._stops), dtype=torch.long))
        never = tokens.shape[1] + 1
        first = torch.where(is_stop.any(dim=1), is_stop.int().argmax(dim=1) + 1, never)
        return torch.minimum(scheduled, first), first <= scheduled

    def _append(
        self, slots: list[int], tokens: Tensor, verdict: Verdict
    ) -> tuple[tuple[int, ...], ...]:
        emitted = []
        for row, slot in enumerate(slots):
            n = int(verdict.accepted[row])
            new = [*tokens[row, :n].tolist(), int(verdict.next_token[row])]
            emitted.append(self._extend(slot, self._running[slot], new))
        return tuple(emitted)

    def _extend(self, slot: int, running: _Running, new: list[int]) -> tuple[int, ...]:
        """Append what a stop token and the longest answer leave of new tokens; free the slot of a
        request that is finished with them."""
        stop = next((i for i, token in enumerate(new) if token in self._stops), len(new) - 1)
        room = running.request.max_new_tokens - running.new_tokens
        kept = new[: min(room, stop + 1)]
        running.tokens += kept
        if kept[-1] in self._stops or running.new_tokens == running.request.max_new_tokens:
            self._running.pop(slot, None)
            answer = tuple(running.tokens[len(running.request.prompt) :])
            self.answers[running.request.number] = answer
        else:
            self._running[slot] = running
        return tuple(kept)


def _float64(uniforms: list[float] | list[list[float]]) -> Tensor:
    """Not float32: there a uniform just below 1 is 1, and would reject a certain acceptance."""
    return torch.tensor(uniforms, dtype=torch.float64)


def _processed_blocks(logits: Tensor, parameters: list[SamplingParameters]) -> Tensor:
    """[R, γ + 1, V] logits to processed probabilities, each request in its own way."""
    rows, width, _ = logits.shape
    repeated = [p for p in parameters for _ in range(width)]
    return processed_by_request(logits.flatten(0, 1), repeated).view(rows, width, -1)
