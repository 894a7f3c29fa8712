"""Modules are changed when they are imported, once, and a fault leaves them as they were."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from dspark_calib_client.plugins.vllm.patches import _Finder, install, wrap


class Thing:
    def double(self, value: int) -> int:
        return 2 * value


def test_a_method_is_wrapped_once() -> None:
    class Own(Thing):
        pass

    def wrapper(original: Any, thing: Own, value: int) -> int:
        return int(original(thing, value)) + 1

    assert wrap(Own, "double", wrapper)
    assert not wrap(Own, "double", wrapper)
    assert (Own().double(3), Thing().double(3)) == (7, 6)


def test_a_module_is_changed_when_it_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Not before, through the loader it has, and a change that fails is logged."""
    (tmp_path / "late_module_one.py").write_text("value = 1\n")
    (tmp_path / "late_module_two.py").write_text("value = 2\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))

    def change(module: ModuleType) -> None:
        module.__dict__["value"] = 10

    def broken(module: ModuleType) -> None:
        raise RuntimeError("no")

    install({"late_module_one": change, "late_module_two": broken})
    assert "late_module_one" not in sys.modules
    import late_module_one
    import late_module_two

    assert (late_module_one.value, late_module_two.value) == (10, 2)
    assert "could not be hooked into" in caplog.text
    assert isinstance(sys.meta_path[0], _Finder)
    for name in ("late_module_one", "late_module_two"):
        sys.modules.pop(name, None)


def test_an_imported_module_is_changed_at_once() -> None:
    seen: list[str] = []
    install({"json": lambda module: seen.append(module.__name__)})
    assert seen == ["json"]
