"""When to try again: never all at once, never too often, never never.

Where many engines meet one service, each has its own instant. The offset of regular polls depends
on nothing but the engine's name, so it stays the same over restarts and spreads a fleet that starts
together.
"""

from __future__ import annotations

import hashlib
import random
from email.utils import parsedate_to_datetime

__all__ = ["LONGEST_RETRY_AFTER", "Backoff", "retry_after_seconds", "seeded_offset"]

LONGEST_RETRY_AFTER = 600.0  # a service that asks for more would silence its clients for good


def seeded_offset(name: str, interval: float) -> float:
    """Seconds in [0, interval) that depend on ``name`` alone: its hash modulo the interval.

    Examples:
        >>> 0.0 <= seeded_offset("engine-0", 30.0) < 30.0
        True
    """
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") % int(max(interval, 1e-3) * 1e6) / 1e6


def retry_after_seconds(value: str | None, now: float) -> float | None:
    """Seconds that a ``Retry-After`` header asks for, at most :data:`LONGEST_RETRY_AFTER`.

    Args:
        value: whole seconds or an HTTP date; None or anything else gives None.
        now: seconds since the epoch.
    """
    if value is None:
        return None
    text = value.strip()
    if text.isascii() and text.isdigit():
        return min(float(text[:9]), LONGEST_RETRY_AFTER)
    try:
        seconds = parsedate_to_datetime(text).timestamp() - now
    except (TypeError, ValueError, IndexError, OverflowError):
        return None
    return min(max(seconds, 0.0), LONGEST_RETRY_AFTER)


class Backoff:
    """Capped exponential delays with jitter, one instance a thread.

    The n-th failure in a row waits for ``first · 2ⁿ⁻¹`` seconds, at most ``cap``, times a factor
    drawn from [0.5, 1].
    """

    def __init__(self, first: float, cap: float, seed: str) -> None:
        self._first = first
        self._cap = cap
        self._draw = random.Random(seed)
        self.failures = 0

    def failed(self, retry_after: float | None = None) -> float:
        """Count a failure; the seconds to wait, never fewer than the service asked for."""
        doublings = min(self.failures, 32)  # beyond it every cap is reached
        self.failures += 1
        delay = min(self._first * 2.0**doublings, self._cap) * self._draw.uniform(0.5, 1.0)
        return max(delay, retry_after or 0.0)

    def succeeded(self) -> None:
        """Begin anew."""
        self.failures = 0
