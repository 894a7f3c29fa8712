"""Errors of the store, as one tree under :class:`calib.errors.CalibrationError`.

::

    CalibrationError
    └── StoreError                  the database refused or failed
        ├── StoreBusyError          locked, deadlocked or out of connections; nothing was written
        ├── StoreUnavailableError   cannot connect, connection lost, read-only, not migrated
        ├── StoreFullError          disk or page limit reached; nothing was written
        ├── NotFoundError           no such drafter, revision, job …
        ├── ConflictError           another state of the same thing stands in the way
        ├── PreconditionFailedError the caller's version is not the current one
        └── LeaseLostError          the job belongs to somebody else by now

Each message is one line and ends with what to do.
"""

from __future__ import annotations

from typing import Self

from calib.errors import CalibrationError

__all__ = [
    "ConflictError",
    "LeaseLostError",
    "NotFoundError",
    "PreconditionFailedError",
    "StoreBusyError",
    "StoreError",
    "StoreFullError",
    "StoreUnavailableError",
]


class StoreError(CalibrationError):
    """The database refused or failed.

    Attributes:
        reason: what happened.
        remedy: what to do.
    """

    _default_remedy = "see the log of the service"

    def __init__(self, reason: str, remedy: str | None = None) -> None:
        self.reason = reason
        self.remedy = self._default_remedy if remedy is None else remedy
        super().__init__(" ".join(f"{self.reason}; {self.remedy}".split()))

    # Exceptions rebuild themselves from their message alone; worker processes need the fields.
    def __reduce__(self) -> tuple[type[Self], tuple[object, ...]]:
        return type(self), (self.reason, self.remedy)


class StoreBusyError(StoreError):
    """Others held what this transaction needed for longer than its patience; it left no trace."""

    _default_remedy = "repeat the request in a moment"


class StoreUnavailableError(StoreError):
    """The database cannot be reached or used right now.

    Attributes:
        outcome_unknown: the connection was lost while the commit was under way, so the work may
            be done or not. Such work is not repeated blindly.
    """

    _default_remedy = "check that the database runs and that its address is right, then repeat"

    def __init__(
        self, reason: str, remedy: str | None = None, *, outcome_unknown: bool = False
    ) -> None:
        self.outcome_unknown = outcome_unknown
        super().__init__(reason, remedy)

    def __reduce__(self) -> tuple[type[Self], tuple[object, ...], dict[str, bool]]:  # type: ignore[override]
        state = {"outcome_unknown": self.outcome_unknown}
        return type(self), (self.reason, self.remedy), state


class StoreFullError(StoreError):
    """No room for what was to be written; it left no trace. Reading still works."""

    _default_remedy = "free disk space or lower the retention, then repeat"


class NotFoundError(StoreError):
    """Nothing of this kind has this identifier.

    Attributes:
        kind: ``"drafter"``, ``"revision"``, ``"job"`` ….
        identifier: what was looked for.
    """

    def __init__(self, kind: str, identifier: object) -> None:
        self.kind = kind
        self.identifier = str(identifier)
        super().__init__(f"no {kind} {self.identifier!r}", "look at the list of what exists")

    def __reduce__(self) -> tuple[type[Self], tuple[object, ...]]:
        return type(self), (self.kind, self.identifier)


class ConflictError(StoreError):
    """What exists already excludes what was asked for.

    Attributes:
        kind: ``"drafter"``, ``"telemetry batch"``, ``"event"`` ….
        identifier: which one.
        reason: what stands in the way and what to do.
    """

    def __init__(self, kind: str, identifier: object, reason: str) -> None:
        self.kind = kind
        self.identifier = str(identifier)
        super().__init__(f"{kind} {self.identifier!r}: {reason}", "compare with what is stored")
        self.reason = reason

    def __reduce__(self) -> tuple[type[Self], tuple[object, ...]]:
        return type(self), (self.kind, self.identifier, self.reason)


class PreconditionFailedError(StoreError):
    """A compare-and-set whose expected version is not the current one.

    Attributes:
        kind: ``"drafter"``.
        identifier: which one.
        expected: version the caller named.
        actual: version that is stored.
    """

    def __init__(self, kind: str, identifier: object, expected: int, actual: int) -> None:
        self.kind = kind
        self.identifier = str(identifier)
        self.expected = expected
        self.actual = actual
        super().__init__(
            f"{kind} {self.identifier!r} has version {actual}, not {expected}",
            "read it again and decide anew",
        )

    def __reduce__(self) -> tuple[type[Self], tuple[object, ...]]:
        return type(self), (self.kind, self.identifier, self.expected, self.actual)


class LeaseLostError(StoreError):
    """The lease of a job ran out or was taken over; its work must not be committed.

    Attributes:
        job: id of the job.
    """

    def __init__(self, job: str, reason: str = "its lease ran out or was taken over") -> None:
        self.job = job
        super().__init__(f"job {job!r}: {reason}", "drop the work and lease a job again")
        self.reason = reason

    def __reduce__(self) -> tuple[type[Self], tuple[object, ...]]:
        return type(self), (self.job, self.reason)
