"""``serve --demo`` as people run it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from calib.formats.arrow import read_parquet
from calib.shipped import shipped_telemetry
from tests.api.served import Served, alive, eventually


@pytest.mark.slow
def test_serve_demo_tells_the_shipped_story_and_exits(tmp_path: Path) -> None:
    with Served("--demo", "--exit", folder=tmp_path) as service:
        assert service.ended(500.0) == 0, service.lines
        text = "".join(service.lines)
        rows = len(read_parquet(shipped_telemetry(), 7))
        assert f"{rows:,} rows in" in text
        assert "Promote" in text
        assert "Publication 2 serves revision 1" in text
        assert "3 engines on publication" in text
        assert (tmp_path / "out" / "service" / "dspark-calib.db").exists()
        assert service.log == ""


@pytest.mark.slow
def test_the_demo_ends_with_one_ctrl_c_and_with_its_service(tmp_path: Path) -> None:
    with Served("--demo", folder=tmp_path) as service:
        service.wait_for("Poll")
        service.interrupt()
        assert service.ended() == 0
        assert "Traceback" not in service.log + "".join(service.lines)
    with Served("--demo", folder=tmp_path) as service:
        service.wait_for("Poll")
        children = service.children()
        assert len(children) == 2
        os.kill(service.process.pid, signal.SIGKILL)
        eventually(lambda: not any(alive(child) for child in children))
