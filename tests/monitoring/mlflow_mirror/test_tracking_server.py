"""Against a real tracking server process on SQLite: once, whatever happens, and locked in between.

One server for the whole module: its start takes ten seconds on a quiet machine.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calib.calibration import Calibration
from monitoring.mlflow_mirror.contents import Content
from monitoring.mlflow_mirror.delivery import Delivery
from monitoring.mlflow_mirror.errors import TrackingAwayError
from monitoring.mlflow_mirror.mirror import Mirror
from monitoring.mlflow_mirror.names import AliasNames
from monitoring.mlflow_mirror.numbers import Metric
from monitoring.mlflow_mirror.tracking_place import TrackingPlace, bound_calls
from monitoring.mlflow_mirror.tracking_server import TrackingServer, tags_of_run
from monitoring.published_document import document_maker, render
from monitoring.store import tracking_outbox as outbox
from monitoring.store.database import Database
from monitoring.store.drafters import register
from monitoring.store.jobs import enqueue, finish, lease_next
from monitoring.store.publications import current_publication, publish
from monitoring.store.reports import put_report
from monitoring.store.revisions import add_revision, set_challenger
from tests.monitoring.mlflow_mirror.mlflow_server import MlflowServer, start_mirror
from tests.monitoring.mlflow_mirror.test_report_numbers import report
from tests.monitoring.store.store_fixtures import KEY

pytestmark = [
    pytest.mark.slow,  # the server starts, and MLflow is imported
    # MLflow's own: noload of SQLAlchemy 2.1, middleware of Starlette, connections left open.
    pytest.mark.filterwarnings("default"),
]

NUMBERS = ((1.5, 2.0, 0.8), (1.25, 1.0, 3.0))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlflowServer]:
    with pytest.MonkeyPatch.context() as patched:
        for name, value in bound_calls(10.0, {}).items():
            patched.setenv(name, value)
        with MlflowServer(tmp_path_factory.mktemp("mlflow")) as running:
            yield running


@pytest.fixture
def store(sqlite_url: str) -> Iterator[Database]:
    database = Database.open(sqlite_url)
    yield database
    database.close()


def filled(store: Database, drafter: str) -> None:
    """Identity, two revisions, the first promoted and then the second, a report, a refusal."""
    document = document_maker()
    store.run(lambda c: register(c, drafter, KEY, actor="tests", document=document))
    held_out = {"positions": [{"ece": {"before": 0.03, "after": None}}] * 3, "champion": 0}
    for number, temperatures in enumerate(NUMBERS, start=1):
        slopes = None if number == 1 else (0.8, 1.0, 1.2)
        calibration = Calibration(
            gamma=3,
            temperatures=temperatures,
            slopes=slopes,
            intercepts=None if slopes is None else (0.1, 0.0, -0.3),
            method="sts",
            evidence={"held_out": held_out},
        )
        window = {"first_batch": 1, "last_batch": 4, "rows": 90, "digest": f"{number}" * 64}
        provenance = {"kind": "recalibration", "window": window}
        store.run(
            lambda c, made=calibration, told=provenance: add_revision(
                c, drafter, made, provenance=told, actor="worker"
            )
        )
        store.run(lambda c, n=number: set_challenger(c, drafter, n, actor="worker"))
        if number == 1:
            promoted(store, drafter, number)
    told = {"metrics": {"rows": 50, "survival_ece/raw": None}, "sentences": ["Fine."]}
    store.run(
        lambda c: put_report(
            c,
            drafter,
            "evaluation",
            json.dumps(report()).encode(),
            revision=1,
            through_batch=4,
            created_at=1_800_000_000.0,
            told=told,
        )
    )
    store.run(lambda c: enqueue(c, drafter, "recalibration", {}, actor="tests"))
    job = store.run(lambda c: lease_next(c, store, "worker"))
    assert job is not None
    store.run(lambda c: finish(c, job, "refused", {"refusal": "no_rows", "reason": "none"}))


def promoted(store: Database, drafter: str, revision: int) -> None:
    store.run(
        lambda c: publish(
            c,
            drafter,
            revision,
            expected_version=None,
            actor="tests",
            reason="test",
            document=document_maker(),
        )
    )


def mirrored(store: Database, url: str) -> None:
    """Deliver everything that waits."""
    delivery = Delivery(store, TrackingServer(TrackingPlace(url)), AliasNames())
    mirror = Mirror(store, lambda: delivery, "test", on_overrun=lambda: None)
    while mirror.step() == "delivered":
        pass
    with store.read() as connection:
        found = outbox.totals(connection)
        failed = [entry.error for entry in outbox.list_entries(connection, status="failed")]
    assert (found.waiting, failed) == (0, [])


def runs(url: str, drafter: str) -> dict[str, Any]:
    """Runs of a drafter by name; a name that comes twice fails."""
    from mlflow import MlflowClient

    client = MlflowClient(url)
    experiment = client.get_experiment_by_name(f"dspark-calib.{drafter}")
    found = client.search_runs([experiment.experiment_id])
    by_name = {run.info.run_name: run for run in found}
    assert len(by_name) == len(found)
    return by_name


def everything(url: str, drafter: str) -> dict[str, Any]:
    """All that MLflow holds of a drafter, in a form that two looks can be compared by."""
    from mlflow import MlflowClient

    client = MlflowClient(url)
    held: dict[str, Any] = {}
    for name, run in runs(url, drafter).items():
        identifier = run.info.run_id
        histories = {
            key: [
                (m.step, m.value, m.timestamp) for m in client.get_metric_history(identifier, key)
            ]
            for key in run.data.metrics
        }
        datasets = [d.dataset.digest for d in run.inputs.dataset_inputs]
        held[name] = (run.data.params, run.data.tags, histories, datasets, run.info.status)
    versions = client.search_model_versions(f"name = '{drafter}'")
    held["versions"] = sorted((v.tags["revision"], v.version, v.run_id) for v in versions)
    held["aliases"] = dict(client.get_registered_model(drafter).aliases)
    return held


def test_all_of_a_drafter_arrives_and_telling_it_again_changes_nothing(
    server: MlflowServer, store: Database
) -> None:
    from mlflow import MlflowClient

    filled(store, "code")
    mirrored(store, server.url)
    first = everything(server.url, "code")
    assert set(first) >= {
        "revision 0 (identity)",
        "revision 1 (sts)",
        "revision 2 (sts)",
        "recalibration refused",
    }
    assert [revision for revision, *_ in first["versions"]] == ["0", "1", "2"]
    version = {revision: number for revision, number, _ in first["versions"]}
    assert first["aliases"] == {
        "champion": version["1"],
        "challenger": version["2"],
        "previous": version["0"],
    }
    parameters, tags, histories, datasets, status = first["revision 1 (sts)"]
    assert [(step, value) for step, value, _ in histories["temperature"]] == [
        (1, 1.5),
        (2, 2.0),
        (3, 0.8),
    ]
    assert (datasets, status, parameters["gamma"]) == (["1" * 36], "FINISHED", "3")
    assert "held_out/ece/after[1]" in tags["metrics.left_out"]
    assert tags["report.left_out"] == "monitored/survival_ece/raw"
    assert tags["status"] == "fitted"
    assert first["recalibration refused"][1]["refusal"] == "no_rows"

    # Byte for byte what is served.
    client, run = MlflowClient(server.url), runs(server.url, "code")["revision 1 (sts)"]
    with store.read() as connection:
        document = current_publication(connection, "code").document
    served = client.download_artifacts(run.info.run_id, "served")
    sts = Path(served, "publication-000002.sts.json").read_bytes()
    assert sts == render(document, gamma=3, media="sts")
    assert Path(served, "publication-000002.json").read_bytes() == document
    picture = Path(client.download_artifacts(run.info.run_id, "report"), "reliability.png")
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert tags_of_run(TrackingPlace(server.url), run.info.run_id)["digest"] == tags["digest"]

    # Everything once more, as a mirror does that was killed before it could say so.
    store.run(lambda c: (outbox.set_enabled(c, False), outbox.set_enabled(c, True)))
    mirrored(store, server.url)
    assert everything(server.url, "code") == first


def test_the_registered_model_calibrates_as_the_library_does(
    server: MlflowServer, store: Database
) -> None:
    import mlflow

    filled(store, "model")
    mirrored(store, server.url)
    mlflow.set_tracking_uri(server.url)
    logits = np.random.default_rng(5).normal(0.0, 4.0, (200, 3)).astype(np.float32)
    logits[0] = [-300.0, 0.0, 3e38]
    for alias, temperatures in zip(("champion", "challenger"), NUMBERS, strict=True):
        model = mlflow.pyfunc.load_model(f"models:/model@{alias}")
        own = Calibration.from_temperatures(temperatures, gamma=3)
        np.testing.assert_array_equal(model.predict(logits), own.conditional(logits))
        survival = model.predict(logits, params={"quantity": "survival"})
        np.testing.assert_array_equal(survival, own.survival(logits))
    affine = Calibration(
        gamma=3, temperatures=NUMBERS[1], slopes=(0.8, 1.0, 1.2), intercepts=(0.1, 0.0, -0.3)
    )
    found = model.predict(logits, params={"form": "affine"})
    np.testing.assert_array_equal(found, affine.conditional(logits, form="affine"))


def test_aliases_follow_a_rollback(server: MlflowServer, store: Database) -> None:
    filled(store, "aliases")
    promoted(store, "aliases", 2)
    promoted(store, "aliases", 1)  # back again
    mirrored(store, server.url)
    held = everything(server.url, "aliases")
    version = {revision: number for revision, number, _ in held["versions"]}
    assert held["aliases"] == {"champion": version["1"], "previous": version["2"]}


def test_a_locked_tracking_store_defers_and_nothing_is_lost(
    server: MlflowServer, store: Database
) -> None:
    filled(store, "locked")
    delivery = Delivery(store, TrackingServer(TrackingPlace(server.url)), AliasNames())
    mirror = Mirror(store, lambda: delivery, "test", on_overrun=lambda: None)
    with closing(sqlite3.connect(server.database, timeout=30.0)) as other:
        other.execute("BEGIN EXCLUSIVE")
        began = time.monotonic()
        assert mirror.step() == "away"
        assert time.monotonic() - began < 60.0
        other.rollback()
    with store.read() as connection:
        assert outbox.totals(connection).deferred > 0
    mirrored(store, server.url)
    assert len(runs(server.url, "locked")) == 4


def test_an_unreachable_server_is_away(store: Database) -> None:
    with pytest.raises(TrackingAwayError):
        TrackingServer(TrackingPlace("http://127.0.0.1:9"))


def test_two_mirrors_and_a_kill_9_in_mid_write_leave_everything_there_once(
    server: MlflowServer, sqlite_url: str, store: Database
) -> None:
    names = ("killed-a", "killed-b", "killed-c")
    for name in names:
        filled(store, name)
    with store.read() as connection:
        expected = outbox.totals(connection).waiting
    mirrors = [start_mirror(sqlite_url, server.url) for _ in range(2)]
    try:
        # One is killed while it writes: the entry that it holds has been begun.
        owner = f"mirror-{mirrors[0].pid}"
        until(lambda: _delivered(store) >= 2 and _holds(store, owner))
        mirrors[0].kill()
        mirrors[0].wait(10.0)
        mirrors.append(start_mirror(sqlite_url, server.url))
        for mirror in mirrors[1:]:
            assert mirror.wait(600.0) == 0
    finally:
        for mirror in mirrors:
            mirror.kill()
            mirror.wait(10.0)
    with store.read() as connection:
        found = outbox.totals(connection)
    assert (found.delivered, found.waiting, found.failed) == (expected, 0, 0)
    for name in names:
        held = everything(server.url, name)
        assert len([key for key in held if key.startswith(("revision", "recal"))]) == 4
        assert [revision for revision, *_ in held["versions"]] == ["0", "1", "2"]
        assert {status for key, (*_, status) in held.items() if key.startswith("rev")} == {
            "FINISHED"
        }
        history = held["revision 1 (sts)"][2]["temperature"]
        assert [value for _, value, _ in history] == [1.5, 2.0, 0.8]


def until(condition: Callable[[], bool], seconds: float = 600.0) -> None:
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends, "it did not come to that in time"
        time.sleep(0.02)


def _delivered(store: Database) -> int:
    with store.read() as connection:
        return outbox.totals(connection).delivered


def _holds(store: Database, owner: str) -> bool:
    with store.read() as connection:
        return any(entry.lease_owner == owner for entry in outbox.list_entries(connection))


def test_r79_threads_and_coroutines_that_refit_two_keys_write_each_to_its_own_run(
    server: MlflowServer,
) -> None:
    """One client, four writers in turns: MLflow's notion of an active run must play no part."""
    tracking = TrackingServer(TrackingPlace(server.url))
    steps = range(5)

    def content(writer: str, step: int) -> Content:
        return Content(
            identity=f"r79/{writer}",
            name=writer,
            started_at=1_800_000_000.0,
            at=1_800_000_000.0 + step,
            parameters={"writer": writer},
            metrics=(Metric("number", float(len(writer) * 100 + step), step),),
        )

    def write(writer: str, step: int) -> None:
        run = tracking.run(f"dspark-calib.r79-{writer.split()[0]}", content(writer, step))
        assert run is not None
        tracking.log(run, content(writer, step))

    def thread(writer: str) -> None:
        for step in steps:
            write(writer, step)

    async def coroutine(writer: str) -> None:
        for step in steps:
            write(writer, step)
            await asyncio.sleep(0)

    async def coroutines() -> None:
        await asyncio.gather(coroutine("first coroutine"), coroutine("second coroutine"))

    with ThreadPoolExecutor(3) as pool:
        tasks = [pool.submit(thread, f"{key} thread") for key in ("first", "second")]
        tasks.append(pool.submit(asyncio.run, coroutines()))
        for task in tasks:
            task.result(120.0)

    from mlflow import MlflowClient

    client = MlflowClient(server.url)
    for key in ("first", "second"):
        found = runs(server.url, f"r79-{key}")
        assert set(found) == {f"{key} thread", f"{key} coroutine"}
        for writer, run in found.items():
            assert run.data.params == {"writer": writer}
            history = client.get_metric_history(run.info.run_id, "number")
            assert {(m.step, m.value) for m in history} == {
                (step, float(len(writer) * 100 + step)) for step in steps
            }
