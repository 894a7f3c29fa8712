"""What a delivery asks of a server, entry by entry; the real server is in test_tracking_server."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from calib.calibration import Calibration
from monitoring.mlflow_mirror.contents import Content
from monitoring.mlflow_mirror.delivery import REPORT_FILE_SECONDS, Delivery
from monitoring.mlflow_mirror.names import AliasNames
from monitoring.mlflow_mirror.tracking_server import TrackingServer
from monitoring.published_document import document_maker
from monitoring.store import jobs
from monitoring.store import tracking_outbox as outbox
from monitoring.store.database import Database
from monitoring.store.drafters import register
from monitoring.store.errors import NotFoundError
from monitoring.store.reports import put_report
from monitoring.store.revisions import add_revision
from monitoring.store.tracking_outbox import Entry
from tests.monitoring.mlflow_mirror.test_report_numbers import report
from tests.monitoring.store.store_fixtures import KEY


class _Run:
    """As much of MLflow's run as a delivery reads."""

    def __init__(self) -> None:
        self.data = self
        self.tags: dict[str, str] = {}


class StandIn:
    """A server whose revisions are registered already, so that no model is built."""

    def __init__(self, *, deleted: bool = False) -> None:
        self.held = None if deleted else _Run()
        self.calls: list[tuple[str, Any]] = []
        self.spans: list[tuple[float, float]] = []

    def run(self, experiment: str, content: Content) -> _Run | None:
        self.calls.append(("run", content.identity))
        self.spans.append((content.started_at, content.at))
        return self.held

    def is_registered(self, model: str, identity: str) -> bool:
        return True

    def log(self, run: _Run, content: Content) -> None:
        self.calls.append(("log", [metric.key for metric in content.metrics]))
        run.tags.update(content.tags)

    def upload(self, run: _Run, files: Mapping[str, bytes]) -> None:
        self.calls.append(("upload", sorted(files)))

    def finish(self, run: _Run, content: Content) -> None:
        self.calls.append(("finish", content.status))

    def set_aliases(self, model: str, aliases: Mapping[str, str | None]) -> list[str]:
        self.calls.append(("aliases", dict(aliases)))
        return []

    def uploads(self) -> list[str]:
        return [name for kind, names in self.calls if kind == "upload" for name in names]


@pytest.fixture
def store(sqlite_url: str) -> Database:
    database = Database.open(sqlite_url)
    document = document_maker()
    database.run(lambda c: register(c, "code", KEY, actor="tests", document=document))
    return database


def delivered(store: Database, server: StandIn, entries: list[Entry]) -> None:
    names = AliasNames("live", "next", "last")
    for entry in entries:
        Delivery(store, cast(TrackingServer, server), names).deliver(entry)


def waiting(store: Database) -> list[Entry]:
    with store.read() as connection:
        return outbox.list_entries(connection)


def reported(store: Database, at: float, told: Mapping[str, Any]) -> Entry:
    store.run(
        lambda c: put_report(
            c,
            "code",
            "evaluation",
            json.dumps(report()).encode(),
            revision=0,
            through_batch=None,
            created_at=at,
            told=told,
        )
    )
    return waiting(store)[-1]


def test_a_publication_is_filed_as_served_and_moves_the_aliases_by_their_names(
    store: Database,
) -> None:
    server = StandIn()
    delivered(store, server, waiting(store))
    assert server.uploads() == [
        "calibration.json",
        "served/publication-000001.json",
        "served/publication-000001.sts.json",
    ]
    identity = server.calls[0][1]
    assert ("aliases", {"live": identity, "next": None, "last": None}) in server.calls


def test_the_run_of_a_fit_begins_with_its_job(store: Database) -> None:
    job = store.run(lambda c: jobs.enqueue(c, "code", "recalibration", {}, actor="tests"))
    leased = store.run(lambda c: jobs.lease_next(c, store, "worker"))
    assert leased is not None
    calibration = Calibration.from_temperatures([1.5] * KEY.gamma, gamma=KEY.gamma, key=KEY)
    for made_by in (job.id, "f" * 32):  # the second one is forgotten
        provenance = {"kind": "recalibration", "job": made_by}
        store.run(
            lambda c, given=provenance: add_revision(
                c, "code", calibration, actor="worker", provenance=given
            )
        )
    server = StandIn()
    delivered(store, server, [e for e in waiting(store) if e.kind == "revision"][-2:])
    (began, ended), (same, at_once) = server.spans
    assert began == leased.started_at
    assert began < ended
    assert same == at_once


def test_large_files_of_reports_are_filed_once_an_hour_and_numbers_always(store: Database) -> None:
    server, told = StandIn(), {"metrics": {"rows": 3}}
    for at in (1000.0, 1300.0, 1000.0 + REPORT_FILE_SECONDS):
        delivered(store, server, [reported(store, at, told)])
    filed = [f"report/{name}" for name in ("evaluation.html", "evaluation.json", "reliability.png")]
    assert server.uploads() == filed * 2
    assert [names for kind, names in server.calls if kind == "log" and names] == [
        ["monitored/rows"]
    ] * 3


def test_a_run_that_somebody_deleted_is_left_alone(store: Database) -> None:
    server = StandIn(deleted=True)
    entries = [*waiting(store), reported(store, 5.0, {"metrics": {"rows": 3}})]
    delivered(store, server, entries)
    assert {kind for kind, _ in server.calls} == {"run", "aliases"}


def test_an_entry_about_what_is_not_there_can_never_be_told(
    store: Database, tmp_path: Path
) -> None:
    store.run(lambda c: outbox.record(c, "code", "revision", {"revision": 9}))
    with pytest.raises(NotFoundError, match="code/9"):
        delivered(store, StandIn(), waiting(store)[-1:])
