"""The worker's process delivers alerts beside its jobs, and a killed one loses none."""

from __future__ import annotations

from pathlib import Path

import pytest

from monitoring.store.alert_outbox import receiver_totals
from monitoring.store.database import Database
from monitoring.store.events import open_event, resolve
from monitoring.store.migrate import upgrade
from tests.api.served import eventually
from tests.api.test_worker_process import WorkerProcess
from tests.monitoring.alerts.receiving_server import ReceivingServer

pytestmark = pytest.mark.slow  # two processes, and a lease that has to run out


def delivered(database: Database) -> int:
    with database.read() as connection:
        return sum(one.delivered for one in receiver_totals(connection))


def test_a_killed_worker_s_message_comes_again_as_itself(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    database = Database.open(url)
    upgrade(database)
    with ReceivingServer() as server:
        receiver = {
            "name": "pager",
            "kind": "webhook",
            "url": f"{server.url}/secret-part",
            "timeout_seconds": 5.0,
        }
        settings = {"database_url": url, "alert_receivers": [receiver], "log_level": "debug"}
        server.behaviours = [200, server.hang]
        with WorkerProcess(tmp_path, **settings) as worker:
            worker.wait_for("started")
            for key in ("a", "b"):
                database.run(
                    lambda c, key=key: open_event(c, "drift", "critical", key, dedup_key=key)  # type: ignore[misc]
                )
            server.wait_for(2)
            eventually(lambda: delivered(database) == 1)
            worker.process.kill()
        database.run(lambda c: resolve(c, "a"))
        with WorkerProcess(tmp_path, **settings):
            came = server.wait_for(4)
    ids = [request.headers["webhook-id"] for request in came]
    assert len(set(ids)) == 3
    hung = ids[1]
    assert ids.count(hung) == 2  # the one that was under way, and no other
    assert sorted(request.json["notice"] for request in came) == ["opened"] * 3 + ["resolved"]
    assert "secret-part" not in (tmp_path / "worker.log").read_text()
    database.close()
