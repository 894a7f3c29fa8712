"""``drift`` against a real service, before and after the loop has written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from api.cli import app
from api.commands.drift import drift_lines
from calib.canonical_json import canonical_json
from monitoring.store.database import Database
from monitoring.store.monitor_states import save
from tests.service_process import ServiceProcess
from tests.support.drift import drift_values
from tests.support.service import KEY


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"sqlite:///{tmp_path_factory.mktemp('service')}/store.db"


@pytest.fixture(scope="module")
def running(url: str) -> Iterator[ServiceProcess]:
    import httpx

    with ServiceProcess(url) as service:
        place = f"{service.url}/v1/drafters/code"
        httpx.put(place, json={"key": KEY}, timeout=60.0).raise_for_status()
        yield service


def ask(runner: CliRunner, running: ServiceProcess, *arguments: str) -> Result:
    return runner.invoke(app, ["drift", *arguments, "--url", running.url])


@pytest.mark.slow
def test_what_the_loop_wrote_is_shown(runner: CliRunner, running: ServiceProcess, url: str) -> None:
    before = ask(runner, running, "code")
    assert before.exit_code == 0, before.stderr
    assert "Revision 0 of code, publication 1: collecting" in before.stdout
    database = Database.open(url)
    written = canonical_json(drift_values("code"))
    with database.write() as connection:
        save(connection, "code", consumed_through=41, state=b"", document=written)
    database.close()
    after = ask(runner, running, "code")
    assert "publication 3: drift (out of calibration" in after.stdout
    assert "position 2 conditional" in after.stdout
    assert "engines that can verify 0.5 % of steps in full" in after.stdout
    assert json.loads(ask(runner, running, "code", "--json").stdout) == json.loads(written)
    nobody = ask(runner, running, "nobody")
    assert (nobody.exit_code, nobody.stderr[:7]) == (2, "error: ")


def lines(**changes: Any) -> list[str]:
    return list(drift_lines(drift_values("code", **changes)))


def test_the_strongest_evidence_comes_first_and_says_since_when() -> None:
    found = lines()
    tests = [line for line in found if "conditional" in line]
    assert " ".join(tests[0].split()) == (
        "position 2 conditional 10^6.4 10^5 10^6 alarm since 900 rows ago, 2026-11-29T12:00:00.000Z"
    )
    assert "pooled conditional" in tests[1]
    assert "domain=code conditional" in tests[2]
    assert found[-1] == (
        "Last decision: schedule_fit at 2026-11-29T12:01:00.000Z: act alarm at position 2"
    )


def test_challenger_watch_and_hold_have_a_line_each() -> None:
    challenger = {
        "revision": 4,
        "status": "refused",
        "wealth_log10": 0.25,
        "threshold_log10": 1.5,
        "rows": 2000,
        "reason": "worse in domain=code",
    }
    watch = {
        "revision": 3,
        "previous": 2,
        "evidence_log10": -0.5,
        "threshold_log10": 1.3,
        "rows": 100,
        "until": None,
    }
    quality = {
        "monitor": "silence",
        "status": "held",
        "value": 400.0,
        "limit": 300.0,
        "message": "no row for 400 seconds",
        "engine": "decode-0",
    }
    found = "\n".join(
        lines(
            status="held",
            challenger=challenger,
            watch=watch,
            data_quality=[quality],
            cool_down_until="2026-11-29T13:00:00.000Z",
        )
    )
    assert "held by silence (decode-0): no row for 400 seconds" in found
    assert "Challenger: revision 4, refused after 2,000 rows, evidence 10^0.2 of 10^1.5" in found
    assert "Watch: revision 3 against 2 for 100 rows" in found
    assert "Cooling down until 2026-11-29T13:00:00.000Z." in found


def test_many_tests_are_cut(tmp_path: Path) -> None:
    (pooled, *_) = drift_values("code")["tests"]
    assert lines(tests=[pooled] * 20)[-2].strip() == "and 8 more with less evidence"
