from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import logging, sys
import structlog
from api.logs import configure_logs

configure_logs(sys.argv[1], sys.argv[2])
configure_logs(sys.argv[1], sys.argv[2])  # twice is once
structlog.get_logger("ours").info("an event", number=3)
structlog.get_logger("ours").debug("a detail")
logging.getLogger("theirs").warning("a %s", "warning")
secret = "s3cret"
try:
    1 / 0
except ZeroDivisionError as error:
    structlog.get_logger("ours").error("failed", exc_info=error)
"""


def lines(level: str, form: str) -> list[str]:
    """In a process of its own, because logging is set up for all of a process."""
    command = [sys.executable, "-c", SCRIPT, level, form]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert answer.stdout == ""
    return answer.stderr.splitlines()


def test_json_is_one_object_per_event() -> None:
    entries = [json.loads(line) for line in lines("info", "json")]
    assert [entry["event"] for entry in entries] == ["an event", "a warning", "failed"]
    assert [entry["level"] for entry in entries] == ["info", "warning", "error"]
    assert [entry["logger"] for entry in entries] == ["ours", "theirs", "ours"]
    assert entries[0]["number"] == 3
    assert all(entry["timestamp"].endswith("Z") for entry in entries)
    assert "ZeroDivisionError" in entries[2]["exception"]
    assert "s3cret" not in str(entries)  # no local variables


@pytest.mark.parametrize(("level", "events"), [("debug", 4), ("warning", 2), ("error", 1)])
def test_the_level_decides(level: str, events: int) -> None:
    assert len(lines(level, "json")) == events


def test_console_is_for_people() -> None:
    text = "\n".join(lines("info", "console"))
    assert "an event" in text
    assert "number=3" in text
    assert "\x1b" not in text  # no colours into a file
