from __future__ import annotations

import pytest

from monitoring.store.errors import StoreUnavailableError
from tests.support.service import Service


def test_the_process_answers(service: Service) -> None:
    answer = service.client.get("/healthz")
    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})


def test_ready_means_that_every_part_is_well(service: Service) -> None:
    answer = service.client.get("/readyz")
    assert answer.status_code == 200
    assert answer.json()["status"] == "ready"
    assert set(answer.json()["checks"]) == {"database", "migrations", "publications"}


def test_a_part_that_is_not_well_is_named(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away() -> None:
        raise StoreUnavailableError("away")

    monkeypatch.setattr(service.database, "check", away)
    answer = service.client.get("/readyz")
    assert answer.status_code == 503
    body = answer.json()
    assert body["type"] == "/problems/not-ready"
    assert body["checks"]["database"] == {"ok": False, "detail": "StoreUnavailableError"}
    assert "database" in body["detail"]
    assert answer.headers["Retry-After"] == "1"
    assert service.client.get("/healthz").status_code == 200
