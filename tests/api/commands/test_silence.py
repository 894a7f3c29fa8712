"""``silence`` against a real service."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import pytest
from typer.testing import CliRunner, Result

from api.cli import app
from tests.service_process import ServiceProcess
from tests.support.service import KEY


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    folder = tmp_path_factory.mktemp("service")
    with ServiceProcess(f"sqlite:///{folder}/store.db") as service:
        httpx.put(
            f"{service.url}/v1/drafters/code", json={"key": KEY}, timeout=60.0
        ).raise_for_status()
        yield service


def silence(runner: CliRunner, running: ServiceProcess, *arguments: str) -> Result:
    return runner.invoke(app, ["silence", *arguments, "--url", running.url])


@pytest.mark.slow
def test_add_list_and_remove(runner: CliRunner, running: ServiceProcess) -> None:
    made = silence(
        runner, running, "add", "--drafter", "code", "--hours", "1.5", "--reason", "new weights"
    )
    assert made.exit_code == 0, made.stderr
    assert "every event of code, until 20" in made.stdout
    assert "(anonymous: new weights)" in made.stdout
    listed = silence(runner, running, "list", "--json")
    (one,) = json.loads(listed.stdout)
    assert (one["drafter"], one["kind"], one["state"]) == ("code", None, "active")
    removed = silence(runner, running, "remove", str(one["id"]))
    assert removed.exit_code == 0, removed.stderr
    assert "removed 20" in removed.stdout
    assert silence(runner, running, "list").stdout == "Nothing is silenced.\n"
    assert "removed 20" in silence(runner, running, "list", "--ended").stdout


def test_silencing_everything_has_to_be_said(runner: CliRunner, running: ServiceProcess) -> None:
    for arguments in ((), ("--kind", "drift", "--everything")):
        refused = silence(runner, running, "add", "--reason", "x", *arguments)
        assert refused.exit_code == 2
        assert "--everything" in refused.stderr
    made = silence(runner, running, "add", "--reason", "x", "--everything", "--json")
    assert made.exit_code == 0, made.stderr
    assert json.loads(made.stdout)["drafter"] is None


def test_a_kind_that_no_event_has_is_refused(runner: CliRunner, running: ServiceProcess) -> None:
    refused = silence(runner, running, "add", "--kind", "drfit", "--reason", "x")
    assert refused.exit_code == 2
    for word in ("kind", "drfit", "data_quality", "job_failed"):
        assert word in refused.stderr


def test_what_does_not_exist_is_named(runner: CliRunner, running: ServiceProcess) -> None:
    refused = silence(runner, running, "remove", "999")
    assert refused.exit_code == 2
    assert "status 404" in refused.stderr
