"""Which SGLang the plugin knows, and whether the one at hand is what it takes it for.

The version alone is not believed: names and arguments that the plugin relies on are looked up in
the source of the installed modules, without importing them. One that is missing makes the plugin
step aside before anything is touched.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

__all__ = [
    "NEWEST",
    "OBSERVE",
    "OLDEST",
    "PLANNER",
    "RELIED_ON",
    "Reliance",
    "faults",
    "faults_of",
    "version_fault",
]

OLDEST = (0, 5, 22)  # the first that hands raw logits to its observers
NEWEST = (0, 5, 23)

_PARTS = "sglang.srt.speculative.dspark_components"
PLANNER = f"{_PARTS}.dspark_planner.DSparkVerifyPlanner.__init__"
OBSERVE = f"{_PARTS}.dspark_observability.DsparkStepObservers.observe_verify_step"

SourceOf = Callable[[str], "str | None"]
"""The source of a module by its dotted name; None where there is no such module."""


@dataclass(frozen=True)
class Reliance:
    """Something of SGLang that the plugin uses.

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


RELIED_ON = (
    Reliance(
        f"{_PARTS}.dspark_planner",
        "DSparkVerifyPlanner.__init__",
        ("self", "draft_model", "gamma", "device", "tp_rank", "tp_sync"),
        ("self._confidence_head = ", "self._confidence_head.sts_temperatures = "),
    ),
    Reliance(f"{_PARTS}.dspark_planner", "DSparkVerifyPlanner.mode_value", ("self",)),
    Reliance(f"{_PARTS}.dspark_planner", "DSparkVerifyPlanner.is_verify_all", ("self",)),
    Reliance(
        f"{_PARTS}.dspark_observability",
        "DsparkStepObservers.observe_verify_step",
        (
            *("self", "forward_ct", "reqs", "bs", "verify_ids_2d", "layout", "confidence_raw"),
            *("prefix_lens", "draft_block", "correct_len", "cap_trim_lens", "bonus"),
            "verify_token_budget",
        ),
    ),
    Reliance(
        f"{_PARTS}.dspark_observability",
        "DsparkStepObservers.__init__",
        ("planner", "simulate_acc_len"),
        ("self._planner = planner", "self._simulate_acc_len = "),
    ),
    Reliance(
        "sglang.srt.models.dspark",
        "DSparkConfidenceHead.apply_sts",
        ("confidence_raw",),
        ("confidence_raw.float() / self.sts_temperatures",),
    ),
    Reliance(
        "sglang.srt.speculative.spec_tp_sync",
        "SpecTpSync.__init__",
        ("tp_group",),
        ("self._tp_group = tp_group",),
    ),
    Reliance(
        "sglang.srt.distributed.parallel_state",
        "GroupCoordinator.broadcast_object",
        ("self", "obj", "src"),
    ),
    Reliance(
        "sglang.srt.plugins.hook_registry",
        "HookRegistry.register",
        ("target", "hook", "hook_type"),
    ),
)


def version_fault(version: str) -> str | None:
    """Why this version of SGLang is not one the plugin knows; None where it is."""
    found = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    known = f"{_shown(OLDEST)} to {_shown(NEWEST)}"
    if found is None:
        return f"SGLang {version!r:.40} is no version this plugin can read; it knows {known}"
    if not OLDEST <= tuple(int(part) for part in found.groups()) <= NEWEST:
        return f"SGLang {version} is unknown to this plugin, which knows {known}"
    return None


def faults(source_of: SourceOf) -> list[str]:
    """What the plugin relies on and the source does not have; empty where all is well."""
    return [fault for reliance in RELIED_ON for fault in faults_of(reliance, source_of)]


def faults_of(reliance: Reliance, source_of: SourceOf) -> Iterator[str]:
    """What is not as one reliance needs it; nothing where all is."""
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


def _shown(version: tuple[int, int, int]) -> str:
    return ".".join(map(str, version))
