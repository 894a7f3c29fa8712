"""What a start does besides attaching: agree, name the engine, leave word."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dspark_calib_client.plugins.common import joining
from dspark_calib_client.plugins.common.settings import PluginSettings


def place(**changes: Any) -> SimpleNamespace:
    usual = {"gamma": 3, "rank": 0, "ranks": 1, "group_name": "0", "replica": None}
    return SimpleNamespace(**{**usual, **changes})


def settings(folder: Path) -> PluginSettings:
    named = {"URL": "http://127.0.0.1:9", "DRAFTER": "d", "ENGINE_ID": "pod"}
    files = {"STATE_DIR": str(folder), "STATUS_FILE": str(folder / "status.json")}
    return PluginSettings.from_environment(
        {f"DSPARK_CALIB_{name}": value for name, value in {**named, **files}.items()}
    )


def test_one_rank_agrees_with_itself_and_nobody_with_a_fault() -> None:
    assert joining.all_agree(place(), "terms")
    assert not joining.all_agree(place(), None)
    assert not joining.all_agree(None, None)


def test_a_store_that_fails_is_no_agreement(caplog: pytest.LogCaptureFixture) -> None:
    assert not joining.all_agree(place(ranks=2), "terms", store=object(), patience=0.1)
    assert "could not agree" in caplog.text


def test_a_broadcast_goes_through_the_engines_own_group() -> None:
    class Two:
        world_size = 2

        def broadcast_object(self, obj: Any, src: int) -> Any:
            return ("from", src, obj)

    box: list[Any] = ["news"]
    joining.broadcast_of(Two())(box)
    assert box == [("from", 0, "news")]
    joining.broadcast_of(SimpleNamespace(world_size=1))(box)
    assert box == [("from", 0, "news")]


def test_replicas_are_engines_of_their_own(tmp_path: Path) -> None:
    client = joining.client_of(settings(tmp_path), place(replica=2))
    assert client._configuration.engine == "pod-dp2"
    assert client._configuration.state_file == str(tmp_path / "d-pod-dp2.lkg")


def test_word_is_left_by_rank_0_alone(tmp_path: Path) -> None:
    joining.tell_aside("sglang", settings(tmp_path), place(rank=1), "why")
    joining.tell_aside("sglang", None, place(), "why")
    assert list(tmp_path.iterdir()) == []
    joining.tell_aside("sglang", settings(tmp_path), place(replica=1), "why")
    (file,) = tmp_path.iterdir()
    assert file.name == "status-dp1.json"
    told = json.loads(file.read_text())
    assert (told["engine"], told["attached"], told["reason"]) == ("sglang", False, "why")
