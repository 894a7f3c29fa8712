"""A broken installation ends no engine."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dspark_calib_client.plugins.common.entry import register_hooks_of


def test_what_cannot_be_imported_is_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "half_a_plugin.py").write_text("import what_is_not_installed\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    register_hooks_of("half_a_plugin")
    (record,) = caplog.records
    assert record.getMessage().startswith("dspark-calib steps aside: ")
    assert "what_is_not_installed" in caplog.text


def test_hooks_are_registered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "whole_plugin.py").write_text(
        "calls = []\n\n\ndef register_hooks():\n    calls.append(1)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    register_hooks_of("whole_plugin")
    assert sys.modules["whole_plugin"].calls == [1]
    monkeypatch.delitem(sys.modules, "whole_plugin")
