"""What is recorded, and which request comes when.

The order of the requests and all they do follow from the plan, so that a recording that was cut
off, resumed or made longer holds the same rows as one made in one go.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from calib.errors import ConfigurationError
from heads.prompts import Prompt
from heads.sampling import SamplingParameters
from heads.speculative_decoding import DecodingRequest
from heads.targets import HuggingFaceTarget


@dataclass(frozen=True, slots=True)
class RecordingPlan:
    """What is recorded.

    Attributes:
        blocks: stop after this many rows, counting whole requests.
        temperatures: sampling temperatures, in turn over the requests; 0 is greedy.
        max_new_tokens: longest answer.
        max_prompt_tokens: longer prompts are left out.
        slots: interleaved requests.
        seed: of every request's stream, 0 or more.
        revision: calibration the rows were made under; 0 is identity.
        engine: name written into the rows.
        shard_requests: finished requests a shard.

    Raises:
        ConfigurationError: a value out of range.
    """

    blocks: int = 30_000
    temperatures: tuple[float, ...] = (1.0, 0.6, 0.0)
    max_new_tokens: int = 160
    max_prompt_tokens: int = 192
    slots: int = 64
    seed: int = 0
    revision: int = 0
    engine: str = "recorder"
    shard_requests: int = 32

    def __post_init__(self) -> None:
        for field in ("blocks", "max_new_tokens", "max_prompt_tokens", "slots", "shard_requests"):
            if getattr(self, field) < 1:
                raise ConfigurationError(field, getattr(self, field), "give 1 or more")
        for field in ("seed", "revision"):
            if getattr(self, field) < 0:
                raise ConfigurationError(field, getattr(self, field), "give 0 or more")
        if not self.engine:
            raise ConfigurationError("engine", self.engine, "give a name")
        if not self.temperatures:
            raise ConfigurationError("temperatures", (), "give at least one")
        for temperature in self.temperatures:
            SamplingParameters(temperature)


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """A request with the prompt whose tags its rows carry."""

    request: DecodingRequest
    prompt: Prompt


def plan_requests(
    target: HuggingFaceTarget, prompts: Sequence[Prompt], plan: RecordingPlan, first: int = 0
) -> Iterator[PlannedRequest]:
    """Requests number ``first``, ``first + 1``, … without end: domains in turn, each domain's
    prompts in order, temperatures in turn.

    When a domain's prompts run out they come again at the next temperature, so that no prompt is
    answered twice in the same way before all temperatures are through.

    Raises:
        ConfigurationError: no prompt is short enough.
    """
    by_domain: dict[str, list[tuple[Prompt, tuple[int, ...]]]] = {}
    for prompt in prompts:
        ids = tuple(target.encode_chat(prompt.text))
        if 1 <= len(ids) <= plan.max_prompt_tokens:
            by_domain.setdefault(prompt.domain, []).append((prompt, ids))
    if not by_domain:
        raise ConfigurationError(
            "max_prompt_tokens",
            plan.max_prompt_tokens,
            f"none of {len(prompts)} prompts is that short; raise it or give others",
        )
    return _endless(by_domain, plan, first)


def _endless(
    by_domain: dict[str, list[tuple[Prompt, tuple[int, ...]]]], plan: RecordingPlan, first: int
) -> Iterator[PlannedRequest]:
    domains = sorted(by_domain)
    number = first
    while True:
        prompts = by_domain[domains[number % len(domains)]]
        round_, index = divmod(number // len(domains), len(prompts))
        prompt, ids = prompts[index]
        temperature = plan.temperatures[(index + round_) % len(plan.temperatures)]
        parameters = SamplingParameters(temperature)
        request = DecodingRequest(number, ids, parameters, plan.max_new_tokens)
        yield PlannedRequest(request, prompt)
        number += 1
