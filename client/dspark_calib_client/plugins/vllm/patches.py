"""Methods of vLLM wrapped when vLLM imports them, and not before.

Importing a worker's modules in the front-end process would cost seconds, and may touch the device
there. So a finder stands first in ``sys.meta_path``, which finds nothing itself: it lets the
others find, and runs our function once the module has been executed.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from types import ModuleType
from typing import Any

__all__ = ["Wrapper", "install", "wrap"]

Wrapper = Callable[..., Any]
"""Called as ``wrapper(original, *args, **kwargs)`` in place of ``original(*args, **kwargs)``."""

_LOG = logging.getLogger("dspark_calib_client")
_MARK = "_dspark_calib_wrapped"


def wrap(owner: Any, name: str, wrapper: Wrapper) -> bool:
    """Put ``wrapper`` around a method; False where that was done before."""
    original = getattr(owner, name)
    if getattr(original, _MARK, False):
        return False

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return wrapper(original, *args, **kwargs)

    setattr(wrapped, _MARK, True)
    setattr(owner, name, wrapped)
    return True


def install(changes: Mapping[str, Callable[[ModuleType], object]]) -> None:
    """Call each function with its module, at once if that is imported, else when it is.

    A function that raises is logged, and the module stays as it was.
    """
    waiting = {}
    for name, change in changes.items():
        module = sys.modules.get(name)
        if module is None:
            waiting[name] = change
        else:
            _apply(change, module)
    if waiting and not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder(waiting))


def _apply(change: Callable[[ModuleType], object], module: ModuleType) -> None:
    try:
        change(module)
    except Exception:  # noqa: BLE001  (an engine without us is better than none)
        _LOG.exception("%s could not be hooked into; vLLM runs as without it", module.__name__)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, waiting: dict[str, Callable[[ModuleType], object]]) -> None:
        self._waiting = waiting

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec that the other finders have, with a loader that calls us afterwards."""
        change = self._waiting.pop(fullname, None)  # popped: the search below comes by again
        if change is None:
            return None
        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, change)
        return spec


class _Loader(importlib.abc.Loader):
    def __init__(self, inner: Any, change: Callable[[ModuleType], object]) -> None:
        self._inner = inner
        self._change = change

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        """As the module's own loader does."""
        return self._inner.create_module(spec)  # type: ignore[no-any-return]

    def exec_module(self, module: ModuleType) -> None:
        """Run the module, then our function."""
        self._inner.exec_module(module)
        _apply(self._change, module)
