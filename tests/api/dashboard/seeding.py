"""Drafters, engines, drift documents and reports, stored for pages by the code of the service."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from api.service_demo.replay import shipped_key
from calib.calibration import Calibration
from calib.formats.arrow import read_parquet
from calib.records import AcceptanceRecords
from calib.shipped import shipped_telemetry
from monitoring.ingest import payload_of
from monitoring.published_document import document_maker, iso_time
from monitoring.store import drafters, engines, jobs, monitor_states, publications, revisions
from monitoring.store.database import Database
from monitoring.store.engines import EngineSighting
from monitoring.store.events import Event, open_event
from monitoring.store.telemetry import BatchToStore, store_batches
from monitoring.telemetry_report import report_job


def shipped_rows(rows: int) -> AcceptanceRecords:
    """Rows of the telemetry that comes with the package, in the order of their recording."""
    found = read_parquet(shipped_telemetry(), 7)
    return found.select(np.arange(min(rows, len(found))))


def register(database: Database, *names: str, target: str | None = None) -> None:
    """Register drafters with the key of the shipped one, or for another target."""
    key = shipped_key() if target is None else replace(shipped_key(), target_model=target)
    with database.write() as connection:
        for name in names:
            drafters.register(connection, name, key, actor="test", document=document_maker())


def add_revision(
    database: Database,
    name: str,
    temperatures: Sequence[float],
    *,
    evidence: dict[str, Any] | None = None,
    reason: str = "from the lab",
    promote: bool = False,
    challenger: bool = False,
) -> int:
    """Store numbers made by hand; their number."""
    with database.write() as connection:
        drafter = drafters.get(connection, name)
        calibration = Calibration.from_temperatures(
            temperatures, gamma=drafter.gamma, key=drafter.key
        )
        stored = revisions.add_revision(
            connection,
            name,
            calibration,
            provenance={"origin": "manual", "reason": reason, **(evidence or {})},
            actor="researcher",
        )
        if promote:
            publications.publish(
                connection,
                name,
                stored.number,
                expected_version=None,
                actor="researcher",
                reason=reason,
                document=document_maker(),
            )
        if challenger:
            revisions.set_challenger(connection, name, stored.number, actor="researcher")
    return stored.number


def store_rows(database: Database, name: str, records: AcceptanceRecords) -> None:
    batch = BatchToStore(
        drafter=name,
        engine=None,
        payload=payload_of(records),
        rows=len(records),
        excluded=0,
        received_at=database.clock(),
        idempotency=None,
        answer=b"{}",
    )
    database.run(lambda connection: store_batches(connection, [batch]))


def make_report(database: Database, name: str) -> None:
    """Order a report and do it, as the worker does."""
    database.run(lambda connection: jobs.enqueue(connection, name, "report", {}, actor="test"))
    leased = database.run(
        lambda connection: jobs.lease_next(connection, database, "test", seconds=600)
    )
    if leased is None:
        raise AssertionError("no job")
    report_job(database, leased)


def see_engines(
    database: Database,
    name: str,
    count: int,
    *,
    publication: int,
    revision: int = 0,
    behind: int = 0,
    silent: int = 0,
    prefix: str = "engine-",
) -> None:
    """So many engines, of which the first are silent and the next behind."""
    now = database.clock()
    seen = [
        EngineSighting(
            name,
            f"{prefix}{index + 1}",
            "0.1.0",
            publication - (1 if silent <= index < silent + behind else 0),
            revision,
            "fresh",
            now - (900.0 if index < silent else 5.0),
        )
        for index in range(count)
    ]
    database.run(lambda connection: engines.record_sightings(connection, seen))


def raise_event(database: Database, title: str, **more: Any) -> Event:
    values = {"kind": "drift", "severity": "critical", "dedup_key": title, **more}
    kind, severity = values.pop("kind"), values.pop("severity")
    return database.run(lambda connection: open_event(connection, kind, severity, title, **values))


def drift_test(position: int | None, log10: float, **more: Any) -> dict[str, Any]:
    """One test of a drift document, in the words of its contract."""
    status = "alarm" if log10 >= 6 else "warning" if log10 >= 5 else "calm"
    return {
        "scope": "pooled" if position is None else "position",
        "position": position,
        "segment": None,
        "detector": "likelihood_ratio",
        "quantity": "conditional",
        "evidence": 10.0 ** min(log10, 300.0),
        "evidence_log10": log10,
        "threshold_log10": {"warn": 5.0, "act": 6.0},
        "status": status,
        "rows": 20_000,
        "tolerance": 0.01,
        "mean_residual": -0.004 * max(log10, 0.0),
        "change_point": {"row": 1230, "since": None} if status != "calm" else None,
        **more,
    }


def drift_document(name: str, now: float, *, peak: float = 1.5, **more: Any) -> dict[str, Any]:
    """A drift document whose strongest evidence has grown to ``10 ** peak``."""
    status = "drift" if peak >= 6 else "warning" if peak >= 5 else "calibrated"
    history = [
        {
            "at": iso_time(now - 60.0 * (60 - step)),
            "rows": 400 * step,
            "evidence_log10_max": max(0.0, peak * (step / 60) ** 3 + 0.4 * math.sin(step)),
            "ece": 0.012 + 0.004 * peak * (step / 60) ** 3,
            "ece_low": 0.006 + 0.003 * peak * (step / 60) ** 3,
            "ece_high": 0.021 + 0.005 * peak * (step / 60) ** 3,
        }
        for step in range(1, 61)
    ]
    segment = {"scope": "segment", "segment": {"domain": "chat"}, "detector": "betting"}
    return {
        "drafter": name,
        "revision": 0,
        "publication": 1,
        "status": status,
        "updated_at": iso_time(now),
        "consumed_through": 1,
        "rows": 24_000,
        "rows_total": 31_006,
        "levels": {
            "warn": {"threshold": 1e5, "false_alarms_per_million_rows": 10.0},
            "act": {"threshold": 1e6, "false_alarms_per_million_rows": 1.0},
        },
        "tests": [
            *(drift_test(k, peak if k == 3 else 0.3 * k - 0.5) for k in range(1, 8)),
            drift_test(None, peak * 0.7),
            drift_test(None, peak * 0.5, **segment),
        ],
        "history": history,
        "data_quality": [
            {
                "monitor": "invalid_share",
                "status": "calm",
                "value": 0.0,
                "limit": 0.05,
                "message": "",
                "engine": None,
            },
        ],
        "dependence": {
            "intraclass": 0.004,
            "design_effect": 1.2,
            "requests": 900,
            "rows": 24_000,
            "setting": 1.0,
        },
        "exploration": {"share": 0.005 if peak >= 5 else 0.0, "raised": peak >= 5},
        "explanations": {
            "psi": [{"position": 1, "value": 0.02}],
            "ks": [],
            "acceptance": {"reference": 0.62, "current": 0.55},
            "verified_length": {"reference": 4.1, "current": 3.9},
            "mix": {"domain=chat": {"reference": 0.31, "current": 0.64}},
        },
        "challenger": None,
        "watch": None,
        "cool_down_until": None,
        "last_decision": None,
        **more,
    }


def save_drift(database: Database, name: str, **more: Any) -> None:
    """Store a drift document as the loop does."""
    document = drift_document(name, database.clock(), **more)
    encoded = json.dumps(document).encode()
    database.run(
        lambda connection: monitor_states.save(
            connection, name, consumed_through=1, state=b"", document=encoded
        )
    )


def seed_fleet(database: Database, count: int, engines_in_all: int) -> None:
    """Many drafters of every status, and their engines."""
    peaks = (1.5, 0.4, 2.8, 5.3, 1.1, 6.8, 0.9, 3.3, 2.2, 0.1)
    names = [f"drafter-{index:03d}" for index in range(count)]
    register(database, *names, target="example-org/target-8b")
    now = database.clock()
    with database.write() as connection:
        for index, name in enumerate(names):
            document = drift_document(name, now, peak=peaks[index % len(peaks)])
            encoded = json.dumps(document).encode()
            monitor_states.save(connection, name, consumed_through=1, state=b"", document=encoded)
        seen = [
            EngineSighting(
                names[index % count],
                f"rack-{index % count}/engine-{index // count}",
                "0.1.0",
                1,
                0,
                "fresh",
                now - (9000.0 if index % 83 == 0 else 5.0),
            )
            for index in range(engines_in_all)
        ]
        engines.record_sightings(connection, seen)
