from __future__ import annotations

import json
import logging
from typing import Any

import numpy as np
import pytest
from sqlalchemy import delete

from calib.errors import ConfigurationError
from calib.record_schema import Flag
from calib.records import AcceptanceRecords
from calib.statuses import ServingStatus
from monitoring.closed_loop import ClosedLoop
from monitoring.loop_settings import LoopSettings
from monitoring.recalibration import recalibrate
from monitoring.reproduction import reproduce
from monitoring.revision_model import RevisionModel
from monitoring.store import monitor_states, tables
from monitoring.store.database import Database
from monitoring.store.errors import LeaseLostError
from monitoring.store.events import list_events
from monitoring.store.jobs import Job, get_job, release
from monitoring.store.publications import current_publication
from monitoring.store.revisions import aliases, get_revision, list_revisions
from tests.monitoring.loop_rows import rows
from tests.monitoring.worker_support import (
    DRAFTER,
    leased,
    promoted,
    prompts_of,
    read,
    registered,
    stored,
    worse_when_fitted,
)
from tests.support.telemetry import TEMPERATURES, synthetic_columns, synthetic_records

GAMMA = 3


def drafter_with(database: Database, records: AcceptanceRecords, **options: Any) -> Job:
    """A drafter with these rows, and a leased recalibration of it."""
    registered(database, records.gamma)
    stored(database, records, batches=3)
    return leased(database, **options)


def open_kinds(database: Database) -> list[str]:
    events = read(database, list_events, drafter=DRAFTER, state="open")
    return [event.kind for event in events]


def refused(database: Database, job: Job) -> dict[str, Any]:
    """The result of a recalibration that must be refused and must change nothing."""
    before = read(database, aliases, DRAFTER)
    outcome = recalibrate(database, job)
    assert (outcome.status, outcome.revision) == ("refused", None)
    done = read(database, get_job, job.id)
    assert (done.status, done.lease_owner, done.error) == ("refused", None, None)
    assert done.result["reason"] == outcome.result["reason"]
    assert read(database, aliases, DRAFTER) == before
    assert len(read(database, list_revisions, DRAFTER)) == 1
    return dict(done.result)


@pytest.mark.slow
def test_a_better_fit_becomes_the_challenger(database: Database) -> None:
    records = synthetic_records(8000, gamma=GAMMA, prompts=200)
    job = drafter_with(database, records)
    outcome = recalibrate(database, job)
    assert (outcome.status, outcome.revision) == ("succeeded", 1)
    found = read(database, aliases, DRAFTER)
    assert (found.champion, found.challenger) == (0, 1)
    revision = read(database, get_revision, DRAFTER, 1)
    assert revision.calibration.status is ServingStatus.FITTED
    assert revision.calibration.temperatures == pytest.approx(TEMPERATURES[:GAMMA], rel=0.25)
    assert revision.calibration.digest == outcome.result["digest"]
    assert revision.created_by == "worker"
    done = read(database, get_job, job.id)
    assert (done.status, done.result["revision"], done.result["refusal"]) == ("succeeded", 1, None)
    assert open_kinds(database) == []
    assert "challenger" in {event.kind for event in read(database, list_events)}


@pytest.mark.slow
def test_evidence_and_provenance_say_what_the_numbers_rest_on(database: Database) -> None:
    records = synthetic_records(6000, gamma=GAMMA, prompts=200)
    registered(database, GAMMA)
    batches = stored(database, records, batches=4)
    recalibrate(database, leased(database))
    revision = read(database, get_revision, DRAFTER, 1)
    evidence = revision.calibration.evidence
    held_out = evidence["held_out"]
    assert held_out["champion"] == 0
    assert held_out["split"]["kind"] == "prompt"
    assert held_out["split"]["fit_rows"] + held_out["split"]["judged_rows"] == 6000
    assert held_out["survival_ece"]["after"] < held_out["survival_ece"]["before"]
    assert held_out["survival_log_loss"]["after"] < held_out["survival_log_loss"]["before"]
    for side in ("before", "after"):
        error = held_out["block_error"][side]
        assert 0.0 <= error["low"] <= error["value"] <= error["high"]
    assert [entry["position"] for entry in held_out["positions"]] == [1, 2, 3]
    for entry in held_out["positions"]:
        assert entry["effective_rows"] <= entry["rows"]
        assert entry["debiased_error"]["after"]["low"] <= entry["debiased_error"]["after"]["high"]
    assert evidence["window"]["rows"] == 6000
    assert (evidence["window"]["first_batch"], evidence["window"]["last_batch"]) == (
        batches[0],
        batches[-1],
    )
    assert set(evidence["versions"]) == {"python", "dspark-calib", "numpy", "scipy"}
    assert len(evidence["positions"]) == GAMMA  # the estimator's own, which SGLang's file shows
    assert revision.provenance["window"]["batches"] == 4
    assert revision.provenance["kind"] == "recalibration"
    assert revision.calibration.fitted_at is not None


@pytest.mark.slow
def test_summary_is_plain_sentences(database: Database) -> None:
    job = drafter_with(database, synthetic_records(6000, gamma=GAMMA, prompts=200))
    summary = recalibrate(database, job).result["summary"]
    assert summary[0].startswith("Fitted on ")
    assert summary[0].endswith("other prompts.")
    assert "under revision 0" in summary[1]
    assert "falls from" in summary[3]


def test_r24_a_fit_that_is_worse_elsewhere_leaves_the_champion(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    job = drafter_with(database, worse_when_fitted(), minimum_rows=60, method="sts")
    with caplog.at_level(logging.WARNING):
        result = refused(database, job)
    assert result["refusal"] == "not_better"
    error = result["evidence"]["held_out"]["survival_ece"]
    assert error["before"] == pytest.approx(0.0496, abs=5e-4)
    assert error["after"] == pytest.approx(0.0805, abs=2e-3)
    assert "goes from 0.0496" in result["reason"]
    assert any("not_better" in record.getMessage() for record in caplog.records)
    assert open_kinds(database) == ["recalibration_refused"]


def test_numbers_that_cannot_be_fitted_are_named_in_the_refusal(database: Database) -> None:
    """R22's kind: logits of +1.5 everywhere and a rate of .3, which no temperature reaches."""
    rows = 4000
    records = AcceptanceRecords.from_columns(
        1,
        {
            "confidence_logits": np.full((rows, 1), 1.5, dtype=np.float32),
            "verified": np.ones(rows, dtype=np.uint8),
            "accepted": (np.arange(rows) % 10 < 3).astype(np.uint8),
            "prompt": np.array([f"p{row // 40}" for row in range(rows)], dtype=object),
        },
    )
    result = refused(database, drafter_with(database, records, method="temperature"))
    assert "Position 1: Best residual 0.2" in result["reason"]
    assert "temperature alone cannot fix" in result["reason"]


def test_r58_eight_rows_are_insufficient(database: Database) -> None:
    columns = synthetic_columns(8, gamma=GAMMA, prompts=8) | {"soft_labels": None}
    columns["accepted"] = np.minimum(columns["verified"], np.array([1, 0, 0, 1, 0, 1, 0, 0]))
    columns = {name: values for name, values in columns.items() if values is not None}
    job = drafter_with(database, AcceptanceRecords.from_columns(GAMMA, columns))
    result = refused(database, job)
    assert result["refusal"] == "insufficient"
    assert result["reason"].startswith("8 usable rows; at least 1000")


def test_r61_a_window_of_nothing_is_a_data_fault_and_no_crash(database: Database) -> None:
    registered(database, GAMMA)
    result = refused(database, leased(database))
    assert result["refusal"] == "no_rows"
    assert result["window"]["rows"] == 0
    assert open_kinds(database) == ["data_quality"]


def test_excluded_rows_are_counted_and_never_fitted(database: Database) -> None:
    records = synthetic_records(400, gamma=GAMMA).with_flag(Flag.WARMUP, np.arange(400))
    result = refused(database, drafter_with(database, records))
    assert result["refusal"] == "no_rows"
    assert "'warmup': 400" in result["reason"]
    assert result["window"]["excluded"]["warmup"] == 400


@pytest.mark.slow
def test_probabilities_sent_as_logits_are_refused(database: Database) -> None:
    columns = synthetic_columns(2000, gamma=GAMMA)
    columns["confidence_logits"] = 1.0 / (1.0 + np.exp(-columns["confidence_logits"]))
    job = drafter_with(database, AcceptanceRecords.from_columns(GAMMA, columns))
    result = refused(database, job)
    assert result["refusal"] == "looks_like_probabilities"
    assert "raw output" in result["reason"]
    assert open_kinds(database) == ["data_quality"]


def test_r34_inconsistent_labels_block_the_fit(database: Database) -> None:
    rows = 5000
    draw = np.random.default_rng(1)
    records = AcceptanceRecords.from_columns(
        1,
        {
            "confidence_logits": draw.normal(1.0, 1.0, (rows, 1)).astype(np.float32),
            "verified": np.ones(rows, dtype=np.uint8),
            "accepted": (draw.random(rows) < 0.61).astype(np.uint8),
            "soft_labels": np.full((rows, 1), 0.82, dtype=np.float32),
            "prompt": np.array([f"p{row % 50}" for row in range(rows)], dtype=object),
        },
    )
    result = refused(database, drafter_with(database, records))
    assert result["refusal"] == "label_inconsistent"
    assert "mean soft label 0.82" in result["reason"]


def test_a_first_position_that_never_fails_holds_the_fit(database: Database) -> None:
    columns = synthetic_columns(2000, gamma=GAMMA)
    columns["accepted"] = np.maximum(columns["accepted"], 1)
    del columns["soft_labels"]
    job = drafter_with(database, AcceptanceRecords.from_columns(GAMMA, columns))
    assert refused(database, job)["refusal"] == "first_position_always_accepted"


@pytest.mark.slow
def test_a_repeat_on_the_same_rows_is_not_better(database: Database) -> None:
    job = drafter_with(database, synthetic_records(6000, gamma=GAMMA, prompts=200))
    recalibrate(database, job)
    promoted(database, 1)
    outcome = recalibrate(database, leased(database))
    assert outcome.result["refusal"] == "not_better"
    assert "same numbers as revision 1" in outcome.result["reason"]
    held_out = outcome.result["evidence"]["held_out"]
    assert held_out["champion"] == 1
    assert held_out["survival_ece"]["before"] == held_out["survival_ece"]["after"]


@pytest.mark.slow
def test_a_new_fit_is_compared_with_the_champion(database: Database) -> None:
    """Traffic that needs T = 1.25 … 1.45 under a champion fitted to something else."""
    registered(database, GAMMA)
    columns = synthetic_columns(6000, gamma=GAMMA, prompts=200)
    other = columns | {"confidence_logits": columns["confidence_logits"] * 2.0}
    stored(database, AcceptanceRecords.from_columns(GAMMA, other))
    recalibrate(database, leased(database))
    promoted(database, 1)
    stored(database, synthetic_records(8000, gamma=GAMMA, prompts=200, seed=5))
    outcome = recalibrate(database, leased(database, rows=8000))
    assert outcome.revision == 2
    held_out = outcome.result["evidence"]["held_out"]
    assert held_out["champion"] == 1
    assert held_out["survival_ece"]["before"] > 0.03
    assert "against revision 1" in outcome.result["reason"]


@pytest.mark.slow
def test_success_settles_what_was_refused_before(database: Database) -> None:
    registered(database, GAMMA)
    recalibrate(database, leased(database))
    recalibrate(database, leased(database))
    (event,) = read(database, list_events, drafter=DRAFTER, state="open")
    assert (event.kind, event.count) == ("data_quality", 2)
    stored(database, synthetic_records(6000, gamma=GAMMA, prompts=200))
    recalibrate(database, leased(database))
    assert open_kinds(database) == []


@pytest.mark.slow
def test_without_prompts_and_requests_the_split_is_stated(database: Database) -> None:
    columns = synthetic_columns(6000, gamma=GAMMA, prompts=200)
    del columns["prompt"], columns["request"]
    job = drafter_with(database, AcceptanceRecords.from_columns(GAMMA, columns))
    outcome = recalibrate(database, job)
    split = outcome.result["evidence"]["held_out"]["split"]
    assert (split["kind"], split["fit_rows"], split["judged_rows"]) == ("later_rows", 3000, 3000)
    assert "later rows" in outcome.result["summary"][0]


def test_conditional_likelihood_by_option(database: Database) -> None:
    job = drafter_with(
        database, synthetic_records(9000, gamma=GAMMA, prompts=200), method="temperature"
    )
    outcome = recalibrate(database, job)
    assert outcome.status == "succeeded"
    assert read(database, get_revision, DRAFTER, 1).calibration.method == "temperature"


@pytest.mark.slow
def test_a_named_window_fits_the_same_numbers_again(database: Database) -> None:
    """What the provenance says of the window is enough to make the revision once more."""
    registered(database, GAMMA)
    ids = stored(database, synthetic_records(9000, gamma=GAMMA, prompts=200), batches=3)
    recalibrate(database, leased(database, rows=5000, reason="first"))
    first = read(database, get_revision, DRAFTER, 1)
    window = first.provenance["window"]
    assert (window["first_batch"], window["last_batch"], window["rows"]) == (ids[1], ids[2], 5000)
    assert (first.provenance["reason"], first.provenance["champion"]) == ("first", 0)
    later = synthetic_records(3000, gamma=GAMMA, prompts=200, seed=4)
    stored(database, later)  # rows that the window does not hold
    frozen = {"from_batch": window["first_batch"], "through_batch": window["last_batch"]}
    outcome = recalibrate(database, leased(database, rows=window["rows"], window=frozen))
    again = read(database, get_revision, DRAFTER, 2)
    assert outcome.result["window"]["digest"] == window["digest"]
    assert again.calibration.digest == first.calibration.digest
    assert again.provenance["model"] == first.provenance["model"]
    newest = recalibrate(database, leased(database, rows=5000))
    assert newest.result["window"]["digest"] != window["digest"]


def test_a_window_of_batches_that_are_gone_is_refused(database: Database) -> None:
    registered(database, GAMMA)
    (only,) = stored(database, synthetic_records(100, gamma=GAMMA))
    window = {"from_batch": only + 1, "through_batch": only + 5}
    assert refused(database, leased(database, window=window))["refusal"] == "no_rows"


@pytest.mark.slow
def test_models_are_stored_with_the_revision(database: Database) -> None:
    job = drafter_with(database, synthetic_records(9000, gamma=GAMMA, prompts=200))
    recalibrate(database, job)
    revision = read(database, get_revision, DRAFTER, 1)
    model = RevisionModel.of(revision)
    assert model.pooled.slopes == pytest.approx([1 / t for t in TEMPERATURES[:GAMMA]], rel=0.2)
    assert all(0.0 < (error or 0.0) < 0.02 for error in model.confidence_errors)
    assert "model" not in revision.calibration.evidence  # no engine polls it


@pytest.mark.slow
def test_the_guard_publishes_where_the_job_says_so(database: Database) -> None:
    registered(database, GAMMA)
    stored(database, synthetic_records(6000, gamma=GAMMA, prompts=200))
    outcome = recalibrate(database, leased(database, promote="guard"), valid_for_seconds=60.0)
    assert (outcome.revision, outcome.publication) == (1, 2)
    found = read(database, aliases, DRAFTER)
    assert (found.champion, found.challenger, found.previous) == (1, None, 0)
    published = read(database, current_publication, DRAFTER)
    assert json.loads(published.document)["revision"] == 1
    assert json.loads(published.document)["valid_until"] is not None
    assert published.valid_until == pytest.approx(published.published_at + 60.0)
    again = recalibrate(database, leased(database, promote="guard"))
    assert again.status == "refused"
    assert read(database, aliases, DRAFTER).champion == 1


def test_an_option_that_does_not_exist_changes_nothing(database: Database) -> None:
    job = drafter_with(database, synthetic_records(100, gamma=GAMMA), speed=1)
    with pytest.raises(ConfigurationError, match="speed"):
        recalibrate(database, job)
    assert read(database, get_job, job.id).status == "running"


def test_a_lost_lease_leaves_nothing(database: Database) -> None:
    job = drafter_with(database, synthetic_records(6000, gamma=GAMMA, prompts=200))
    database.run(lambda connection: release(connection, job))
    with pytest.raises(LeaseLostError):
        recalibrate(database, job)
    assert len(read(database, list_revisions, DRAFTER)) == 1
    assert read(database, aliases, DRAFTER).challenger is None
    assert read(database, list_events, state="open") == []


def test_prompts_of_the_helper_lie_where_they_should() -> None:
    assert set(prompts_of(judged=True, count=5)).isdisjoint(prompts_of(judged=False, count=5))


def test_sketches_are_fitted_when_their_rows_are_gone_and_the_gate_judges(
    database: Database,
) -> None:
    """Retention has removed what an hour counted; rows that come promote its fit."""
    registered(database, 7)
    stored(database, rows(1, 2000, scale=1.6), batches=2)
    loop = ClosedLoop(database, "loop", LoopSettings(refit_rows=10**9, minimum_rows=10**6))
    assert loop.turn(DRAFTER)
    folded = read(database, monitor_states.load, DRAFTER).consumed_through
    database.run(lambda c: c.execute(delete(tables.telemetry_batches)))
    options: dict[str, Any] = {"source": "sketches", "method": "temperature", "hours": 1}
    outcome = recalibrate(database, leased(database, **options, half_life_hours=6.0))
    assert (outcome.status, outcome.revision) == ("succeeded", 1)
    revision = read(database, get_revision, DRAFTER, 1)
    assert revision.calibration.temperatures[:2] == pytest.approx([1.6, 1.6], rel=0.12)
    assert revision.provenance["source"] == "sketches"
    (hour,) = revision.provenance["sketches"]["hours"]
    assert (hour["rows"], hour["weight"]) == (2000, 1.0)
    assert revision.provenance["window"]["last_batch"] == folded
    assert revision.calibration.evidence["sketches"]["half_life_hours"] == 6.0
    assert reproduce(database, DRAFTER, 1).outcome == "window_gone"
    stored(database, rows(2, 1500, scale=1.6, first_step=2000), batches=3)
    loop.turn(DRAFTER)
    assert read(database, aliases, DRAFTER).champion == 1


def test_without_sketches_the_reason_says_who_counts_them(database: Database) -> None:
    job = drafter_with(database, synthetic_records(200, gamma=GAMMA), source="sketches")
    result = refused(database, job)
    assert result["refusal"] == "no_rows"
    assert "closed loop has counted no row" in result["reason"]
