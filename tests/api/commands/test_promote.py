"""``promote`` against a real service; ``rollback`` is tested in its own file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

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
        yield service


@pytest.fixture
def http() -> Iterator[httpx.Client]:
    """For calls; a machine that runs other tests may take its time."""
    with httpx.Client(timeout=60.0) as client:
        yield client


@pytest.fixture
def drafter(running: ServiceProcess, http: httpx.Client, request: pytest.FixtureRequest) -> str:
    """A drafter of the test's own with one hand-made revision."""
    name = request.node.name.replace("_", "-").lower()[:100]
    place = f"{running.url}/v1/drafters/{name}"
    state = http.put(place, json={"key": KEY}).raise_for_status()
    body = {"temperatures": [1.5] * 7}
    http.post(f"{place}/revisions", json=body, headers={"If-Match": state.headers["ETag"]})
    return name


def promote(runner: CliRunner, running: ServiceProcess, *arguments: str) -> Result:
    return runner.invoke(app, ["promote", *arguments, "--url", running.url])


@pytest.mark.slow
def test_a_revision_is_published(
    runner: CliRunner, running: ServiceProcess, http: httpx.Client, drafter: str
) -> None:
    result = promote(runner, running, drafter, "1", "--reason", "measured in the lab")
    assert result.exit_code == 0, result.stderr
    assert result.stdout == (
        f"Revision 1 of {drafter} is served as publication 2; before it was revision 0.\n"
    )
    place = f"{running.url}/v1/drafters/{drafter}/temperatures"
    assert http.get(place, params={"gamma": 7}).json()["temperatures"] == [1.5] * 7
    (event,) = http.get(f"{running.url}/v1/events", params={"drafter": drafter}).json()["events"]
    assert event["details"]["reason"] == "measured in the lab"


def test_scripts_read_json(runner: CliRunner, running: ServiceProcess, drafter: str) -> None:
    result = promote(runner, running, drafter, "1", "--json")
    assert json.loads(result.stdout)["publication"] == 2


def test_without_a_challenger_the_revision_must_be_named(
    runner: CliRunner, running: ServiceProcess, drafter: str
) -> None:
    result = promote(runner, running, drafter)
    assert result.exit_code == 2
    assert "has no challenger" in result.stderr


def test_what_does_not_exist_is_named(
    runner: CliRunner, running: ServiceProcess, drafter: str
) -> None:
    for arguments in ((drafter, "7"), ("nobody", "1")):
        result = promote(runner, running, *arguments)
        assert result.exit_code == 2
        assert result.stderr.startswith("error: ")
        assert "status 404" in result.stderr


def test_a_service_that_is_not_there_is_one_line(runner: CliRunner, tmp_path: Path) -> None:
    result = runner.invoke(app, ["promote", "d", "1", "--url", "http://127.0.0.1:9"])
    assert result.exit_code == 2
    assert "check the address and that the service runs" in result.stderr
    assert runner.invoke(app, ["promote", "d", "--url", "no address"]).exit_code == 2
