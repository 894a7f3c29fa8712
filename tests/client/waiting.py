"""Waiting for what other threads do, with an end."""

from __future__ import annotations

import time
from collections.abc import Callable


def eventually(met: Callable[[], object], seconds: float = 60.0) -> bool:
    """Whether ``met()`` came true within the time."""
    ends = time.monotonic() + seconds
    while not met():
        if time.monotonic() > ends:
            return False
        time.sleep(0.005)
    return True
