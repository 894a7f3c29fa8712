"""SGLang's own Sequential Temperature Scaling fitter, loaded by file from an unpacked wheel.

The ``__init__`` files of its packages import all of SGLang, so empty packages stand in for them
while the one module and the record type it needs are imported.
"""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_PACKAGES = [
    "sglang",
    "sglang.benchmark",
    "sglang.srt",
    "sglang.srt.speculative",
    "sglang.srt.speculative.dspark_components",
]


@contextmanager
def sglang_fitter(root: str) -> Iterator[Any]:
    """The module ``sglang.benchmark.dspark_sts_fit`` of the wheel unpacked in ``root``."""
    before = set(sys.modules)
    for name in _PACKAGES:
        package = types.ModuleType(name)
        package.__path__ = [str(Path(root, *name.split(".")))]
        sys.modules[name] = package
    try:
        yield importlib.import_module("sglang.benchmark.dspark_sts_fit")
    finally:
        for name in set(sys.modules) - before:
            if name.partition(".")[0] == "sglang":
                del sys.modules[name]
