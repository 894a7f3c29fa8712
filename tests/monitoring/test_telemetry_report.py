from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import pytest
from PIL import Image

from calib.calibration import Calibration
from calib.cost_table import FlatCostTable
from calib.cost_table_files import dump_cost_table
from calib.prompt_split import split_by_prompt
from calib.record_schema import Flag
from monitoring.recalibration import recalibrate
from monitoring.reports.evaluation_report import evaluation_report
from monitoring.reports.throughput import throughput
from monitoring.store.cost_tables import put_cost_table
from monitoring.store.database import Database
from monitoring.store.errors import LeaseLostError, NotFoundError
from monitoring.store.jobs import get_job, lease_next, release
from monitoring.store.reports import PAGE_KIND, PICTURE_KIND, latest_report
from monitoring.store.revisions import add_revision, get_revision
from monitoring.telemetry_report import report_job, telemetry_report
from tests.monitoring.reports.page_reading import at_pointer, read_page
from tests.monitoring.worker_support import (
    DRAFTER,
    leased,
    ordered,
    promoted,
    read,
    registered,
    stored,
)
from tests.support.telemetry import synthetic_records

GAMMA = 3
PNG = b"\x89PNG\r\n"


def report(database: Database, **options: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(telemetry_report(database, DRAFTER, **options).document)
    return found


def fitted_and_promoted(database: Database) -> int:
    """A drafter whose champion was fitted on 6,000 rows; the id of the last batch of them."""
    registered(database, GAMMA)
    ids = stored(database, synthetic_records(6000, gamma=GAMMA, prompts=200), batches=3)
    recalibrate(database, leased(database))
    promoted(database, 1)
    return ids[-1]


def test_without_telemetry_there_is_a_reason_instead_of_numbers(database: Database) -> None:
    registered(database, GAMMA)
    found = report(database)
    assert (found["evaluation"], found["reason"], found["sentences"]) == (None, "no_rows", [])
    made = telemetry_report(database, DRAFTER)
    assert "There is nothing to judge yet: no rows." in read_page(made.page).text
    assert made.picture.startswith(PNG)
    assert found["window"]["rows"] == 0
    assert telemetry_report(database, DRAFTER).through_batch is None


def test_numbers_are_those_of_the_evaluation(database: Database) -> None:
    registered(database, GAMMA)
    records = synthetic_records(3000, gamma=GAMMA).with_flag(Flag.WARMUP, np.arange(10))
    stored(database, records, batches=2)
    found = report(database)
    champion = read(database, get_revision, DRAFTER, 0)
    expected = evaluation_report(records.fitting_rows(), champion.calibration)
    mean = found["evaluation"]["overall"]["raw"]["survival"]["mean"]
    assert mean["ece"] == pytest.approx(expected.overall.raw.report.survival.mean.ece, rel=1e-5)
    assert found["evaluation"]["rows"] == 2990
    assert found["window"]["excluded"]["warmup"] == 10
    assert found["telemetry"]["rows"] == 3000
    assert found["judged"]["rows"] == "all"
    assert any("Accepted length" in sentence for sentence in found["sentences"])


@pytest.mark.slow
def test_bins_are_kept_for_all_rows_and_left_out_for_slices(database: Database) -> None:
    registered(database, GAMMA)
    stored(database, synthetic_records(9000, gamma=GAMMA))
    found = report(database)["evaluation"]
    assert len(found["overall"]["raw"]["survival"]["positions"][0]["bins"]) == 15
    compared = [part["comparison"] for part in found["segments"] if part["comparison"]]
    assert compared
    for comparison in compared:
        assert "bins" not in comparison["raw"]["survival"]["positions"][0]
    assert len(telemetry_report(database, DRAFTER).document) < 400_000


@pytest.mark.slow
def test_rows_after_the_fit_judge_it_once_there_are_enough(database: Database) -> None:
    last = fitted_and_promoted(database)
    ids = stored(database, synthetic_records(1500, gamma=GAMMA, prompts=200, seed=7))
    found = report(database)
    assert found["judged"]["rows"] == "after_fit"
    assert (found["window"]["first_batch"], found["window"]["last_batch"]) == (ids[0], ids[0])
    assert ids[0] > last
    assert found["evaluation"]["rows"] == 1500


@pytest.mark.slow
def test_until_then_the_held_out_prompts_judge_it(database: Database) -> None:
    fitted_and_promoted(database)
    stored(database, synthetic_records(100, gamma=GAMMA, prompts=200, seed=7))
    found = report(database)
    assert found["judged"]["rows"] == "held_out"
    whole = synthetic_records(6000, gamma=GAMMA, prompts=200)
    held_out = split_by_prompt(whole).evaluation
    assert abs(found["evaluation"]["rows"] - len(held_out)) <= 100
    assert found["revision"] == 1


@pytest.mark.slow
def test_an_in_sample_report_says_so(database: Database) -> None:
    registered(database, GAMMA)
    records = synthetic_records(6000, gamma=GAMMA, prompts=200)
    columns = {k: v for k, v in records.columns().items() if k not in ("prompt", "request")}
    stored(database, type(records).from_columns(GAMMA, columns))
    recalibrate(database, leased(database))
    promoted(database, 1)
    found = report(database)
    assert found["judged"]["rows"] == "fitted"
    assert "too kind" in found["judged"]["note"]


def test_a_report_job_stores_what_it_made(database: Database) -> None:
    registered(database, GAMMA)
    ids = stored(database, synthetic_records(500, gamma=GAMMA))
    ordered(database, "report")
    job = database.run(lambda c: lease_next(c, database, "test"))
    assert job is not None
    result = report_job(database, job)
    assert result == {"revision": 0, "through_batch": ids[-1]}
    assert read(database, get_job, job.id).status == "succeeded"
    found = read(database, latest_report, DRAFTER)
    assert (found.revision, found.through_batch) == (0, ids[-1])
    document = json.loads(found.document)
    assert document["format"] == "dspark-calib/telemetry-report/1"
    page = read(database, latest_report, DRAFTER, PAGE_KIND)
    assert (page.revision, page.through_batch) == (0, ids[-1])
    shown = read_page(page.document)
    assert len(shown.numbers) > 60
    assert all(float(value) == at_pointer(document, at) for at, value, _ in shown.numbers)
    picture = read(database, latest_report, DRAFTER, PICTURE_KIND)
    with Image.open(io.BytesIO(picture.document)) as opened:
        assert opened.format == "PNG"
        assert min(opened.size) > 300


@pytest.mark.slow
def test_revisions_and_what_the_champion_is_worth_are_told(database: Database) -> None:
    registered(database, GAMMA)
    records = synthetic_records(1000, gamma=GAMMA)
    stored(database, records)
    assert report(database)["throughput"] == {"reason": "no cost table is known"}
    cost = FlatCostTable((1, 2, 4), (100.0, 90.0, 60.0), 64)
    document = json.loads(dump_cost_table(cost))
    database.run(lambda connection: put_cost_table(connection, DRAFTER, document, actor="test"))
    made = Calibration.from_temperatures([1.3, 1.2, 1.1], gamma=GAMMA)
    database.run(
        lambda connection: add_revision(connection, DRAFTER, made, provenance={}, actor="test")
    )
    promoted(database, 1)
    found = report(database)
    expected = throughput(records.fitting_rows(), made, cost).to_dict()
    for side in ("raw", "calibrated"):
        theta = expected[side]["theta"]
        assert found["throughput"][side]["theta"] == pytest.approx(theta, rel=1e-5)
    assert [entry["temperatures"] for entry in found["revisions"]] == [
        [1.0, 1.0, 1.0],
        [1.3, 1.2, 1.1],
    ]
    assert found["headline"] in read_page(telemetry_report(database, DRAFTER).page).text


def test_a_lost_lease_stores_nothing(database: Database) -> None:
    registered(database, GAMMA)
    ordered(database, "report")
    job = database.run(lambda c: lease_next(c, database, "test"))
    assert job is not None
    database.run(lambda connection: release(connection, job))
    with pytest.raises(LeaseLostError):
        report_job(database, job)
    assert read(database, latest_report, DRAFTER) is None


def test_an_unknown_drafter_is_named(database: Database) -> None:
    with pytest.raises(NotFoundError, match="nobody"):
        telemetry_report(database, "nobody")
