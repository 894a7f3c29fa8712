"""Libraries that are installed and not wanted: absent for a while, and there for who asks later."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from api.lean_imports import absent

ROOT = Path(__file__).resolve().parents[2]


def test_absent_modules_cannot_be_imported_within_the_block() -> None:
    finders = list(sys.meta_path)
    with absent("this", "antigravity"):
        with pytest.raises(ModuleNotFoundError, match="kept out"):
            import this  # noqa: F401
        assert find_spec("colorsys") is not None
        import json  # noqa: F401  loaded already: none of its business
    assert sys.meta_path == finders
    assert find_spec("this") is not None


def test_helpers_stay_out_and_can_be_loaded_later() -> None:
    script = (
        "import sys, api.lean_imports, structlog, uvicorn\n"
        "found = {'rich', 'pygments', 'attr', 'watchfiles'} & set(sys.modules)\n"
        "import rich.console\n"
        "print(sorted(found), 'rich.console' in sys.modules)\n"
    )
    command = [sys.executable, "-c", script]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[] True"
