"""What a plugin relies on is looked up in an engine's source, which is not imported."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

import pytest

from dspark_calib_client.plugins.common import compatibility
from dspark_calib_client.plugins.common.compatibility import (
    AsideError,
    Known,
    Reliance,
    check_installed,
)

NEEDS = Reliance("engine.part", "Head.forward", ("self", "hidden"), ("return self.proj(hidden)",))
KNOWN = Known("Engine", "engine", (1, 2, 3), (1, 2, 5), (NEEDS,))
GOOD = "class Head:\n    def forward(self, hidden):\n        return self.proj(hidden)\n"


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("1.2.3", None),
        ("1.2.5.post1+cu130", None),
        ("1.2.2", "unknown to this plugin, which knows 1.2.3 to 1.2.5"),
        ("1.3.0", "unknown to this plugin"),
        ("main", "no version this plugin can read"),
    ],
)
def test_the_range_holds_at_its_ends(version: str, said: str | None) -> None:
    fault = KNOWN.version_fault(version)
    assert (fault is None) == (said is None)
    assert said is None or said in str(fault)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (GOOD, None),
        (None, "engine.part is missing"),
        ("x = 1", "Head.forward is missing"),
        (GOOD.replace("hidden)", "other)", 1), "takes no 'hidden'"),
        (GOOD.replace("self.proj(hidden)", "hidden"), "has no 'return self.proj(hidden)'"),
    ],
)
def test_what_is_missing_is_named(
    monkeypatch: pytest.MonkeyPatch, source: str | None, said: str | None
) -> None:
    monkeypatch.setattr(compatibility, "version", lambda _: "1.2.4")
    monkeypatch.setattr(compatibility, "source_of", lambda _: source)
    if said is None:
        check_installed(KNOWN)
        return
    with pytest.raises(AsideError) as found:
        check_installed(KNOWN)
    assert said in str(found.value)
    assert found.value.remedy == "install Engine as it was released"


def test_an_engine_that_is_not_installed_has_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_: str) -> str:
        raise importlib.metadata.PackageNotFoundError

    monkeypatch.setattr(compatibility, "version", unknown)
    with pytest.raises(AsideError, match="Engine's version cannot be found out"):
        check_installed(KNOWN)


def test_an_unknown_version_names_those_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compatibility, "version", lambda _: "1.2.6")
    with pytest.raises(AsideError) as found:
        check_installed(KNOWN)
    assert found.value.remedy == "update dspark-calib-client, or run Engine 1.2.3 to 1.2.5"


def test_sources_are_found_without_an_import(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Not of the packages around them either: an engine's cost seconds, and more to be there."""
    parts = tmp_path / "some_engine" / "parts"
    parts.mkdir(parents=True)
    for init in (parts / "__init__.py", parts.parent / "__init__.py"):
        init.write_text("import what_is_not_installed\n")
    (parts / "head.py").write_text("x = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert compatibility.source_of("some_engine.parts.head") == "x = 1\n"
    assert "what_is_not" in str(compatibility.source_of("some_engine.parts"))
    assert compatibility.source_of("some_engine.parts.tail") is None
    assert compatibility.source_of("no.such.package") is None
    assert "some_engine" not in sys.modules
