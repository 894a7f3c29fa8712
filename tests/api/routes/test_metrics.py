"""``/metrics`` of the whole application: who may read it, what it counts, how seldom it reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from monitoring.store.database import Database
from monitoring.store.tokens import create_token
from tests.support.service import Service, empty_database, running_service


def scraped(service: Service, **headers: str) -> dict[tuple[str, ...], float]:
    answer = service.client.get("/metrics", headers=headers)
    assert answer.status_code == 200, answer.text
    return {
        (sample.name.removeprefix("dspark_calibration_"), *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def test_polls_are_counted_by_status(service: Service) -> None:
    service.register()
    tag = service.poll().headers["ETag"]
    before = scraped(service)
    service.poll()
    service.poll(headers={"If-None-Match": tag})
    service.poll(headers={"If-None-Match": tag})
    service.poll("nobody")
    service.poll(gamma=8)
    after = scraped(service)
    more = {
        status: after["polls_total", status] - before["polls_total", status]
        for status in ("200", "304", "404", "409", "503")
    }
    assert more == {"200": 1, "304": 2, "404": 1, "409": 1, "503": 0}


def test_the_database_is_read_once_in_a_while_not_at_every_scrape(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.register()
    asked = []
    refresh = service.app.state.metrics.refresh

    def counted(database: Database) -> None:
        asked.append(database)
        refresh(database)

    monkeypatch.setattr(service.app.state.metrics, "refresh", counted)
    monkeypatch.setattr(service.app.state.metrics, "_tried_at", None)
    for _ in range(20):
        assert scraped(service)["drafters",] == 1
    assert len(asked) == 1


def test_the_form_follows_accept(service: Service) -> None:
    plain = service.client.get("/metrics")
    assert plain.headers["content-type"].startswith("text/plain; version=")
    accept = {"Accept": "application/openmetrics-text; version=1.0.0"}
    other = service.client.get("/metrics", headers=accept)
    assert other.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert other.text.endswith("# EOF\n")


def test_with_tokens_it_needs_the_scope_of_reports(tmp_path: Path) -> None:
    url = empty_database(tmp_path)
    database = Database.open(url)
    secrets: dict[str, Any] = {}
    with database.write() as connection:
        for scope in ("read:reports", "read:temperatures"):
            _, secrets[scope] = create_token(connection, scope.replace(":", "-"), [scope])
    database.close()
    with running_service(url) as service:
        statuses = {
            scope: service.client.get(
                "/metrics", headers={"Authorization": f"Bearer {secret}"}
            ).status_code
            for scope, secret in {**secrets, "none": "wrong"}.items()
        }
    assert statuses == {"read:reports": 200, "read:temperatures": 403, "none": 401}
