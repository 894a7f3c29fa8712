"""The house rules that a program can check: layout, sizes, documentation, portability."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("api", "calib", "client/dspark_calib_client", "heads", "monitoring")

# Modules without logic of their own: tables of constants.
WITHOUT_TESTS = {"calib/statuses.py"}
MAXIMUM_FILE_LINES = 600
MAXIMUM_BODY_LINES = 60

MACHINE_PATH = re.compile(r"(?<![\w.~])/(?:work|root|home|Users)/\w")
REGISTRY_HOST = re.compile(
    r"https?://[\w.-]*(?:pypi|pythonhosted|registry|npm|crates|conda)[\w-]*\.[a-z]"
    r"|https?://\S+/(?:simple|whl)\b"
    r"|(?:index-url|find-links|registry)[= ]+(?:https?:|file:|/)",
    re.IGNORECASE,
)

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
Function = ast.FunctionDef | ast.AsyncFunctionDef


def _known_files() -> list[Path]:
    """Files that git tracks or would add; all but hidden folders where this is no clone."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if answer.returncode:
        found = (path for path in ROOT.rglob("*") if path.is_file())
        return [p for p in found if not any(part[0] == "." for part in p.relative_to(ROOT).parts)]
    return [path for name in answer.stdout.split("\0") if name and (path := ROOT / name).is_file()]


FILES = _known_files()
PYTHON_FILES = [path for path in FILES if path.suffix == ".py"]
SHIPPED = [p for p in PYTHON_FILES if any(p.is_relative_to(ROOT / name) for name in PACKAGES)]


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def _parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _public_definitions(tree: ast.Module) -> Iterator[tuple[str, Definition]]:
    """Public functions and classes of a module, and the public methods of those classes."""
    pending: list[tuple[str, ast.Module | ast.ClassDef]] = [("", tree)]
    while pending:
        prefix, scope = pending.pop()
        for node in scope.body:
            if isinstance(node, Definition) and not node.name.startswith("_"):
                yield prefix + node.name, node
                if isinstance(node, ast.ClassDef):
                    pending.append((f"{prefix}{node.name}.", node))


def _unannotated(function: Function) -> list[str]:
    arguments = function.args
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    named += [extra for extra in (arguments.vararg, arguments.kwarg) if extra is not None]
    missing = [
        argument.arg
        for argument in named
        if argument.annotation is None and argument.arg not in {"self", "cls"}
    ]
    return missing if function.returns is not None else [*missing, "return"]


def _body_lines(function: Function) -> int:
    """Lines from the first statement after the docstring to the last."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def _is_documented(node: Definition) -> bool:
    """A docstring, or ``@override`` and ``@overload``, whose words stand elsewhere."""
    decorators = {ast.unparse(item).rpartition(".")[2] for item in node.decorator_list}
    inherits = bool(decorators & {"override", "overload", "setter"})
    return inherits or bool(ast.get_docstring(node))


def _has_test_file(path: Path) -> bool:
    # The client's one package stands in a folder of its own, which its tests leave out.
    parts = [part for part in path.relative_to(ROOT).parent.parts if part != "dspark_calib_client"]
    folder = ROOT.joinpath("tests", *parts)
    stem = path.stem.lstrip("_")
    names = (f"test_{stem}.py", f"test_{stem}_*.py", f"test_*_{stem}.py")
    return any(any(folder.glob(name)) for name in names)


def test_every_module_has_a_test_file() -> None:
    """``calib/metrics.py``: ``tests/calib/test_metrics.py``, or ``test_metrics_<part>.py``;
    ``client/dspark_calib_client/poller.py``: ``tests/client/test_poller.py``.
    """
    modules = [path for path in SHIPPED if path.name != "__init__.py"]
    untested = {_name(path) for path in modules if not _has_test_file(path)}
    assert sorted(untested - WITHOUT_TESTS) == []
    assert {_name(path) for path in modules} >= WITHOUT_TESTS


def test_files_are_short() -> None:
    lengths = {_name(p): len(p.read_text(encoding="utf-8").splitlines()) for p in PYTHON_FILES}
    assert {name: n for name, n in lengths.items() if n > MAXIMUM_FILE_LINES} == {}


def test_functions_are_short() -> None:
    lengths = {
        f"{_name(path)}:{node.lineno} {node.name}": _body_lines(node)
        for path in SHIPPED
        for node in ast.walk(_parse(path))
        if isinstance(node, Function)
    }
    assert {name: n for name, n in lengths.items() if n > MAXIMUM_BODY_LINES} == {}


def test_no_assert_in_shipped_code() -> None:
    """An assert vanishes under ``-O``: what a caller can get wrong raises a typed error."""
    found = [
        f"{_name(path)}:{node.lineno}"
        for path in SHIPPED
        for node in ast.walk(_parse(path))
        if isinstance(node, ast.Assert)
    ]
    assert found == []


def test_public_names_are_documented_and_annotated() -> None:
    faults = []
    for path in SHIPPED:
        tree = _parse(path)
        if tree.body and not ast.get_docstring(tree):
            faults.append(f"{_name(path)} has no docstring")
        for name, node in _public_definitions(tree):
            place = f"{_name(path)}:{node.lineno} {name}"
            if not _is_documented(node):
                faults.append(f"{place} has no docstring")
            if isinstance(node, Function) and (missing := _unannotated(node)):
                faults.append(f"{place} lacks annotations: {', '.join(missing)}")
    assert faults == []


def test_no_machine_paths_or_registry_hosts() -> None:
    faults = []
    for path in FILES:
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # data
        for pattern in (MACHINE_PATH, REGISTRY_HOST):
            faults += [f"{_name(path)}: {found[0]}" for found in pattern.finditer(text)]
    assert faults == []


# Modules outside heads that may name torch: the soft labels; SGLang's shards, inside functions; and
# what runs inside an engine, which brings its torch along.
TORCH_ELSEWHERE = re.compile(
    r"calib/(?:soft_label\w*|formats/sglang_\w+)\.py|client/dspark_calib_client/plugins/.+\.py"
)


def test_torch_stays_where_it_may_be_imported() -> None:
    users = set()
    for path in SHIPPED:
        for node in ast.walk(_parse(path)):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if any(name.partition(".")[0] == "torch" for name in names):
                users.add(_name(path))
    allowed = {n for n in users if n.startswith("heads/") or TORCH_ELSEWHERE.fullmatch(n)}
    assert users - allowed == set()


def test_calib_imports_quickly_and_alone() -> None:
    """Importing all of calib but the torch modules loads none of the heavy libraries."""
    modules = [
        _name(path).removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for path in SHIPPED
        if path.relative_to(ROOT).parts[0] == "calib" and not path.stem.startswith("soft_label")
    ]
    heavy = ["heads", "matplotlib", "netcal", "pandas", "sklearn", "torch", "transformers"]
    script = (
        "import importlib, sys\n"
        f"for name in {modules!r}: importlib.import_module(name)\n"
        f"print(sorted(set({heavy!r}) & set(sys.modules)))\n"
    )
    command = [sys.executable, "-c", script]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"
