"""What can go wrong with a tracking server: it is away, or it refuses what it is told.

::

    CalibrationError
    └── TrackingError
        ├── TrackingAwayError      wait and tell it again
        └── TrackingRefusedError   telling it again changes nothing
"""

from __future__ import annotations

from typing import Self

from calib.errors import CalibrationError

__all__ = ["TrackingAwayError", "TrackingError", "TrackingRefusedError"]


class TrackingError(CalibrationError):
    """A call of the tracking server that came to nothing.

    Attributes:
        reason: what it said.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)

    def __reduce__(self) -> tuple[type[Self], tuple[object, ...]]:
        return type(self), (self.reason,)


class TrackingAwayError(TrackingError):
    """Unreachable, too slow, locked, full, failing, or closed to us: nothing is wrong with the
    content.
    """


class TrackingRefusedError(TrackingError):
    """The server answered that it will never take this."""
