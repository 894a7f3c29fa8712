"""After ``os.fork`` a child has none of the parent's threads, and all of its locks and sockets."""

from __future__ import annotations

import os
import weakref
from typing import Protocol

__all__ = ["Forkable", "reset_in_children"]


class Forkable(Protocol):
    """Something that a child process must put in order before it uses it."""

    def reset_after_fork(self) -> None:
        """Called in the child, once, while it has one thread; must not wait."""


_OBJECTS: weakref.WeakSet[Forkable] = weakref.WeakSet()


def reset_in_children(something: Forkable) -> None:
    """Call ``something.reset_after_fork()`` in every child process, as long as it lives."""
    _OBJECTS.add(something)


def _reset_all() -> None:
    for something in list(_OBJECTS):
        something.reset_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_all)
