"""What a start does besides attaching: agree, name the engine, leave word."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dspark_calib_client.errors import ClientConfigurationError
from dspark_calib_client.plugins.common import joining
from dspark_calib_client.plugins.common.compatibility import AsideError, Known
from dspark_calib_client.plugins.common.settings import PluginSettings

KNOWN = Known("Engine", "engine", (1, 2, 3), (1, 2, 3), ())


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


def left_word(folder: Path, error: Exception, **where: Any) -> dict[str, Any] | None:
    """The status file after stepping aside, if there is one."""
    environment = {"DSPARK_CALIB_STATUS_FILE": str(folder / "status.json")}
    joining.step_aside(KNOWN, error, environment, **where)
    files = list(folder.iterdir())
    return {"name": files[0].name, **json.loads(files[0].read_text())} if files else None


def test_word_is_left_by_rank_0_alone(tmp_path: Path) -> None:
    assert left_word(tmp_path, AsideError("why"), place=place(rank=1)) is None
    told = left_word(tmp_path, AsideError("why", "mend it"), place=place(replica=1))
    assert told is not None
    shown = ("name", "engine", "attached", "reason", "remedy")
    assert [told[name] for name in shown] == ["status-dp1.json", "engine", False, "why", "mend it"]


def test_where_ranks_are_not_known_word_is_left_all_the_same(tmp_path: Path) -> None:
    """Settings that cannot be read, or a version: no rank has got as far as to know which it is."""
    told = left_word(tmp_path, ClientConfigurationError("WAIT", "long", "give a number"))
    assert told is not None
    assert (told["reason"], told["remedy"]) == ("WAIT: got 'long'", "give a number")


def test_only_what_nobody_expected_shows_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    joining.step_aside(KNOWN, AsideError("why", "mend it"), {})
    joining.step_aside(KNOWN, KeyError("tp_sync"), {})
    expected, unexpected = caplog.records
    assert expected.getMessage() == (
        "dspark-calib steps aside: why: mend it; Engine runs as without it"
    )
    assert expected.exc_info is None
    assert "KeyError: 'tp_sync'; Engine runs" in unexpected.getMessage()
    assert unexpected.exc_info is not None


def test_hooks_that_cannot_be_put_in_are_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(joining, "check_installed", lambda known: None)
    environment = {
        "DSPARK_CALIB_URL": "http://127.0.0.1:9",
        "DSPARK_CALIB_STATUS_FILE": str(tmp_path / "status.json"),
    }
    assert joining.registered(KNOWN, environment, lambda: None)
    assert list(tmp_path.iterdir()) == []

    def broken() -> None:
        raise ImportError("no hook_registry")

    assert not joining.registered(KNOWN, environment, broken)
    assert "no hook_registry" in (tmp_path / "status.json").read_text()
    assert not joining.registered(KNOWN, {}, broken)
