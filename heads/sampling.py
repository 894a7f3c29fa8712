"""Turning logits into the distribution that sampling really uses, and drawing from it.

Every draw takes its uniform from the caller, so a request's tokens depend on the request's own
random stream and never on who shares its batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from calib.errors import ConfigurationError, DistributionError

# Below it float32 logits divided by the temperature lose the differences that matter.
_LEAST_TEMPERATURE = 1e-4


@dataclass(frozen=True, slots=True)
class SamplingParameters:
    """How one request samples.

    Attributes:
        temperature: 0 is greedy; else at least 0.0001.
        top_k: 0 keeps all.
        top_p: 1 keeps all.
        min_p: 0 keeps all; else tokens below ``min_p`` times the largest probability go.

    Raises:
        ConfigurationError: a value outside its range.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    def __post_init__(self) -> None:
        if self.temperature != 0.0 and not _LEAST_TEMPERATURE <= self.temperature < float("inf"):
            raise ConfigurationError(
                "temperature",
                self.temperature,
                f"give 0 (greedy), or {_LEAST_TEMPERATURE} or more",
            )
        if self.top_k < 0:
            raise ConfigurationError("top_k", self.top_k, "give 0 (off) or a positive count")
        if not 0.0 < self.top_p <= 1.0:
            raise ConfigurationError("top_p", self.top_p, "give a share in (0, 1]")
        if not 0.0 <= self.min_p < 1.0:
            raise ConfigurationError("min_p", self.min_p, "give a share in [0, 1)")

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is taken."""
        return self.temperature == 0.0

    @property
    def truncates(self) -> bool:
        """Whether any token can be cut from the distribution."""
        return self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0


def processed_probabilities(
    logits: Tensor,  # [..., V]
    parameters: SamplingParameters,
) -> Tensor:
    """Probabilities after temperature, top-k, top-p and min-p, in that order; [..., V] float32.

    Greedy gives the one-hot vector of the largest logit, the lowest id among equals. Tokens that
    tie with the k-th of top-k all stay; at the edge of top-p the lower ids stay.

    Raises:
        DistributionError: greedy only: a row whose largest logit is not finite. A sampled row of
            that kind gives NaN, which :func:`draw` refuses.
    """
    logits = logits.float()
    if parameters.greedy:
        best = logits.argmax(dim=-1, keepdim=True)
        largest = logits.gather(-1, best)
        _refuse(~largest.isfinite(), largest, "logits", "give rows with one finite largest logit")
        return torch.zeros_like(logits).scatter_(-1, best, 1.0)
    if parameters.temperature != 1.0:
        logits = logits / parameters.temperature
    if 0 < parameters.top_k < logits.shape[-1]:
        kept = logits.topk(parameters.top_k, dim=-1).values[..., -1:]
        logits = logits.masked_fill(logits < kept, float("-inf"))
    probabilities = torch.softmax(logits, dim=-1)
    if parameters.top_p < 1.0:
        ordered, order = probabilities.sort(dim=-1, descending=True, stable=True)
        # A token stays while the mass before it is short of top_p: the first one always does.
        drop = ordered.cumsum(-1) - ordered >= parameters.top_p
        probabilities = probabilities.masked_fill(
            torch.zeros_like(drop).scatter(-1, order, drop), 0.0
        )
    if parameters.min_p > 0.0:
        floor = parameters.min_p * probabilities.amax(dim=-1, keepdim=True)
        probabilities = probabilities.masked_fill(probabilities < floor, 0.0)
    if parameters.truncates:
        probabilities = probabilities / probabilities.sum(dim=-1, keepdim=True)
    return probabilities


def draw(
    weights: Tensor,  # [R, V] non-negative, need not sum to 1
    uniforms: Tensor,  # [R] in [0, 1)
) -> Tensor:
    """One token a row by inverting the cumulative distribution; [R] long.

    The running sum is float64: in float32 the tail of a large vocabulary would be rounded away.
    A token without weight is never drawn.

    Raises:
        DistributionError: a row without weight, or with NaN or infinite weights.
    """
    cumulative = weights.cumsum(dim=-1, dtype=torch.float64)
    total = cumulative[:, -1]
    # Negated, so that NaN is refused as well.
    _refuse(
        ~((total > 0.0) & total.isfinite()), total, "weights", "give rows with a finite sum > 0"
    )
    target = (uniforms.double() * total)[:, None]
    tokens = torch.searchsorted(cumulative, target, right=True).squeeze(-1)
    # u * total can round up to the total; the last token with any weight is then the one meant.
    over = (tokens == weights.shape[-1]).nonzero().squeeze(-1)
    if len(over):
        from_end = (weights[over] > 0).flip(-1).int().argmax(dim=-1)
        tokens[over] = weights.shape[-1] - 1 - from_end
    return tokens


def _refuse(wrong: Tensor, values: Tensor, field: str, remedy: str) -> None:
    if bool(wrong.any()):
        raise DistributionError(field, float(values[wrong][0]), remedy)


class RequestStream:
    """A request's own uniforms, a function of (seed, request) alone.

    Args:
        seed: run seed, 0 or more.
        request: number of the request in the run, 0 or more.

    Raises:
        ConfigurationError: a negative number.
    """

    def __init__(self, seed: int, request: int) -> None:
        for name, value in (("seed", seed), ("request", request)):
            if value < 0:
                raise ConfigurationError(name, value, "give 0 or more")
        self._generator = np.random.default_rng([seed, request])

    def uniforms(self, count: int) -> list[float]:
        """The next ``count`` draws in [0, 1)."""
        return [float(u) for u in self._generator.random(count)]
