"""Samples say what the database holds, by hand-made rows and documents."""

from __future__ import annotations

import json
from typing import Any

import pytest

from monitoring.metrics_state import MetricsCache, Samples, read_samples
from monitoring.store import (
    alert_outbox,
    engines,
    events,
    jobs,
    monitor_states,
    reports,
    telemetry,
)
from monitoring.store.database import Database
from tests.monitoring.store.store_fixtures import START, batch, only_sqlite, registered

REPORT = {
    "evaluation": {
        "overall": {
            "raw": {
                "conditional": {"positions": [{"ece": 0.04}, {"ece": None}]},
                "survival": {"positions": [{"ece": 0.04}, {"ece": 0.06}]},
            },
            "calibrated": {
                "conditional": {
                    "positions": [
                        {
                            "ece": 0.01,
                            "null_level": 0.008,
                            "mean_label": 0.7,
                            "mean_prediction": 0.71,
                        },
                        {"ece": None, "mean_label": None},
                    ]
                },
                "survival": {"positions": [{"ece": 0.01}, {"ece": 0.02, "null_level": 0.009}]},
            },
            "acceptance": {"emitted_per_round": 2.21},
        }
    }
}


def drift_document(**changes: Any) -> dict[str, Any]:
    def test(scope: str, position: int | None, value: float, **more: Any) -> dict[str, Any]:
        named = {"scope": scope, "position": position, "segment": None}
        return {**named, "detector": "likelihood_ratio", "evidence_log10": value, **more}

    document: dict[str, Any] = {
        "status": "warning",
        "rows": 5200,
        "levels": {"warn": {"threshold": 1e5}, "act": {"threshold": 1e6}},
        "tests": [
            test("pooled", None, 1.5),
            test("position", 3, 5.25),
            test("position", 17, 9.0),  # beyond the bound
            test("segment", None, 2.0, segment={"domain": "code"}),
            test("segment", None, 4.0, segment={"domain": "chat"}),
            test("pooled", None, 0.5, detector="betting"),
            test("pooled", None, 99.0, detector="somebody's own"),
        ],
        "data_quality": [{"status": "held"}, {"status": "calm"}],
        "challenger": {"wealth_log10": 0.75},
    }
    return document | changes


def read(database: Database, cache: MetricsCache | None = None, most: int = 10) -> Samples:
    with database.read() as connection:
        return read_samples(
            connection, cache or MetricsCache(), silent_after=60.0, most_drafters=most
        )


def put_monitor(database: Database, document: dict[str, Any]) -> None:
    encoded = json.dumps(document).encode()
    database.run(
        lambda c: monitor_states.save(c, "code", consumed_through=1, state=b"", document=encoded)
    )


def test_telemetry_fleet_and_jobs(database: Database) -> None:
    registered(database)
    with database.write() as connection:
        now = database.now(connection)
        telemetry.store_batches(connection, [batch(rows=9, excluded=2)])
        telemetry.count_rejects(connection, "code", 3, 1)
        sighting = engines.EngineSighting
        seen = [("a", 1, now), ("b", 0, now), ("c", None, now), ("d", 1, now - 61.0)]
        engines.record_sightings(
            connection,
            [sighting("code", name, "1", n, n, "fresh", at) for name, n, at in seen],
        )
        jobs.enqueue(connection, "code", "report", {}, actor="tests")
        events.open_event(connection, "drift", "critical", "x", drafter="code", dedup_key="a")
        events.open_event(connection, "drift", "warning", "x", drafter="code")  # a notice
        alert_outbox.spread(connection, [alert_outbox.Recipient("pager", "warning")])
    found = read(database)
    assert found["telemetry_rows_total"] == {
        ("code", "usable"): 7,
        ("code", "excluded"): 2,
        ("code", "rejected"): 3,
        ("code", "duplicate"): 1,
    }
    assert found["telemetry_last_received_timestamp_seconds"]["code",] == START
    assert found["engines"] == {
        ("code", "on_champion"): 1,
        ("code", "behind"): 1,
        ("code", "unreported"): 1,
        ("code", "silent"): 1,
    }
    assert found["jobs"]["report", "queued"] == 1
    assert found["jobs"]["recalibration", "failed"] == 0
    assert found["events_open"]["code", "critical"] == 1
    assert found["events_open"]["code", "warning"] == 0
    assert found["alerts_waiting"] == {("pager",): 2}
    assert found["publication"]["code",] == 1
    assert found["revision_info"] == {("code", "champion", "0"): 1.0}
    assert found["tracking_deferred_total"][()] == 0


def test_a_refused_and_a_successful_fit_show_when_and_how_long(database: Database) -> None:
    registered(database)
    for status in ("succeeded", "refused"):
        with database.write() as connection:
            jobs.enqueue(connection, "code", "recalibration", {"x": status}, actor="tests")
            job = jobs.lease_next(connection, database, "me")
            assert job is not None
            jobs.finish(connection, job, status, {}, None)  # type: ignore[arg-type]
    found = read(database)
    ended = found["recalibration_timestamp_seconds"]
    assert ended["code", "refused"] >= ended["code", "succeeded"]
    assert 0.0 <= found["fit_duration_seconds"]["code",] < 30.0


@only_sqlite
def test_the_latest_report_gives_errors_by_position(database: Database) -> None:
    registered(database)

    def put(document: Any) -> None:
        encoded = json.dumps(document).encode()
        database.run(
            lambda c: reports.put_report(
                c, "code", "evaluation", encoded, revision=0, through_batch=1, created_at=START
            )
        )

    put(REPORT)
    cache = MetricsCache()
    found = read(database, cache)
    assert found["ece_ratio"] == {
        ("code", "1", "conditional", "identity"): 0.04,
        ("code", "1", "survival", "identity"): 0.04,
        ("code", "2", "survival", "identity"): 0.06,
        ("code", "1", "conditional", "champion"): 0.01,
        ("code", "1", "survival", "champion"): 0.01,
        ("code", "2", "survival", "champion"): 0.02,
    }
    assert found["ece_expected_ratio"]["code", "2", "survival"] == 0.009
    assert found["acceptance_ratio"] == {("code", "1"): 0.7}
    assert found["confidence_ratio"] == {("code", "1"): 0.71}
    assert found["accepted_length_tokens"] == {("code",): 2.21}
    assert found["report_timestamp_seconds"] == {("code",): START}
    put({"evaluation": None})  # no rows: nothing is made up, and nothing old is kept
    assert "ece_ratio" not in read(database, cache)


@only_sqlite
def test_the_drift_document_gives_evidence_by_scope_and_position(database: Database) -> None:
    registered(database)
    put_monitor(database, drift_document())
    cache = MetricsCache()
    found = read(database, cache)
    assert found["drift_log_e_value"] == {
        ("code", "likelihood_ratio", "pooled", ""): 1.5,
        ("code", "likelihood_ratio", "position", "3"): 5.25,
        ("code", "likelihood_ratio", "segment", ""): 4.0,
        ("code", "betting", "pooled", ""): 0.5,
    }
    assert found["drift_threshold_log_e_value"]["code", "act"] == pytest.approx(6.0)
    assert [key[1] for key, value in found["drift_status"].items() if value] == ["warning"]
    assert found["data_quality_held"] == {("code",): 1}
    assert found["challenger_log_e_value"] == {("code",): 0.75}
    put_monitor(database, drift_document(status="calibrated", tests="none"))
    again = read(database, cache)
    assert again["drift_status"]["code", "calibrated"] == 1.0
    assert not again.get("drift_log_e_value")


@only_sqlite
def test_drafters_and_positions_beyond_the_bound_are_left_out_and_counted(
    database: Database,
) -> None:
    for name in ("a", "b", "c"):
        registered(database, name)
    found = read(database, most=2)
    assert found["drafters"] == {(): 3}
    assert found["drafters_left_out"] == {(): 1}
    assert {labels[0] for labels in found["publication"]} == {"a", "b"}
    assert {labels[0] for labels in found["events_open"]} == {"a", "b"}
