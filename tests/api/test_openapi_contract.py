"""The service against its own description: no 5xx, no undocumented status, no wrong shape.

Each operation is called with generated requests, valid ones and broken ones, on a real process.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from calib.canonical_json import canonical_json
from monitoring.store.database import Database
from monitoring.store.events import open_event
from monitoring.store.migrate import upgrade
from monitoring.store.monitor_states import save
from monitoring.store.reports import put_report
from monitoring.store.tokens import create_token
from tests.service_process import ServiceProcess
from tests.support.drift import drift_values
from tests.support.service import KEY

pytestmark = pytest.mark.slow

DRAFTER = "target-8b-dspark"  # the example of the description
# Left out: that valid requests are accepted, because a change is only valid with the ETag of the
# moment; that calls are refused without a token, because tests/api/test_auth.py says it better.
LEFT_OUT = "positive_data_acceptance,ignored_auth"
EXAMPLES = 10
# A change without If-Match is 428 (RFC 6585), which the tool does not expect by itself.
CONFIGURATION = """
[checks]
missing_required_header.expected-statuses = [401, 403, 406, 415, 422, 428]
"""


@pytest.fixture(scope="module")
def secret_and_url(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    url = f"sqlite:///{tmp_path_factory.mktemp('contract')}/service.db"
    database = Database.open(url)
    upgrade(database)
    with database.write() as connection:
        _, secret = create_token(connection, "contract", ["operate", "write:telemetry"])
    database.close()
    return secret, url


@pytest.fixture(scope="module")
def service(secret_and_url: tuple[str, str]) -> Iterator[ServiceProcess]:
    """A service with something of everything in it; polls are held for a second at most."""
    secret, url = secret_and_url
    with ServiceProcess(url, max_wait_seconds=1) as started:
        headers = {"Authorization": f"Bearer {secret}"}
        path = f"{started.url}/v1/drafters/{DRAFTER}"
        httpx.put(path, json={"key": KEY}, headers=headers, timeout=60).raise_for_status()
        database = Database.open(url)
        with database.write() as connection:
            open_event(connection, "silence", "warning", "no telemetry", dedup_key="x")
            put_report(
                connection,
                DRAFTER,
                "evaluation",
                b'{"rows": 1}',
                revision=0,
                through_batch=None,
                created_at=0.0,
            )
            drift = canonical_json(drift_values(DRAFTER))
            save(connection, DRAFTER, consumed_through=41, state=b"", document=drift)
        database.close()
        yield started
        assert not [line for line in started.log.splitlines() if '"level": "error"' in line]
        assert started.stop() == 0


def test_every_call_does_what_it_says(
    service: ServiceProcess, secret_and_url: tuple[str, str], tmp_path: Path
) -> None:
    (tmp_path / "schemathesis.toml").write_text(CONFIGURATION, encoding="utf-8")
    command = [
        str(Path(sys.executable).with_name("schemathesis")),
        "run",
        f"{service.url}/openapi.json",
        *("--header", f"Authorization: Bearer {secret_and_url[0]}"),
        *("--checks", "all", "--exclude-checks", LEFT_OUT),
        *("--max-examples", str(EXAMPLES), "--seed", "20261129"),
        *("--suppress-health-check", "all", "--continue-on-failure", "--no-color"),
    ]
    answer = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=3000, check=False
    )
    assert answer.returncode == 0, answer.stdout[-20_000:] + answer.stderr
    assert "FAILURES" not in answer.stdout
    # It looked at every call that the document describes.
    assert re.search(r"Operations:\s+(\d+) selected / \1 total", answer.stdout), answer.stdout
