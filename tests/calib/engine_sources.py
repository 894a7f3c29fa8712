"""Functions of the engines' own source, run without the engines.

An engine's module imports kernels, servers and distributed groups; the few functions that hold the
arithmetic need none of it. They are taken from the file as they stand and run in a namespace that
holds what they name.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def source_functions(
    path: Path, names: Sequence[str], namespace: dict[str, Any], *, of_class: str | None = None
) -> dict[str, Any]:
    """The named functions and classes of a file, or the named methods of one of its classes."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    if of_class is not None:
        owner = next(n for n in body if isinstance(n, ast.ClassDef) and n.name == of_class)
        body = owner.body
    kinds = (ast.FunctionDef, ast.ClassDef)
    chosen: list[ast.stmt] = [n for n in body if isinstance(n, kinds) and n.name in names]
    found = {n.name for n in chosen if isinstance(n, kinds)}
    if found != set(names):
        raise LookupError(f"{path.name} has no {sorted(set(names) - found)}")
    future = ast.parse("from __future__ import annotations").body
    module = ast.Module(body=[*future, *chosen], type_ignores=[])
    exec(compile(module, str(path), "exec"), namespace)
    return {name: namespace[name] for name in names}
