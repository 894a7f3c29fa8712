"""Responses that the target samples itself, with the hidden states a drafter trains on.

A drafter must imitate what the target says, not what a corpus says, so its training text is the
target's own (DSpark paper, §4.1). The hidden states come for free while sampling and are kept,
in half precision, so that training never runs the target.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from calib.errors import ConfigurationError, FormatError
from heads.prompts import Prompt
from heads.ragged_attention import RaggedCache
from heads.sampling import RequestStream, SamplingParameters, draw, processed_probabilities
from heads.targets import HuggingFaceTarget
from heads.torch_files import read_torch, write_torch

_PREFILL_ROWS = 16


@dataclass(frozen=True, slots=True)
class Response:
    """One sampled response with what the target computed on the way.

    Letters: S tokens of prompt and response, L·D feature width.

    Attributes:
        tokens: [S] int32.
        prompt_length: where the response begins.
        features: [S', L·D] float16 context features; S' is S, or S − 1 where the last token was
            never fed back.
        log_normalizer: [S'] float32, log Σ exp of the target's logits, so that probabilities of a
            part of the vocabulary need no full softmax.
        temperature: sampling temperature, 0 for greedy.
        domain: tag of the prompt.
        digest: of the prompt.
    """

    tokens: Tensor
    prompt_length: int
    features: Tensor
    log_normalizer: Tensor
    temperature: float
    domain: str
    digest: str


@dataclass(frozen=True, slots=True)
class ResponsePlan:
    """How responses are sampled.

    Attributes:
        temperatures: one after another over the prompts, so shares are as listed.
        max_new_tokens: longest response.
        max_prompt_tokens: longer prompts are left out.
        slots: requests at once.
        seed: of all draws, 0 or more.

    Raises:
        ConfigurationError: a value out of range.
    """

    temperatures: tuple[float, ...] = (1.0, 0.6, 1.0, 0.0)
    max_new_tokens: int = 128
    max_prompt_tokens: int = 192
    slots: int = 96
    seed: int = 0

    def __post_init__(self) -> None:
        for field in ("max_new_tokens", "max_prompt_tokens", "slots"):
            if getattr(self, field) < 1:
                raise ConfigurationError(field, getattr(self, field), "give 1 or more")
        if self.seed < 0:
            raise ConfigurationError("seed", self.seed, "give 0 or more")
        if not self.temperatures:
            raise ConfigurationError("temperatures", (), "give at least one")
        for temperature in self.temperatures:
            SamplingParameters(temperature)

    def temperature_of(self, number: int) -> float:
        """Sampling temperature of the prompt of that number."""
        return self.temperatures[number % len(self.temperatures)]


@dataclass(slots=True)
class _Active:
    number: int
    prompt: Prompt
    tokens: list[int]
    prompt_length: int
    parameters: SamplingParameters
    stream: RequestStream
    features: list[Tensor]
    log_normalizers: list[Tensor]


class ResponseSampler:
    """Samples responses in a batch whose finished rows are refilled at once.

    Args:
        target: with the layers whose features are to be kept.
        plan: see :class:`ResponsePlan`.
    """

    def __init__(self, target: HuggingFaceTarget, plan: ResponsePlan) -> None:
        self._target = target
        self._plan = plan
        self._cache = RaggedCache(plan.slots, plan.max_prompt_tokens + plan.max_new_tokens + 1)
        self._active: dict[int, _Active] = {}

    def run(self, prompts: Sequence[tuple[int, Prompt]]) -> Iterator[tuple[int, Response]]:
        """Yield (number, response) as they finish; prompts that are too long are left out."""
        waiting = self._encoded(prompts)
        exhausted = False
        while True:
            admitted: list[int] = []
            for slot in range(self._plan.slots):
                if slot in self._active or exhausted:
                    continue
                active = next(waiting, None)
                if active is None:
                    exhausted = True
                    break
                self._active[slot] = active
                admitted.append(slot)
            yield from self._prefill(admitted)
            if not self._active:
                if exhausted:
                    return
                continue
            slots = sorted(self._active)
            yield from self._step(slots)

    def _encoded(self, prompts: Sequence[tuple[int, Prompt]]) -> Iterator[_Active]:
        for number, prompt in prompts:
            ids = self._target.encode_chat(prompt.text)
            if not 1 <= len(ids) <= self._plan.max_prompt_tokens:
                continue
            yield _Active(
                number=number,
                prompt=prompt,
                tokens=ids,
                prompt_length=len(ids),
                parameters=SamplingParameters(self._plan.temperature_of(number)),
                stream=RequestStream(self._plan.seed, number),
                features=[],
                log_normalizers=[],
            )

    def _prefill(self, slots: list[int]) -> Iterator[tuple[int, Response]]:
        # Rows of like length together: the padding of a prefill is wasted work.
        slots = sorted(slots, key=lambda s: len(self._active[s].tokens))
        for start in range(0, len(slots), _PREFILL_ROWS):
            group = slots[start : start + _PREFILL_ROWS]
            longest = max(len(self._active[s].tokens) for s in group)
            ids = torch.zeros(len(group), longest, dtype=torch.long)
            for row, slot in enumerate(group):
                tokens = torch.tensor(self._active[slot].tokens)
                ids[row, : len(tokens)] = tokens
            positions = torch.arange(longest).expand_as(ids)
            output = self._target.forward(ids, positions, torch.tensor(group), self._cache)
            for row, slot in enumerate(group):
                active = self._active[slot]
                length = len(active.tokens)
                active.features.append(_half_copy(output.features[row, :length]))
                # Log-normalizers inside the prompt are never a label; only the last is.
                active.log_normalizers.append(torch.zeros(length - 1))
            last = torch.tensor([len(self._active[s].tokens) - 1 for s in group])
            yield from self._extend(group, output.last_hidden[torch.arange(len(group)), last])

    def _step(self, slots: list[int]) -> Iterator[tuple[int, Response]]:
        ids = torch.tensor([[self._active[s].tokens[-1]] for s in slots])
        positions = torch.tensor([[len(self._active[s].tokens) - 1] for s in slots])
        output = self._target.forward(ids, positions, torch.tensor(slots), self._cache)
        for row, slot in enumerate(slots):
            self._active[slot].features.append(_half_copy(output.features[row]))
        yield from self._extend(slots, output.last_hidden[:, 0])

    def _extend(self, slots: list[int], last_hidden: Tensor) -> Iterator[tuple[int, Response]]:
        """Append one sampled token a row and yield the rows that are finished with it."""
        logits = self._target.logits(last_hidden)
        normalizers = torch.logsumexp(logits, dim=-1)
        tokens = self._sample(slots, logits)
        for row, slot in enumerate(slots):
            active = self._active[slot]
            active.log_normalizers.append(normalizers[row : row + 1].clone())
            token = int(tokens[row])
            active.tokens.append(token)
            new = len(active.tokens) - active.prompt_length
            if token in self._target.eos_token_ids or new >= self._plan.max_new_tokens:
                del self._active[slot]
                yield active.number, _finish(active)

    def _sample(self, slots: list[int], logits: Tensor) -> Tensor:
        """The next token of every row, each by its own temperature and stream; [R] long."""
        active = [self._active[s] for s in slots]
        # Not float32: there a uniform just below 1 is 1.
        uniforms = torch.tensor([a.stream.uniforms(1)[0] for a in active], dtype=torch.float64)
        tokens = torch.empty(len(slots), dtype=torch.long)
        for parameters in {a.parameters for a in active}:
            rows = torch.tensor([r for r, a in enumerate(active) if a.parameters == parameters])
            if parameters.greedy:
                tokens[rows] = logits[rows].argmax(dim=-1)
            else:
                probabilities = processed_probabilities(logits[rows], parameters)
                tokens[rows] = draw(probabilities, uniforms[rows])
        return tokens


def _half_copy(features: Tensor) -> Tensor:
    """A float16 copy that does not keep the whole batch's tensor alive."""
    return features.to(torch.float16, copy=True)


def _finish(active: _Active) -> Response:
    features = torch.cat(active.features)
    if not bool(features.isfinite().all()):
        raise ConfigurationError(
            "layer_ids",
            "hidden states beyond float16",
            "choose target layers whose hidden states stay within ±65504",
        )
    return Response(
        tokens=torch.tensor(active.tokens, dtype=torch.int32),
        prompt_length=active.prompt_length,
        features=features,
        log_normalizer=torch.cat(active.log_normalizers),
        temperature=active.parameters.temperature,
        domain=active.prompt.domain,
        digest=active.prompt.digest,
    )


class ResponseStore:
    """Responses on disk in numbered shards; a run that was cut off goes on where it was.

    Args:
        folder: made when missing.
        shard_size: responses a file, 1 or more.
    """

    _FIELDS = tuple(Response.__dataclass_fields__)

    def __init__(self, folder: Path, shard_size: int = 64) -> None:
        if shard_size < 1:
            raise ConfigurationError("shard_size", shard_size, "give 1 or more")
        self.folder = folder
        self.shard_size = shard_size
        folder.mkdir(parents=True, exist_ok=True)

    def shards(self) -> list[Path]:
        """Files in the order they were written."""
        return sorted(self.folder.glob("responses-*.pt"))

    def load(self) -> dict[int, Response]:
        """All stored responses by number.

        Raises:
            FormatError: a shard cannot be read.
        """
        found: dict[int, Response] = {}
        for shard in self.shards():
            found.update(_read_shard(shard))
        return found

    def sources(self) -> dict[int, tuple[str, float]]:
        """Prompt digest and sampling temperature of every stored response, by number.

        Raises:
            FormatError: a shard cannot be read.
        """
        return {
            number: (response.digest, response.temperature)
            for shard in self.shards()  # one at a time: the features fill most of the memory
            for number, response in _read_shard(shard, mapped=True).items()
        }

    def save(self, rows: dict[int, Response]) -> None:
        """Write one new shard atomically."""
        plain = {n: {f: getattr(r, f) for f in self._FIELDS} for n, r in rows.items()}
        # Not their count: where a damaged shard was deleted, that is another shard's number.
        numbers = [int(path.stem.rpartition("-")[2]) for path in self.shards()]
        path = self.folder / f"responses-{max(numbers, default=-1) + 1:05d}.pt"
        write_torch(path, plain)


def _read_shard(path: Path, *, mapped: bool = False) -> dict[int, Response]:
    remedy = "delete it and sample again"
    rows = read_torch(path, remedy=remedy, mapped=mapped)
    try:
        return {int(number): Response(**row) for number, row in rows.items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise FormatError(path, f"no response shard ({error})", remedy) from error


def sample_responses(
    target: HuggingFaceTarget,
    prompts: Sequence[Prompt],
    plan: ResponsePlan,
    store: ResponseStore,
    *,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Sample one response for each prompt (a prompt listed twice is sampled twice), resumably.

    Prompts longer than the plan allows get none, so fewer may be stored than asked for.

    Args:
        progress: called with responses done and asked for.

    Raises:
        ConfigurationError: the store holds responses to other prompts or temperatures.
    """
    have = store.sources()
    for number, (digest, temperature) in have.items():
        if number < len(prompts) and (
            digest != prompts[number].digest or temperature != plan.temperature_of(number)
        ):
            raise ConfigurationError(
                "responses",
                f"number {number} answers another prompt or has another temperature",
                "sample with the prompts and plan the folder was begun with, or into a new one",
            )
    todo = [(n, p) for n, p in enumerate(prompts) if n not in have]
    pending: dict[int, Response] = {}
    done = len(have)
    for number, response in ResponseSampler(target, plan).run(todo):
        pending[number] = response
        done += 1
        progress(done, len(prompts))
        if len(pending) >= store.shard_size:
            store.save(pending)
            pending = {}
    if pending:
        store.save(pending)
