"""README and the telemetry's card say what the shipped telemetry shows today."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.slow
def test_measured_numbers_are_up_to_date() -> None:
    command = [sys.executable, "tools/update_documents.py", "--check"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
