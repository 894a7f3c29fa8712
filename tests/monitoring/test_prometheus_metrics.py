"""The exposition: parsed by Prometheus' own parsers, cheap, and the same on every replica."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import prometheus_client
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as plain

from monitoring.metrics_catalogue import METRICS, PREFIX
from monitoring.prometheus_metrics import ServiceMetrics
from monitoring.store.database import Database
from monitoring.store.errors import StoreUnavailableError
from tests.monitoring.store.store_fixtures import registered

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


@pytest.fixture
def sqlite(tmp_path: Path, sqlite_template: Path) -> Any:
    shutil.copy(sqlite_template, tmp_path / "store.db")
    database = Database.open(f"sqlite:///{tmp_path / 'store.db'}")
    registered(database)
    yield database
    database.close()


def metrics(**more: Any) -> ServiceMetrics:
    values = {"silent_after": 60.0, "most_drafters": 10, "refresh_seconds": 5.0, **more}
    return ServiceMetrics("1.2.3", **values)


def samples(text: bytes, parser: Any = plain) -> dict[str, float]:
    families = list(parser(text.decode()))
    return {
        f"{sample.name}{sorted(sample.labels.items())}": sample.value
        for family in families
        for sample in family.samples
    }


def test_both_forms_parse_and_agree(sqlite: Database) -> None:
    shown = metrics()
    shown.refresh(sqlite)
    shown.count_poll(304)
    text, media = shown.render(None)
    assert media.startswith("text/plain")
    other, other_media = shown.render(OPENMETRICS)
    assert other_media.startswith("application/openmetrics-text")
    assert other.endswith(b"# EOF\n")
    ours = {k: v for k, v in samples(text).items() if k.startswith(PREFIX)}
    theirs = {k: v for k, v in samples(other, openmetrics).items() if k.startswith(PREFIX)}
    assert ours == theirs
    assert ours["dspark_calibration_publication[('drafter', 'code')]"] == 1.0
    assert ours["dspark_calibration_polls_total[('status', '304')]"] == 1.0
    assert ours["dspark_calibration_polls_total[('status', '200')]"] == 0.0
    assert ours["dspark_calibration_build_info[('version', '1.2.3')]"] == 1.0


def test_what_is_shown_has_the_labels_of_the_table(sqlite: Database) -> None:
    shown = metrics()
    shown.refresh(sqlite)
    labels = {spec.full_name: set(spec.labels) for spec in METRICS}
    for family in plain(shown.render()[0].decode()):
        for sample in family.samples:
            if sample.name.startswith(PREFIX):
                assert set(sample.labels) == labels[sample.name], sample.name


def test_replicas_agree_on_the_database_and_count_for_themselves(sqlite: Database) -> None:
    first, second = metrics(), metrics()
    first.count_poll(200)
    for shown in (first, second):
        shown.refresh(sqlite)
    of_database = {
        spec.full_name
        for spec in METRICS
        if spec.source == "database" and spec.name != "state_timestamp_seconds"
    }

    def shared(shown: ServiceMetrics) -> dict[str, float]:
        every = samples(shown.render()[0])
        return {key: value for key, value in every.items() if key.partition("[")[0] in of_database}

    assert shared(first) == shared(second) != {}
    assert samples(second.render()[0])["dspark_calibration_polls_total[('status', '200')]"] == 0


def test_unknown_statuses_share_one_label() -> None:
    shown = metrics()
    for status in (418, 599, 200):
        shown.count_poll(status)
    found = samples(shown.render()[0])
    assert found["dspark_calibration_polls_total[('status', 'other')]"] == 2


def test_the_database_is_asked_when_due_and_its_past_is_dropped(sqlite: Database) -> None:
    seconds = [0.0]
    shown = metrics(monotonic=lambda: seconds[0])
    assert shown.is_due
    shown.refresh(sqlite)
    assert not shown.is_due
    seconds[0] = 5.0
    assert shown.is_due
    sqlite.close()
    away = Database.open(f"sqlite:///{Path(sqlite.engine.url.database or '')}.gone/none.db")
    with pytest.raises(StoreUnavailableError):
        shown.refresh(away)
    away.close()
    found = samples(shown.render()[0])
    assert found["dspark_calibration_store_up[]"] == 0.0
    assert "dspark_calibration_publication[('drafter', 'code')]" in found
    seconds[0] = 61.0
    assert "dspark_calibration_publication[('drafter', 'code')]" not in samples(shown.render()[0])


def test_gauges_of_the_process_are_read_at_the_scrape() -> None:
    shown = metrics()
    held = [3.0]
    shown.watch("polls_held", lambda: held[0])
    assert samples(shown.render()[0])["dspark_calibration_polls_held[]"] == 3.0
    held[0] = 4.0
    found = samples(shown.render()[0])
    assert found["dspark_calibration_polls_held[]"] == 4.0
    assert "process_resident_memory_bytes[]" in found


def test_the_library_s_global_registry_stays_empty_of_us() -> None:
    metrics()
    names = {family.name for family in prometheus_client.REGISTRY.collect()}
    assert not any(name.startswith(PREFIX) for name in names)
