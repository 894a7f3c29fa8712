from __future__ import annotations

import json
import logging
import time
from pathlib import Path

import pytest

from dspark_calib_client.plugins.common.status_file import StatusFile, status_path
from tests.client.waiting import eventually


def test_the_file_is_whole_fresh_and_says_when(tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    file = StatusFile(path, lambda: {"revision": 3}, seconds=0.01)
    file.start()
    first = json.loads(path.read_text())
    assert first["revision"] == 3
    assert abs(first["written_at"] - time.time()) < 60.0
    assert eventually(lambda: json.loads(path.read_text())["written_at"] > first["written_at"])
    file.stop()
    assert [entry.name for entry in tmp_path.iterdir()] == ["status.json"]


def test_replicas_have_files_of_their_own(tmp_path: Path) -> None:
    named = str(tmp_path / "status.json")
    assert status_path(named, None) == Path(named)
    assert status_path(named, 2) == tmp_path / "status-dp2.json"


def test_a_disk_that_refuses_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = StatusFile(tmp_path / "missing" / "status.json", dict)
    with caplog.at_level(logging.WARNING):
        assert [file.write(), file.write()] == [False, False]
    assert caplog.text.count("status file") == 1
