"""What a caller gets: one vector of temperatures, where it comes from and how far to trust it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

__all__ = ["Source", "State", "Temperatures"]


class State(str, Enum):
    """How far the numbers can be trusted."""

    FRESH = "fresh"  # confirmed by the service a short while ago, and still valid
    STALE = "stale"  # the service's, but not confirmed for long, or past their time
    FALLBACK = "fallback"  # never seen from the service: baked in, or identity

    __str__ = str.__str__


class Source(str, Enum):
    """Where the numbers come from."""

    SERVICE = "service"
    FILE = "file"  # the last-known-good file; what the service said before a restart
    BAKED_IN = "baked_in"  # given to the constructor
    IDENTITY = "identity"  # all ones

    __str__ = str.__str__


@dataclass(frozen=True)
class Temperatures:
    """One vector of temperatures; immutable, and equal on every rank that holds it.

    Attributes:
        values: T_k in [0.05, 20], one per draft position: c_k = sigma(z_k / T_k).
        publication: the drafter's publication, which only grows; 0 where none is known.
        revision: names the numbers; 0 is identity, −1 unknown.
        digest: SHA-256 of calibration key and numbers, or None.
        etag: ``ETag`` of the answer they came in, or None.
        state: fresh, stale or fallback.
        source: service, file, baked_in or identity.
        age: seconds since the service last confirmed them; None where it never did.
        status: the service's own word: ``fitted``, ``partial``, ``identity``, …; or None.
        slopes: s_k of the affine form c_k = sigma(s_k z_k + b_k), or None.
        intercepts: b_k; given exactly when slopes are.
        valid_until: seconds since the epoch after which they are stale; None: never.
        exploration: share of blocks to verify in full by a coin, in [0, 1], or None.
    """

    values: tuple[float, ...]
    publication: int
    revision: int
    digest: str | None
    etag: str | None
    state: State
    source: Source
    age: float | None
    status: str | None = None
    slopes: tuple[float, ...] | None = None
    intercepts: tuple[float, ...] | None = None
    valid_until: float | None = None
    exploration: float | None = None

    @property
    def gamma(self) -> int:
        """Number of draft positions."""
        return len(self.values)
