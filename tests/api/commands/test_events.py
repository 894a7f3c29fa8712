"""``events`` against a real service: list, acknowledge, resolve."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner, Result

from api.cli import app
from monitoring.store.database import Database
from monitoring.store.events import open_event
from tests.service_process import ServiceProcess


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    url = f"sqlite:///{tmp_path_factory.mktemp('service')}/store.db"
    with ServiceProcess(url) as service:
        database = Database.open(url)
        with database.write() as connection:
            for _ in range(2):
                open_event(connection, "drift", "critical", "position 2 drifted", dedup_key="drift")
            open_event(connection, "publication", "info", "a notice")
        database.close()
        yield service


def ask(runner: CliRunner, running: ServiceProcess, *arguments: str) -> Result:
    return runner.invoke(app, ["events", *arguments, "--url", running.url])


@pytest.mark.slow
def test_life_of_an_event(runner: CliRunner, running: ServiceProcess) -> None:
    listed = ask(runner, running)
    assert listed.exit_code == 0, listed.stderr
    notice, drift = listed.stdout.splitlines()
    assert "a notice" in notice
    assert drift.endswith("critical  open  position 2 drifted (2 times)")
    event = drift.split()[0]
    seen = ask(runner, running, "--acknowledge", event)
    assert "acknowledged by anonymous  position 2 drifted" in seen.stdout
    assert ask(runner, running, "--state", "open").stdout == "Nothing happened.\n"
    done = ask(runner, running, "--resolve", event, "--json")
    assert json.loads(done.stdout)["state"] == "resolved"
    page = json.loads(ask(runner, running, "--state", "resolved", "--limit", "1", "--json").stdout)
    assert (len(page["events"]), page["next_before"]) == (1, page["events"][0]["id"])


def test_refusals_have_exit_codes(runner: CliRunner, running: ServiceProcess) -> None:
    assert ask(runner, running, "nobody").exit_code == 2
    assert ask(runner, running, "--resolve", "999").exit_code == 2
    both = ask(runner, running, "--resolve", "1", "--acknowledge", "1")
    assert (both.exit_code, "--acknowledge or --resolve" in both.stderr) == (2, True)
    listed = json.loads(ask(runner, running, "--json").stdout)["events"]
    notice = next(event["id"] for event in listed if event["kind"] == "publication")
    gone = ask(runner, running, "--acknowledge", str(notice))  # it was never open
    assert (gone.exit_code, gone.stderr[:9]) == (1, "refused: ")
