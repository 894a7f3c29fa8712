"""The compose file hangs together: what it names is there, nothing is open to the world."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from api.cli import app
from api.settings import CONFIG_VARIABLE, ENVIRONMENT_PREFIX, Settings, load_settings

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
# The keys of the Compose Specification that are used here.
SERVICE_KEYS = {
    "build",
    "command",
    "depends_on",
    "entrypoint",
    "environment",
    "healthcheck",
    "image",
    "ports",
    "restart",
    "volumes",
}


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
    return found


def test_it_has_everything_and_only_known_keys(compose: dict[str, Any]) -> None:
    assert set(compose["services"]) == {
        "alertmanager",
        "api",
        "grafana",
        "mlflow",
        "postgres",
        "prometheus",
        "tokens",
        "worker",
    }
    for name, service in compose["services"].items():
        assert set(service) <= SERVICE_KEYS, name
        assert "image" in service, name
        assert isinstance(service.get("environment", {}), dict), name


def test_services_and_volumes_that_are_named_exist(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        waits = service.get("depends_on", [])
        assert set(waits) <= set(compose["services"]), name
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (DEPLOY / source).exists(), f"{name}: {source}"
            else:
                assert source in compose["volumes"], f"{name}: {source}"
        build = service.get("build")
        if build:
            assert (DEPLOY / build["context"] / build["dockerfile"]).is_file()


def test_ports_are_published_on_loopback_and_passwords_are_asked_for(
    compose: dict[str, Any],
) -> None:
    for name, service in compose["services"].items():
        for port in service.get("ports", ()):
            assert re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port), name
    text = (DEPLOY / "compose.yaml").read_text(encoding="utf-8")
    variables = set(re.findall(r"\$\{(\w+):\?", text))
    lines = (DEPLOY / "example.env").read_text(encoding="utf-8").split()
    assert {line.partition("=")[0] for line in lines} == variables
    assert not re.search(r"PASSWORD: *[\"']?[A-Za-z0-9]", text)


def test_the_scrape_uses_a_token_that_is_made(compose: dict[str, Any]) -> None:
    scrape = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text(encoding="utf-8"))
    (job,) = scrape["scrape_configs"]
    assert job["static_configs"][0]["targets"] == ["api:8765"]
    file = Path(job["authorization"]["credentials_file"])
    assert f"tokens:{file.parent}:ro" in compose["services"]["prometheus"]["volumes"]
    made = compose["services"]["tokens"]["command"][0]
    assert f"/tokens/{file.name}" in made
    assert "--scope read:reports" in made


def test_the_settings_are_valid_and_reach_the_alertmanager(compose: dict[str, Any]) -> None:
    path = DEPLOY / "service.toml"
    assert tomllib.loads(path.read_text(encoding="utf-8"))
    (receiver,) = load_settings(config=path).alert_receivers
    made = receiver.receiver()
    assert (made.kind, made.url) == ("alertmanager", "http://alertmanager:9093")
    command = " ".join(compose["services"]["alertmanager"]["command"])
    assert "--config.file=/etc/alertmanager/alertmanager.yml" in command


@pytest.mark.skipif(shutil.which("amtool") is None, reason="amtool is not installed")
def test_amtool_agrees() -> None:
    file = DEPLOY / "alertmanager" / "alertmanager.yml"
    answer = subprocess.run(
        ["amtool", "check-config", str(file)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr


def test_environment_variables_are_settings(compose: dict[str, Any]) -> None:
    dockerfile = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    given = set(re.findall(r"\b(DSPARK_CALIB_\w+)=", dockerfile))
    for service in compose["services"].values():
        given |= {name for name in service.get("environment", {}) if name.startswith("DSPARK")}
    known = {f"{ENVIRONMENT_PREFIX}{name.upper()}" for name in Settings.model_fields}
    assert {"DSPARK_CALIB_DATABASE_URL", "DSPARK_CALIB_LOG_FORMAT"} <= given
    assert given - known == {CONFIG_VARIABLE}


def test_commands_are_commands_of_this_program(compose: dict[str, Any]) -> None:
    dockerfile = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    assert 'ENTRYPOINT ["dspark-calib"]' in dockerfile
    lines = [json.loads(text) for text in re.findall(r"^CMD (\[.*\])$", dockerfile, re.MULTILINE)]
    for service in compose["services"].values():
        command = service.get("command", [])
        if service["image"] != "dspark-calib":
            continue
        script = (
            re.findall(r"dspark-calib (.*?) >", command[0]) if "entrypoint" in service else None
        )
        lines += [command] if script is None else [line.split() for line in script]
    assert len(lines) == 6
    for words in lines:
        command, rest = typer.main.get_command(app), list(words)
        while rest and hasattr(command, "commands"):
            command = command.commands[rest.pop(0)]
        command.make_context("test", rest)  # raises where an option is unknown or wrong


def test_the_image_copies_what_there_is_and_what_the_context_lets_through() -> None:
    root = DEPLOY.parent
    dockerfile = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    copied = re.findall(r"^COPY ((?!--from)[^\n]+) \S+$", dockerfile, re.MULTILINE)
    sources = {source for line in copied for source in line.split()}
    assert all((root / source).exists() for source in sources)
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text(encoding="utf-8").split()
    assert {line[1:] for line in ignored if line.startswith("!")} == sources
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    extras = re.findall(r"^ARG EXTRAS=(\S+)$", dockerfile, re.MULTILINE)[0].split(",")
    assert set(extras) <= set(project["project"]["optional-dependencies"])
    version = re.findall(r"^FROM python:(\d+\.\d+)-slim", dockerfile, re.MULTILINE)
    assert version[0] == version[1]


def test_grafana_finds_dashboard_and_prometheus(compose: dict[str, Any]) -> None:
    folder = DEPLOY / "grafana" / "provisioning"
    (provider,) = yaml.safe_load((folder / "dashboards" / "dspark-calib.yml").read_text())[
        "providers"
    ]
    mounts = [volume.split(":") for volume in compose["services"]["grafana"]["volumes"]]
    places = {inside: outside for outside, inside, *_ in mounts}
    assert list((DEPLOY / places[provider["options"]["path"]]).glob("*.json"))
    (source,) = yaml.safe_load((folder / "datasources" / "prometheus.yml").read_text())[
        "datasources"
    ]
    assert source["url"] == "http://prometheus:9090"
    assert "/etc/grafana/provisioning" in places
