"""``alerts test`` reaches real receivers and says what became of it."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from api.cli import app
from tests.monitoring.alerts.receiving_server import ReceivingServer


def alerts(runner: CliRunner, *arguments: str) -> Result:
    return runner.invoke(app, ["alerts", *arguments])


def settings(folder: Path, *receivers: str) -> str:
    file = folder / "service.toml"
    tables = "\n".join(f"[[alert_receivers]]\n{receiver}" for receiver in receivers)
    file.write_text(f'public_url = "https://calib.example.org"\n{tables}\n')
    return str(file)


def test_a_test_fire_reaches_every_kind_of_receiver(
    runner: CliRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ReceivingServer() as server:
        (tmp_path / "secret").write_text("shared key\n")
        monkeypatch.setenv("CHAT_URL", f"{server.url}/chat")
        config = settings(
            tmp_path,
            f'name = "pager"\nkind = "webhook"\nurl = "{server.url}/in"\n'
            f'secret_file = "{tmp_path}/secret"',
            'name = "chat"\nkind = "slack"\nurl_env = "CHAT_URL"',
            f'name = "am"\nkind = "alertmanager"\nurl = "{server.url}"',
        )
        result = alerts(runner, "test", "--config", config)
        assert result.exit_code == 0, result.output
        assert [line.split(" took")[0] for line in result.stdout.splitlines()] == [
            "pager (webhook)",
            "chat (slack)",
            "am (alertmanager)",
        ]
        pager, chat, am = server.received
        identifier, timestamp = pager.headers["webhook-id"], pager.headers["webhook-timestamp"]
        signed = f"{identifier}.{timestamp}.".encode() + pager.body
        digest = hmac.new(b"shared key", signed, hashlib.sha256).digest()
        assert pager.headers["webhook-signature"] == "v1," + base64.b64encode(digest).decode()
        assert pager.json["kind"] == "test"
        assert "nothing is wrong" in chat.json["text"]
        assert (am.path, am.json[0]["labels"]["severity"]) == ("/api/v2/alerts", "info")


def test_a_receiver_that_does_not_take_it_is_exit_code_one(
    runner: CliRunner, tmp_path: Path
) -> None:
    with ReceivingServer(always=500) as server:
        receivers = [
            f'name = "{name}"\nkind = "webhook"\nurl = "{server.url}/secret-part"'
            for name in ("a", "b")
        ]
        config = settings(tmp_path, *receivers)
        result = alerts(runner, "test", "--config", config, "--receiver", "b", "--json")
        assert result.exit_code == 1
        (outcome,) = json.loads(result.stdout)
        assert (outcome["receiver"], outcome["error"]) == ("b", "status 500")
        assert len(server.received) == 1
        assert "secret-part" not in result.output


def test_receivers_are_listed_without_their_secrets(runner: CliRunner, tmp_path: Path) -> None:
    config = settings(tmp_path, 'name = "a"\nkind = "webhook"\nurl = "http://a.example.org/x1y2"')
    result = alerts(runner, "list", "--config", config)
    assert result.stdout == "a  webhook  from warning\n"
    assert json.loads(alerts(runner, "list", "--config", config, "--json").stdout) == [
        {"kind": "webhook", "minimum_severity": "warning", "name": "a"}
    ]


def test_missing_receivers_and_secrets_are_named(
    runner: CliRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_SUCH", raising=False)
    none = alerts(runner, "test", "--config", settings(tmp_path))
    assert (none.exit_code, "none is configured" in none.stderr) == (2, True)
    config = settings(tmp_path, 'name = "a"\nkind = "slack"\nurl_env = "NO_SUCH"')
    missing = alerts(runner, "test", "--config", config)
    assert missing.exit_code == 2
    assert "alert_receivers.a.url_env" in missing.stderr
    # The service does not even start with it: better now than with the first alarm.
    started = runner.invoke(app, ["serve", "--config", config, "--data", str(tmp_path)])
    assert started.exit_code == 2
    assert "alert_receivers.a.url_env" in started.stderr
