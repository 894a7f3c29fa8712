from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from api.alert_settings import MOST_RECEIVERS, AlertReceiverSettings
from api.settings import Settings, load_settings
from calib.errors import ConfigurationError

PAGER: dict[str, Any] = {"name": "pager", "kind": "webhook", "url": "https://pager.example.org/k3y"}


def test_every_field_is_described() -> None:
    for name, field in AlertReceiverSettings.model_fields.items():
        assert field.description, name


def test_secrets_come_from_environment_or_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAGER_SECRET", " key \n")
    file = tmp_path / "url"
    file.write_text("https://pager.example.org/in\n")
    values = {"name": "p", "kind": "webhook", "url_file": str(file), "secret_env": "PAGER_SECRET"}
    made = AlertReceiverSettings(**values).receiver()  # type: ignore[arg-type]
    assert (made.url, made.secret) == ("https://pager.example.org/in", "key")
    assert AlertReceiverSettings(**PAGER).receiver().secret is None


@pytest.mark.parametrize("content", [None, b"", b"   \n", b"\xff\xfe"])
def test_a_secret_that_is_not_there_is_named(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "secret"
    if content is not None:
        file.write_bytes(content)
    receiver = AlertReceiverSettings(**PAGER, secret_file=str(file))
    with pytest.raises(ConfigurationError, match=r"alert_receivers\.pager\.secret_file"):
        receiver.receiver()


@pytest.mark.parametrize(
    "change",
    [
        {"url": "file:///etc/passwd"},
        {"url": None},
        {"url_env": "X"},
        {"secret_env": "X", "secret_file": "y"},
        {"kind": "mail"},
        {"name": "No Slug"},
        {"minimum_severity": "loud"},
        {"timeout_seconds": 0},
        {"secret": "in the file itself"},
    ],
    ids=str,
)
def test_what_is_no_receiver_is_refused_without_repeating_it(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_settings(alert_receivers=[PAGER | change])
    assert caught.value.field.startswith("alert_receivers")
    for secret in ("k3y", "in the file itself", "passwd"):
        assert secret not in str(caught.value)


def test_names_are_unique_and_receivers_few() -> None:
    with pytest.raises(ConfigurationError, match="different names"):
        load_settings(alert_receivers=[PAGER, PAGER])
    many = [PAGER | {"name": f"r{number}"} for number in range(MOST_RECEIVERS + 1)]
    with pytest.raises(ConfigurationError, match="alert_receivers"):
        load_settings(alert_receivers=many)


def test_they_survive_the_way_to_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "DSPARK_CALIB_ALERT_RECEIVERS", '[{"name":"c","kind":"slack","url_env":"U"}]'
    )
    settings = load_settings()
    again = Settings.model_validate_json(settings.model_dump_json())
    assert again.alert_receivers == settings.alert_receivers
    assert again.alert_receivers[0].url_env == "U"


@pytest.mark.parametrize(
    ("values", "address"),
    [
        ({"host": "127.0.0.1", "port": 1}, "http://127.0.0.1:1"),
        ({"host": "0.0.0.0", "port": 1}, "http://127.0.0.1:1"),
        ({"host": "::1", "port": 1}, "http://[::1]:1"),
        ({"public_url": "https://calib.example.org/x"}, "https://calib.example.org/x"),
    ],
)
def test_links_lead_to_the_public_address(values: dict[str, Any], address: str) -> None:
    assert load_settings(**values).service_url == address


@pytest.mark.parametrize("url", ["calib.example.org", "javascript:x", "https://u:p@host/"])
def test_an_address_for_links_is_plain_http(url: str) -> None:
    with pytest.raises(ConfigurationError, match="public_url"):
        load_settings(public_url=url)
