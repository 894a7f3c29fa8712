"""Every error of the client, as one tree.

::

    ClientError
    ├── ClientConfigurationError (ValueError)   an argument of a constructor is wrong
    ├── TransferError                           an exchange that brought no whole answer
    ├── InvalidAnswerError                      an answer that must not be used
    └── InvalidFileError                        a last-known-good file that must not be used

Only :class:`ClientConfigurationError` reaches a caller, and only from constructors, at start-up.
The others end as counters: ``kind`` is the counter's name, one of a few fixed words.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "ClientConfigurationError",
    "ClientError",
    "InvalidAnswerError",
    "InvalidFileError",
    "TransferError",
]

_LONGEST_VALUE = 120


class ClientError(Exception):
    """Base of all errors raised on purpose."""


class ClientConfigurationError(ClientError, ValueError):
    """An argument that the caller can mend.

    Attributes:
        field: name of the argument.
        value: the offending value, shortened when printed.
        remedy: what to give instead.
    """

    def __init__(self, field: str, value: Any, remedy: str) -> None:
        self.field = field
        self.value = value
        self.remedy = remedy
        shown = repr(value)
        if len(shown) > _LONGEST_VALUE:
            shown = shown[: _LONGEST_VALUE - 1] + "…"
        super().__init__(f"{field}: got {shown}; {remedy}")


class _CountedError(ClientError):
    """An error that ends as a counter.

    Attributes:
        kind: name of the counter.
        detail: this occurrence, for the log.
    """

    def __init__(self, kind: str, detail: str) -> None:
        self.kind = kind
        self.detail = detail
        super().__init__(f"{kind}: {detail}")


class TransferError(_CountedError):
    """An exchange that brought no whole answer: refused, cut, too slow, too large."""


class InvalidAnswerError(_CountedError):
    """An answer that says something else than was asked for, or nothing that can be trusted."""


class InvalidFileError(_CountedError):
    """A file that is corrupt, or that belongs to another drafter, gamma, key or segment."""
