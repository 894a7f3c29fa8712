"""The draft block in float64 and NumPy, written from the formulas and sharing no code with either
implementation, and a comparison that asks of every token whether float64 could have drawn it.

A block is compared position by position on the tokens that were drafted: one near-tie decided the
other way would otherwise make all that follows differ.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heads.draft_block import DraftBlockInputs, DraftBlockOutput
from heads.draft_block_weights import DraftBlockWeights

Real = NDArray[np.float64]
_TAG = 0x44524654


def philox4x32(counter: NDArray[np.uint64], key: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Philox4x32-10 of [..., 4] counters and [..., 2] keys."""
    mask = np.uint64(0xFFFFFFFF)
    words = [counter[..., i] & mask for i in range(4)]
    first, second = key[..., 0] & mask, key[..., 1] & mask
    for _ in range(10):
        a = np.uint64(0xD2511F53) * words[0]
        b = np.uint64(0xCD9E8D57) * words[2]
        shift = np.uint64(32)
        words = [
            (b >> shift) ^ words[1] ^ first,
            b & mask,
            (a >> shift) ^ words[3] ^ second,
            a & mask,
        ]
        first = (first + np.uint64(0x9E3779B9)) & mask
        second = (second + np.uint64(0xBB67AE85)) & mask
    return np.stack(words, axis=-1)


def gumbel64(keys: Tensor, positions: Tensor, step: int, ids: NDArray[np.int64]) -> Real:
    """Gumbel noise [B, N] of draft ids, in float64."""
    rows = len(keys)
    counter = np.zeros((rows, len(ids), 4), np.uint64)
    counter[..., 0] = (ids // 4).astype(np.uint64)
    counter[..., 1] = positions.cpu().numpy().astype(np.uint64)[:, None]
    counter[..., 2], counter[..., 3] = step, _TAG
    whole = keys.cpu().numpy().view(np.uint64)
    key = np.zeros((rows, len(ids), 2), np.uint64)
    key[..., 0] = (whole & np.uint64(0xFFFFFFFF))[:, None]
    key[..., 1] = (whole >> np.uint64(32))[:, None]
    words = np.take_along_axis(philox4x32(counter, key), (ids % 4)[None, :, None], axis=-1)[..., 0]
    uniform = (words.astype(np.float64) + 0.5) * 2.0**-32
    return -np.log(-np.log1p(-uniform))


@dataclass(frozen=True)
class Tolerance:
    """How far from float64 a block may be.

    Attributes:
        logits: of corrected logits and scores, absolute.
        confidence: of raw confidence logits, absolute.
    """

    logits: float = 2e-5
    confidence: float = 5e-6


def assert_block_is_right(
    weights: DraftBlockWeights,
    inputs: DraftBlockInputs,
    output: DraftBlockOutput,
    tolerance: Tolerance = Tolerance(),
) -> int:
    """Check every number of a block; returns how many tokens float64 would have drawn otherwise."""
    oracle = _Oracle(weights, inputs)
    tokens, ids = output.tokens.cpu().numpy(), output.draft_ids.cpu().numpy()
    mapping = weights.draft_to_target
    expected = ids if mapping is None else mapping.cpu().numpy()[ids]
    np.testing.assert_array_equal(tokens, expected)
    previous = inputs.anchors.cpu().numpy()
    survival = np.ones(inputs.rows)
    near = 0
    for index in range(inputs.gamma):
        logits = oracle.logits(index, previous)
        if output.logits is not None:
            kept = _float64(output.logits[:, index])
            slack = tolerance.logits + (0.004 * np.abs(logits) if _is_bfloat16(output) else 0.0)
            assert (np.abs(kept - logits) <= slack).all()
            logits = kept  # tokens and log-sum-exp are of what is kept
        near += _check_tokens(oracle.scores(index, logits), ids[:, index], tolerance.logits)
        if output.log_sum_exp is not None:
            warm = oracle.warm()[:, None]
            wanted = np.logaddexp.reduce(logits / warm, axis=1)
            found = _float64(output.log_sum_exp[:, index])
            np.testing.assert_allclose(found, wanted, atol=tolerance.logits * 4, rtol=2e-6)
        if output.confidence_logits is not None:
            survival = _check_confidence(oracle, output, index, previous, survival, tolerance)
        previous = tokens[:, index]
    return near


def _check_tokens(scores: Real, ids: NDArray[np.int64], slack: float) -> int:
    """Each token is a best one, up to rounding; how many were that close."""
    rows = np.arange(len(ids))
    best = scores.max(axis=1)
    chosen = scores[rows, ids]
    assert (chosen >= best - 5 * slack).all()
    first = scores.argmax(axis=1)
    return int((first != ids).sum())


def _check_confidence(
    oracle: _Oracle,
    output: DraftBlockOutput,
    index: int,
    previous: NDArray[np.int64],
    survival: Real,
    tolerance: Tolerance,
) -> Real:
    parts = output.confidence_logits, output.confidences, output.survival
    logits, confidences, survivals = (
        _float64(part[:, index]) for part in parts if part is not None
    )
    np.testing.assert_allclose(
        logits, oracle.confidence(index, previous), atol=tolerance.confidence
    )
    served = oracle.slopes[..., index] * logits + oracle.intercepts[..., index]
    wanted = 1.0 / (1.0 + np.exp(-served))
    np.testing.assert_allclose(confidences, wanted, atol=2e-6)
    survival = survival * wanted
    np.testing.assert_allclose(survivals, survival, atol=2e-6 * (index + 1))
    return survival


class _Oracle:
    def __init__(self, weights: DraftBlockWeights, inputs: DraftBlockInputs) -> None:
        self._weights, self._inputs = weights, inputs
        self._operand = weights.operand
        self._w1 = _float64(weights.w1)
        self._w2 = _float64(weights.w2.float())
        if weights.w2_scales is not None:
            self._w2 = self._w2 * _float64(weights.w2_scales)[:, None]
        self._hidden, self._base = _float64(inputs.hidden), _float64(inputs.base_logits)
        self._state = np.zeros((inputs.rows, weights.rank))
        self.slopes, self.intercepts = _float64(inputs.slopes), _float64(inputs.intercepts)
        self._temperatures = _float64(inputs.temperatures)
        self._ids = np.arange(weights.shard_size) + weights.vocabulary_offset

    def logits(self, index: int, previous: NDArray[np.int64]) -> Real:
        """Corrected logits [B, V'] after ``previous``; advances the state."""
        latent = self._rounded(self._latent(index, self._w1[previous]))
        with np.errstate(invalid="ignore"):
            return self._base[:, index] + latent @ self._w2.T

    def scores(self, index: int, logits: Real) -> Real:
        """Logits with noise at the rows' temperatures."""
        if not self._inputs.sampled:
            return logits
        keys, positions = self._inputs.request_keys, self._inputs.positions
        noise = gumbel64(keys, positions, index + 1, self._ids)
        return logits + self._temperatures[:, None] * noise

    def warm(self) -> Real:
        """T of each row, 1 for greedy ones."""
        return np.where(self._temperatures > 0, self._temperatures, 1.0)

    def confidence(self, index: int, previous: NDArray[np.int64]) -> Real:
        """Raw confidence logits [B]."""
        weights = self._weights
        assert weights.confidence_hidden is not None
        assert weights.confidence_bias is not None
        logit = self._hidden[:, index] @ _float64(weights.confidence_hidden)
        logit = logit + _float64(weights.confidence_bias)
        if weights.confidence_code is not None:
            logit = logit + self._w1[previous] @ _float64(weights.confidence_code)
        return logit

    def _latent(self, index: int, code: Real) -> Real:
        weights = self._weights
        if weights.state_hidden is None or weights.state_code is None or weights.state_bias is None:
            return code
        joint = self._hidden[:, index] @ _float64(weights.state_hidden).T
        joint = joint + code @ _float64(weights.state_code).T + _float64(weights.state_bias)
        if weights.state_recurrent is None:
            return code / (1.0 + np.exp(-joint))
        joint = joint + self._rounded(self._state) @ _float64(weights.state_recurrent).T
        gate, candidate, output = np.split(joint, 3, axis=1)
        gate = 1.0 / (1.0 + np.exp(-gate))
        self._state = gate * self._state + (1.0 - gate) * np.tanh(candidate)
        return np.tanh(output)

    def _rounded(self, values: Real) -> Real:
        """What an operand of the dots holds."""
        if self._operand == torch.float32:
            return values
        return _float64(torch.from_numpy(values).float().to(self._operand))


def _float64(values: Tensor) -> Real:
    return values.detach().cpu().double().numpy()


def _is_bfloat16(output: DraftBlockOutput) -> bool:
    return output.logits is not None and output.logits.dtype == torch.bfloat16
