"""Numbers for an export: from the service, or from any JSON that holds them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from api.commands.calibration_source import (
    calibration_of_document,
    sts_of_source,
    temperatures_shown,
)
from calib.calibration import Calibration
from calib.errors import ConfigurationError, FormatError

NOWHERE = "http://127.0.0.1:9"


def test_a_file_is_taken_for_a_file(tmp_path: Path) -> None:
    file = tmp_path / "sts.json"
    file.write_text('{"temperatures": [1.5, 2.0, 0.5], "revision": 4, "num_samples": 9}')
    found = json.loads(sts_of_source(str(file), 2, None, NOWHERE, None))
    assert (found["temperatures"], found["revision"], found["gamma"]) == ([1.5, 2.0], 4, 2)
    with pytest.raises(ConfigurationError, match="one revision"):
        sts_of_source(str(file), 2, 3, NOWHERE, None)
    with pytest.raises(FileNotFoundError):
        sts_of_source(str(tmp_path / "none.json"), None, None, NOWHERE, None)


def test_numbers_of_no_revision_are_told_apart_from_identity(tmp_path: Path) -> None:
    file = tmp_path / "sts.json"
    for numbers, revision in (([2.0], -1), ([1.0], 0)):
        file.write_text(json.dumps({"temperatures": numbers}))
        found = json.loads(sts_of_source(str(file), None, None, NOWHERE, None))
        assert found["revision"] == revision


def test_every_document_of_ours_holds_a_calibration() -> None:
    own = Calibration.from_temperatures([1.5, 0.5], gamma=2)
    for document in (own.to_dict(), {"calibration": own.to_dict()}, {"temperatures": [1.5, 0.5]}):
        assert calibration_of_document(document, "x").temperatures == (1.5, 0.5)
    with pytest.raises(FormatError, match="refused"):
        calibration_of_document({"calibration": {}, "refusal": "not_better"}, "x")


def test_a_file_that_changes_nothing_is_said_to() -> None:
    assert temperatures_shown([1.5, 1.0]) == "1.5, 1"
    assert "1, 1. That is raw confidence: the file changes nothing." in temperatures_shown([1.0, 1])
