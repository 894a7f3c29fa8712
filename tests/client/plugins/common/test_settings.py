from __future__ import annotations

import json
from pathlib import Path

import pytest

from dspark_calib_client import ClientConfigurationError
from dspark_calib_client.plugins.common.settings import PluginSettings, is_configured

BASE = {"DSPARK_CALIB_URL": "http://127.0.0.1:1", "DSPARK_CALIB_DRAFTER": "d"}


def settings(**more: str) -> PluginSettings:
    named = {f"DSPARK_CALIB_{name}": value for name, value in more.items()}
    return PluginSettings.from_environment({**BASE, **named})


def test_an_address_turns_the_plugin_on() -> None:
    assert is_configured(BASE)
    assert not is_configured({})
    assert not is_configured({"DSPARK_CALIB_URL": " "})


def test_defaults() -> None:
    found = settings()
    assert (found.apply, found.telemetry_share, found.every) == (True, 1.0, 32)
    assert (found.key, found.token, found.state_dir, found.status_file) == (None,) * 4
    assert found.engine_id


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("APPLY", "yes"), ("APPLY", "2"), ("TELEMETRY_SHARE", "1.5"), ("TELEMETRY_SHARE", "nan")],
        *[("BROADCAST_STEPS", "0"), ("BROADCAST_STEPS", "1.5"), ("WAIT", "61"), ("INTERVAL", "0")],
        *[("DRAFTER", " "), ("KEY_FILE", "missing.json")],
    ],
)
def test_a_wrong_value_is_named(name: str, value: str) -> None:
    with pytest.raises(ClientConfigurationError, match=f"DSPARK_CALIB_{name}"):
        settings(**{name: value})


def test_the_key_comes_from_a_digest_or_a_file(tmp_path: Path) -> None:
    fields = {"gamma": 7}
    file = tmp_path / "key.json"
    for body in (fields, {"name": "d", "key": fields}):  # alone, or a drafter as it was fetched
        file.write_text(json.dumps(body))
        assert settings(KEY_FILE=str(file)).key == fields
    assert settings(KEY="ab" * 32).key == "ab" * 32
    with pytest.raises(ClientConfigurationError, match="leave out"):
        settings(KEY="ab" * 32, KEY_FILE=str(file))
    file.write_text("[]")
    with pytest.raises(ClientConfigurationError, match="JSON object"):
        settings(KEY_FILE=str(file))


def test_a_token_file_is_read_at_every_call_and_a_token_is_never_shown(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("first\n")
    found = settings(TOKEN_FILE=str(file)).token
    assert callable(found)
    assert found() == "first"
    file.write_text("second")
    assert found() == "second"
    assert "secret" not in repr(settings(TOKEN="secret"))
