"""Idempotency-Key: a request that is sent again is done once and answered twice.

A key belongs to a drafter and to the sender's token for 24 hours. The answer is stored in the
transaction that stores the rows, so one never exists without the other. Two requests with one key
that overlap within this process meet here; across replicas the database's unique key decides.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from api.problems import FieldError, ProblemError

if TYPE_CHECKING:
    from starlette.datastructures import Headers

__all__ = ["HEADER", "LONGEST_KEY", "RunningRequests", "fingerprint", "idempotency_key"]

HEADER: Final = "Idempotency-Key"
LONGEST_KEY: Final = 255
_VISIBLE: Final = re.compile(r"[\x21-\x7e]+")

Slot = tuple[str, str, str]


def idempotency_key(headers: Headers) -> str | None:
    """The request's key, None without one.

    Raises:
        ProblemError: 422 for an empty, too long or doubled key, or characters other than visible
            ASCII.
    """
    given = headers.getlist(HEADER)
    if not given:
        return None
    key = given[0]
    if len(given) == 1 and len(key) <= LONGEST_KEY and _VISIBLE.fullmatch(key):
        return key
    remedy = f"send one key of 1 to {LONGEST_KEY} visible ASCII characters, such as a UUID"
    fault = FieldError("header:idempotency-key", remedy)
    raise ProblemError("invalid-request", f"{HEADER}: {remedy}.", errors=[fault])


def fingerprint(*parts: bytes) -> str:
    """SHA-256 of what makes two requests the same, 64 hexadecimal digits."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.hexdigest()


class RunningRequests:
    """Keys whose requests have not ended; used on the event loop only."""

    def __init__(self) -> None:
        self._slots: set[Slot] = set()

    def claim(self, drafter: str, token: str, key: str) -> Callable[[], None]:
        """Mark the key as running.

        Returns:
            What unmarks it; calling it twice does no harm.

        Raises:
            ProblemError: 409 when it is running already.
        """
        slot = (drafter, token, key)
        if slot in self._slots:
            raise ProblemError(
                "request-in-progress",
                f"Another request with this {HEADER} has not ended.",
                headers={"Retry-After": "1"},
            )
        self._slots.add(slot)
        return lambda: self._slots.discard(slot)
