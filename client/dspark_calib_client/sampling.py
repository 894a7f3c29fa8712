"""Which requests send telemetry: a seeded share of them, chosen by their name alone.

A request is sampled with all its rows or not at all, and nothing of what happened to it has a say:
a sample that depended on outcomes would bias every fit.
"""

from __future__ import annotations

import hashlib

__all__ = ["RequestSampler"]

_MOST_REMEMBERED = 65_536


class RequestSampler:
    """Keeps a share of requests; every engine with the same seed keeps the same ones.

    Args:
        share: in [0, 1].
        seed: of the choice.
    """

    def __init__(self, share: float, seed: int) -> None:
        self._limit = int(share * 2**64)
        self._seed = str(seed).encode()
        self._remembered: dict[object, bool] = {}
        self.keeps_all = share >= 1.0

    def keeps(self, request: object) -> bool:
        """Whether rows of this request (its name, or what stands in for it) are kept."""
        known = self._remembered.get(request)
        if known is not None:
            return known
        digest = hashlib.blake2b(repr(request).encode(), digest_size=8, salt=self._seed[:16])
        kept = self.keeps_all or int.from_bytes(digest.digest(), "big") < self._limit
        if len(self._remembered) >= _MOST_REMEMBERED:
            self._remembered = {}
        self._remembered[request] = kept
        return kept
