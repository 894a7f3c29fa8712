"""Random numbers that are a function of their place: Philox 4x32-10.

A counter-based generator has no state: the number of (seed, engine, step, request) is the same on
every rank and in every replica, in any order and after any restart, and no draw shifts another.
Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (2011); GPUs have the
same generator.

Letters: M counters.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["name_hash", "philox", "place_uniforms"]

Words = NDArray[np.uint32]

_ROUNDS = 10
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)  # what each key word grows by per round
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_WORD = 1 << 32
_FRACTION = 2.0**-53


def philox(
    counters: NDArray[np.integer],  # [M, 4] words below 2^32
    key: tuple[int, int],  # two words below 2^32
) -> Words:
    """[M, 4] random words of these counters."""
    a, b, c, d = (counters[:, word].astype(np.uint64) for word in range(4))
    first, second = key
    for _ in range(_ROUNDS):
        low, high = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]
        a, b, c, d = (
            (high >> _HALF) ^ b ^ np.uint64(first),
            high & _LOW,
            (low >> _HALF) ^ d ^ np.uint64(second),
            low & _LOW,
        )
        first, second = (first + _WEYL[0]) % _WORD, (second + _WEYL[1]) % _WORD
    return np.stack([a, b, c, d], axis=1).astype(np.uint32)


def name_hash(name: str | int) -> int:
    """64 bits of a name; numbers and their texts are one name.

    Examples:
        >>> name_hash(17) == name_hash("17")
        True
    """
    digest = hashlib.blake2b(str(name).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def place_uniforms(
    seed: int, engine: str, step: int, requests: Sequence[str | int]
) -> NDArray[np.float64]:
    """Uniform numbers in [0, 1) of each request at a step of an engine, [len(requests)].

    Args:
        seed: of the stream; 64 bits of it count.
        engine: name of the engine; its ranks share it.
        step: decode step, 0 or more.
        requests: names or numbers of the requests.
    """
    key = name_hash(engine) ^ (seed % (1 << 64))
    counters = np.empty((len(requests), 4), dtype=np.uint64)
    counters[:, 0], counters[:, 1] = step % _WORD, step // _WORD % _WORD
    names = np.array([name_hash(request) for request in requests], dtype=np.uint64)
    counters[:, 2], counters[:, 3] = names & _LOW, names >> _HALF
    words = philox(counters, (key % _WORD, key // _WORD)).astype(np.uint64)
    bits = (words[:, 0] << _HALF | words[:, 1]) >> np.uint64(11)
    return bits.astype(np.float64) * _FRACTION
