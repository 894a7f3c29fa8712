"""The mirror's process beside a service: it can hang, and nobody notices but a counter."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from api.settings import Settings
from api.tracking_process import start_mirror
from monitoring.store import tracking_outbox as outbox
from monitoring.store.database import Database
from monitoring.store.migrate import upgrade
from tests.api.served import Served, eventually
from tests.support.service import KEY


@pytest.fixture
def hanging() -> Iterator[str]:
    """A tracking server that takes connections and never answers."""
    listener = socket.create_server(("127.0.0.1", 0))
    held: list[socket.socket] = []

    def accept() -> None:
        while True:
            try:
                held.append(listener.accept()[0])
            except OSError:
                return

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(10.0)
    for connection in held:
        connection.close()


def totals(database: Database) -> outbox.TrackingTotals:
    with database.read() as connection:
        return outbox.totals(connection)


def test_off_starts_nothing_and_stops_the_writing_of_entries(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    database = Database.open(url)
    upgrade(database)
    assert start_mirror(Settings(database_url=url, tracking_uri="off"), database) is None
    assert not totals(database).enabled
    database.close()


def test_an_environment_that_names_no_place_does_not_stop_the_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "./mlruns")
    url = f"sqlite:///{tmp_path}/store.db"
    database = Database.open(url)
    upgrade(database)
    assert start_mirror(Settings(database_url=url), database) is None
    database.close()


@pytest.mark.slow  # MLflow is imported, and a service with its children starts
def test_r76_a_tracking_server_that_hangs_delays_neither_polls_nor_changes_nor_the_end(
    tmp_path: Path, hanging: str
) -> None:
    config = tmp_path / "service.toml"
    config.write_text("tracking_timeout_seconds = 10\n")
    data = ["--data", str(tmp_path / "data"), "--config", str(config)]
    arguments = [*data, "--log-level", "info"]
    with Served(*arguments, folder=tmp_path, tracking=hanging).listening() as service:
        path = f"{service.url}/v1/drafters/code"
        state = service.http.put(path, json={"key": KEY}).raise_for_status()
        database = Database.open(f"sqlite:///{tmp_path / 'data' / 'dspark-calib.db'}")
        before = _poll_seconds(service.http, path)
        # The mirror is in the middle of a call that will never be answered.
        eventually(lambda: _log(tmp_path, "mirroring to"))
        eventually(lambda: totals(database).waiting > 0)
        during = _poll_seconds(service.http, path)
        assert during < max(0.1, 5.0 * before)  # medians; the machine does other work meanwhile
        changed = service.http.post(
            f"{path}/revisions",
            json={"temperatures": [1.5] * 7},
            headers={"If-Match": state.headers["ETag"]},
        )
        assert changed.status_code == 201
        eventually(lambda: totals(database).deferred > 0, seconds=120.0)
        assert (totals(database).delivered, totals(database).failed) == (0, 0)
        database.close()
        began = time.monotonic()
        assert service.stop() == 0
        assert time.monotonic() - began < 30.0


def _poll_seconds(http: httpx.Client, path: str) -> float:
    """Median time of 60 polls that are answered 304."""
    tag = http.get(f"{path}/temperatures", params={"gamma": 7}).headers["ETag"]
    taken = []
    for _ in range(60):
        began = time.monotonic()
        answer = http.get(
            f"{path}/temperatures", params={"gamma": 7}, headers={"If-None-Match": tag}
        )
        taken.append(time.monotonic() - began)
        assert answer.status_code == 304
    return sorted(taken)[30]


def _log(folder: Path, text: str) -> bool:
    return any(text in path.read_text() for path in folder.glob("*.log"))
