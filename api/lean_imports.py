"""structlog and uvicorn, without what they load only because it is installed.

Import it before them in the process that answers polls. Both look for helpers: rich (with Pygments
and attrs) colours tracebacks, watchfiles restarts a server whose sources change. A service does
neither, and they would stay loaded for months: 5.5 MiB (docs/decisions/0009). Whoever asks for them
later gets them, as the command line does for its help.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.abc import MetaPathFinder

__all__ = ["absent"]


class _Absent(MetaPathFinder):
    """A finder for which some modules do not exist."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Nothing about any other module."""
        del path, target
        if name in self._names:
            raise ModuleNotFoundError("kept out of this process", name=name)


@contextmanager
def absent(*names: str) -> Iterator[None]:
    """Within the block, modules of these names that are not loaded yet count as not installed."""
    finder = _Absent(names)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


with absent("rich", "watchfiles"):
    import structlog  # noqa: F401
    import uvicorn  # noqa: F401
