"""A shift sent into a real service by the command that people copy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from api.cli import app
from api.service_demo.live_replay import ENGINES, drafter_for, key_for, renamed
from api.service_demo.replay import DRAFTER, shipped_key
from calib.formats.arrow import write_parquet
from calib.records import AcceptanceRecords
from calib.shipped import shipped_telemetry
from monitoring.replay import Stretch
from tests.api.served import Served
from tests.monitoring.loop_rows import rows


def test_rows_get_names_that_no_service_has_seen() -> None:
    records = rows(1, 300)
    found = renamed(records, (Stretch("a", 0, 100), Stretch("b", 100, 200)), "today", 5000)
    assert found.request is not None
    assert found.step is not None
    assert records.step is not None
    assert list(found.request[:2]) == ["today-r0", "today-r1"]
    assert found.step.min() == 5000
    assert np.all(np.diff(found.step) >= 0)  # both phases of the recording begin at step 0
    assert np.array_equal(np.diff(found.step[:100]), np.diff(records.step[:100]))
    assert np.array_equal(found.confidence_logits, records.confidence_logits)


def test_rows_of_no_known_request_or_step_stay_unknown() -> None:
    """With a name or a step in common they would count as one row sent again and again."""
    unnamed = {"request": ["a", None, None, "b"], "step": [0, 0, -1, 1]}
    records = AcceptanceRecords.from_columns(7, rows(1, 4).columns() | unnamed)
    found = renamed(records, (Stretch("a", 0, 2), Stretch("b", 2, 2)), "today", 5000)
    assert found.request is not None
    assert found.step is not None
    assert found.request.tolist() == ["today-a", None, None, "today-b"]
    assert found.step.tolist() == [5000, 5000, -1, 5001]


def test_a_drafter_of_its_own_by_the_name_of_the_recording() -> None:
    shipped = [str(shipped_telemetry())]
    assert drafter_for(shipped) == f"{DRAFTER}-replay"
    assert key_for(shipped, 7) == shipped_key()
    assert drafter_for(["some/Last Week.parquet"]) == "last-week-replay"
    assert key_for(["some/Last Week.parquet"], 3).gamma == 3


@pytest.mark.slow
def test_a_shift_is_an_event_while_it_is_replayed_and_again_the_next_time(tmp_path: Path) -> None:
    recording = tmp_path / "shift.parquet"
    write_parquet(rows(2, 6000), recording)
    arguments = ["replay", str(recording), "--scale-logits", "2.5@3500", "--baseline-rows", "1500"]
    with Served("--data", "data", folder=tmp_path, closed_loop="watch") as service:
        service.listening()
        place = f"{service.url}/v1/drafters/shift-replay"
        into = [*arguments, "--into", service.url, "--rate", "3000"]
        seen = []
        for run in (1, 2):
            result = CliRunner().invoke(app, into)
            assert result.exit_code == 0, result.output
            told = " ".join(result.output.split())
            assert "critical: Calibration has drifted on shift-replay" in told
            assert f"{service.url}/drafters/shift-replay" in told
            document = service.http.get(f"{place}/drift").json()
            assert document["rows_total"] == 6000 * run
            assert document["rows_left_out"]["duplicates"] == 0
            page = service.http.get(f"{place}/events").json()
            drifts = [event for event in page["events"] if event["kind"] == "drift"]
            seen.append(drifts[0]["id"])
            assert drifts[0]["state"] == "open"
        assert seen[0] != seen[1]
        engines = service.http.get(f"{place}/engines").json()["engines"]
        assert sorted(engine["engine"] for engine in engines) == list(ENGINES)
        # A drafter that others use is left alone.
        service.http.get(f"{place}/temperatures", params={"gamma": 7, "engine": "a-real-one"})
        refused = CliRunner().invoke(app, into)
        assert refused.exit_code == 2
        assert "a-real-one" in refused.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--act-threshold", "1e7"), "settings of its own"),
        (("--json",), "settings of its own"),
        (("--announced",), "a new key is a new drafter"),
    ],
)
def test_what_the_service_decides_is_refused(options: tuple[Any, ...], said: str) -> None:
    result = CliRunner().invoke(app, ["replay", *options, "--into", "http://127.0.0.1:9"])
    assert result.exit_code == 2
    assert said in result.stderr
