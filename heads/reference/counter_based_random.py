"""Gumbel noise that is a function of request, position, step and token alone, in torch.

Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3") turns a key and a
counter into four 32-bit words, so noise needs no state: neither who shares the batch, nor how the
vocabulary is cut into tiles or shards, nor the order of programs can change it::

    key      the request's 64 bits
    counter  (draft id // 4, position of the anchor, step k = 1 … γ, stream tag)
    word     draft id mod 4

A word w becomes an exponential E = −log(1 − u) with u = (w + ½) / 2³², and a Gumbel g = −log E.
Tokens win by small E, so u is kept to its full 32 bits near 0: the largest g is 22.9, and the
chance of a wrong order from rounding is below 2⁻³². The logarithm is built from IEEE additions and
multiplications without contraction, in an order that :mod:`heads.kernels.counter_based_random`
repeats: CPU, interpreter and GPU give the same bits.

Letters: B rows, N consecutive draft ids.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Separates this use of a request's key from any other that may come; the value is arbitrary.
DRAFT_STREAM = 0x44524654
_ROUNDS = 10
# Multipliers and Weyl increments of Philox4x32.
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_INCREMENTS = (0x9E3779B9, 0xBB67AE85)
_MASK = 0xFFFFFFFF

# (log(1 + f) − f + f²/2) / f³ on [√½ − 1, √2 − 1], least maximum relative error of the logarithm:
# 1.1e-7 in float32, measured on 200,000 points. Lowest power first.
LOG_COEFFICIENTS = (
    0.33333858847618103,
    -0.25001752376556396,
    0.19965356588363647,
    -0.16565443575382233,
    0.14877267181873322,
    -0.14351925253868103,
    0.08919133991003036,
)
LOG_2 = 0.6931471824645996
# Bits of √½: mantissas are brought to [√½, √2), where the polynomial holds.
SQRT_HALF_BITS = 0x3F3504F3
# Below it log(1 − s) is evaluated at −s itself: 1 − s would round s away.
SMALL_UNIFORM = 0.25


def philox(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor]) -> Tensor:
    """Philox4x32-10: four words for each counter and key.

    Args:
        counter: four long tensors of 32-bit words that broadcast.
        key: two long tensors of 32-bit words.

    Returns:
        [..., 4] long, each within 0 … 2³² − 1.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        # Products may overflow the sign; their 64 bits are right all the same.
        first, second = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c2 = _high(second) ^ c1 ^ k0, _high(first) ^ c3 ^ k1
        c1, c3 = second & _MASK, first & _MASK
        k0, k1 = (k0 + _INCREMENTS[0]) & _MASK, (k1 + _INCREMENTS[1]) & _MASK
    return torch.stack(torch.broadcast_tensors(c0, c1, c2, c3), dim=-1)


def gumbel_noise(
    request_keys: Tensor,  # [B] long
    positions: Tensor,  # [B] long, of the anchors
    step: int,  # k, 1 … γ
    first_id: int,  # multiple of 4
    count: int,
) -> Tensor:
    """g of ``count`` draft ids from ``first_id`` on; [B, N] float32, finite."""
    groups = torch.arange(-(-count // 4), device=positions.device) + first_id // 4
    words = philox(
        (
            groups[None, :],
            (positions & _MASK)[:, None],
            torch.full_like(groups[None, :1], step),
            torch.full_like(groups[None, :1], DRAFT_STREAM),
        ),
        ((request_keys & _MASK)[:, None], ((request_keys >> 32) & _MASK)[:, None]),
    )
    return gumbel_of_words(words.flatten(1)[:, :count])


def gumbel_of_words(words: Tensor) -> Tensor:
    """Standard Gumbel numbers of 32-bit words; float32 within [−3.2, 22.9]."""
    lower = words < 1 << 31
    nearest = torch.where(lower, words, words ^ _MASK)
    s = (nearest.float() + 0.5) * 2.0**-32  # in (0, ½]: u itself, or 1 − u
    f, exponent = _split(torch.where(lower, 1.0 - s, s))
    small = lower & (s < SMALL_UNIFORM)
    f = torch.where(small, -s, f)
    exponent = torch.where(small, 0.0, exponent)
    return -natural_log(-_log_of_parts(f, exponent))


def natural_log(x: Tensor) -> Tensor:
    """log of positive, normal float32 numbers, within 1.2e-7 relative or absolute."""
    return _log_of_parts(*_split(x))


def _high(product: Tensor) -> Tensor:
    return (product >> 32) & _MASK


def _split(x: Tensor) -> tuple[Tensor, Tensor]:
    """x = 2^exponent · (1 + f) with 1 + f in [√½, √2)."""
    offset = x.view(torch.int32) - SQRT_HALF_BITS
    mantissa = (offset & 0x7FFFFF) + SQRT_HALF_BITS
    return mantissa.view(torch.float32) - 1.0, (offset >> 23).float()


def _log_of_parts(f: Tensor, exponent: Tensor) -> Tensor:
    """log(2^exponent · (1 + f)); the order of operations is part of the stream's definition."""
    p = torch.full_like(f, LOG_COEFFICIENTS[-1])
    for coefficient in LOG_COEFFICIENTS[-2::-1]:
        p = p * f + coefficient
    square = f * f
    return ((p * (square * f) - 0.5 * square) + f) + exponent * LOG_2
