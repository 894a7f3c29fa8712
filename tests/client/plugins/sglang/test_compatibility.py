"""Versions and signatures: what is unknown is refused before anything is touched."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dspark_calib_client.plugins.sglang.compatibility import KNOWN

# Unpacked wheels of both ends of the supported range.
WHEELS = {
    "newest": os.environ.get("DSPARK_SGLANG_WHEEL"),
    "oldest": os.environ.get("DSPARK_SGLANG_OLDEST_WHEEL"),
}


def source_in(root: Path, module: str) -> str | None:
    path = root.joinpath(*module.split(".")).with_suffix(".py")
    return path.read_text(encoding="utf-8") if path.exists() else None


@pytest.mark.parametrize(
    ("version", "known"),
    [
        *[("0.5.22", True), ("0.5.23", True), ("0.5.23.post1", True), ("0.5.22rc1", True)],
        *[("0.5.21", False), ("0.5.24", False), ("0.6.0", False), ("1.0.0", False)],
        *[("main", False), ("", False)],
    ],
)
def test_the_range_holds_at_its_ends(version: str, known: bool) -> None:
    fault = KNOWN.version_fault(version)
    assert (fault is None) is known
    assert fault is None or "0.5.22 to 0.5.23" in fault


def test_a_missing_module_function_argument_and_text_are_named() -> None:
    sources = {
        entry.module: "class DSparkVerifyPlanner:\n    def __init__(self, draft_model): pass\n"
        for entry in KNOWN.relied_on
        if "planner" in entry.module
    }
    found = KNOWN.faults(sources.get)
    for part in (
        "DSparkVerifyPlanner.__init__ takes no 'tp_sync'",
        "DSparkVerifyPlanner.__init__ has no 'self._confidence_head ='",
        "DSparkVerifyPlanner.mode_value is missing",
        "spec_tp_sync is missing",
    ):
        assert any(part in fault for fault in found), part


@pytest.mark.parity
@pytest.mark.parametrize("end", ["newest", "oldest"])
def test_the_wheel_is_what_the_plugin_takes_it_for(end: str) -> None:
    root = WHEELS[end]
    if root is None:
        pytest.skip("set DSPARK_SGLANG_WHEEL and DSPARK_SGLANG_OLDEST_WHEEL to unpacked wheels")
    assert KNOWN.faults(lambda module: source_in(Path(root), module)) == []
