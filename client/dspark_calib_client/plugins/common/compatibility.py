"""Whether an engine is what its plugin takes it for.

The version alone is not believed: names and arguments that a plugin relies on are looked up in the
source of the installed modules, without importing them. One that is missing makes the plugin step
aside before anything is touched.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

__all__ = [
    "AsideError",
    "Known",
    "Reliance",
    "SourceOf",
    "check_installed",
    "faults_of",
    "source_of",
]

SourceOf = Callable[[str], "str | None"]
"""The source of a module by its dotted name; None where there is no such module."""


class AsideError(Exception):
    """Why the plugin leaves an engine alone.

    Attributes:
        remedy: what to do about it; None where only the log can tell.
    """

    def __init__(self, reason: str, remedy: str | None = None) -> None:
        self.remedy = remedy
        super().__init__(reason)


@dataclass(frozen=True)
class Reliance:
    """Something of an engine that its plugin uses.

    Attributes:
        module: dotted name.
        function: ``Class.method`` in it.
        arguments: names it takes, or is called with.
        text: code that must stand in the function, normalised as ``ast.unparse`` writes it.
    """

    module: str
    function: str
    arguments: tuple[str, ...] = ()
    text: tuple[str, ...] = ()


@dataclass(frozen=True)
class Known:
    """What a plugin knows of its engine.

    Attributes:
        engine: name in messages.
        package: name under which it is installed.
        oldest: version that was read and is tested; so is ``newest``.
        newest: last such version.
        relied_on: what is used of it.
    """

    engine: str
    package: str
    oldest: tuple[int, int, int]
    newest: tuple[int, int, int]
    relied_on: tuple[Reliance, ...]

    @property
    def versions(self) -> str:
        """The versions it knows, in words."""
        ends = [".".join(map(str, end)) for end in (self.oldest, self.newest)]
        return ends[0] if self.oldest == self.newest else " to ".join(ends)

    def version_fault(self, found: str) -> str | None:
        """Why this version of the engine is not one the plugin knows; None where it is."""
        read, known = re.match(r"(\d+)\.(\d+)\.(\d+)", found), self.versions
        if read is None:
            shown = f"{self.engine} {found!r:.40}"
            return f"{shown} is no version this plugin can read; it knows {known}"
        if not self.oldest <= tuple(int(part) for part in read.groups()) <= self.newest:
            return f"{self.engine} {found} is unknown to this plugin, which knows {known}"
        return None

    def faults(self, source_of: SourceOf) -> list[str]:
        """What is relied on and the source does not have; empty where all is well."""
        return faults_of(self.relied_on, source_of)


def check_installed(known: Known) -> None:
    """Pass where the installed engine is one the plugin knows.

    Raises:
        AsideError: it is not.
    """
    engine, package = known.engine, known.package
    try:
        fault = known.version_fault(version(package))
    except PackageNotFoundError as error:
        remedy = f"install it as a package, which pip show {package} finds"
        raise AsideError(f"{engine}'s version cannot be found out", remedy) from error
    if fault is not None:
        remedy = f"update dspark-calib-client, or run {engine} {known.versions}"
        raise AsideError(fault, remedy)
    missing = known.faults(source_of)
    if missing:
        reason = f"this {engine} is not as its version says: {missing[0]}"
        raise AsideError(reason, f"install {engine} as it was released")


def source_of(module: str) -> str | None:
    """The source of an installed module; None where there is none.

    Neither the module nor a package around it is imported: that would cost seconds in an engine's
    front end, and might touch the device there.
    """
    package, *parts = module.split(".")
    found = find_spec(package)
    for folder in (found and found.submodule_search_locations) or ():
        path = Path(folder, *parts)
        for file in (path.with_name(f"{path.name}.py"), path / "__init__.py"):
            if file.is_file():
                return file.read_text(encoding="utf-8")
    return None


def faults_of(relied_on: Iterable[Reliance], source_of: SourceOf) -> list[str]:
    """What is relied on and the source does not have; empty where all is well."""
    return [fault for reliance in relied_on for fault in _faults(reliance, source_of)]


def _faults(reliance: Reliance, source_of: SourceOf) -> Iterator[str]:
    source = source_of(reliance.module)
    if source is None:
        yield f"{reliance.module} is missing"
        return
    name = f"{reliance.module}.{reliance.function}"
    function = _function(ast.parse(source), reliance.function)
    if function is None:
        yield f"{name} is missing"
        return
    named = function.args
    arguments = {entry.arg for entry in (*named.posonlyargs, *named.args, *named.kwonlyargs)}
    for argument in reliance.arguments:
        if argument not in arguments:
            yield f"{name} takes no {argument!r}"
    body = ast.unparse(function)
    for text in reliance.text:
        if text not in body:
            yield f"{name} has no {text.strip()!r}"


def _function(tree: ast.Module, name: str) -> ast.FunctionDef | None:
    owner, _, method = name.partition(".")
    for scope in tree.body:
        if isinstance(scope, ast.ClassDef) and scope.name == owner:
            for node in scope.body:
                if isinstance(node, ast.FunctionDef) and node.name == method:
                    return node
    return None
