"""Where an engine calls in: the one place that must not raise even where nothing can be imported.

Engines guard the loading of a plugin's entry point, and not its call.
"""

from __future__ import annotations

import logging
from importlib import import_module

__all__ = ["register_hooks_of"]

_LOG = logging.getLogger("dspark_calib_client")


def register_hooks_of(module: str) -> None:
    """Call ``register_hooks`` of a plugin's module, which is imported here; never raises."""
    try:
        import_module(module).register_hooks()
    except Exception:  # noqa: BLE001  (an engine without us is better than none)
        _LOG.exception("dspark-calib steps aside: it is not installed as a whole")
