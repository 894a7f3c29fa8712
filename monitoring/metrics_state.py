"""What the database says, as samples of metrics: one snapshot, read in a few small queries.

Reports and drift documents are read again only when they are new: a cache keeps their numbers.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import Connection, and_, case, func, select

from monitoring.metrics_catalogue import MOST_POSITIONS
from monitoring.store import tables
from monitoring.store.alert_outbox import receiver_totals
from monitoring.store.database import current_time
from monitoring.store.silences import list_silences
from monitoring.store.tracking_outbox import totals

__all__ = ["MetricsCache", "Samples", "read_samples"]

Samples = dict[str, dict[tuple[str, ...], float]]
"""Values by metric (without prefix) and label values."""

_VIEWS: Final = ("conditional", "survival")
_SIDES: Final = {"raw": "identity", "calibrated": "champion"}
_STATUSES: Final = ("collecting", "calibrated", "warning", "drift", "held")
_DETECTORS: Final = ("likelihood_ratio", "betting")
_SCOPES: Final = ("pooled", "position", "segment")
_SEVERITIES: Final = ("info", "warning", "critical")


@dataclass(slots=True)
class MetricsCache:
    """Numbers of documents that do not change, by drafter, with what names the document."""

    reports: dict[str, tuple[int, Samples]] = field(default_factory=dict)
    monitors: dict[str, tuple[float, Samples]] = field(default_factory=dict)
    publications: dict[str, tuple[int, Samples]] = field(default_factory=dict)

    def keep_only(self, names: Iterable[str]) -> None:
        """Forget every other drafter."""
        kept = set(names)
        for held in (self.reports, self.monitors, self.publications):
            for name in held.keys() - kept:
                del held[name]


def read_samples(
    connection: Connection,
    cache: MetricsCache,
    *,
    silent_after: float,
    most_drafters: int,
) -> Samples:
    """The samples of every metric of the database.

    Args:
        connection: one snapshot.
        cache: kept by the caller from one reading to the next.
        silent_after: age of the last poll from which an engine counts as silent, seconds.
        most_drafters: drafters with metrics of their own, the first ones by name.
    """
    found: Samples = defaultdict(dict)
    columns = tables.drafters.c
    registered = connection.execute(select(func.count()).select_from(tables.drafters)).scalar_one()
    rows = connection.execute(select(tables.drafters).order_by(columns.name).limit(most_drafters))
    drafters = list(rows)
    names = [row.name for row in drafters]
    cache.keep_only(names)
    found["drafters"][()] = registered
    found["drafters_left_out"][()] = registered - len(drafters)
    found["state_timestamp_seconds"][()] = current_time(connection)
    for row in drafters:
        found["publication"][row.name,] = row.publication
        for alias in ("champion", "challenger", "previous"):
            number = getattr(row, alias)
            if number is not None:
                found["revision_info"][row.name, alias, str(number)] = 1.0
    _publications(connection, cache, names, found)
    _telemetry(connection, names, found)
    _engines(connection, names, silent_after, found)
    _jobs(connection, names, found)
    _events(connection, names, found)
    _reports(connection, cache, names, found)
    _monitors(connection, cache, names, found)
    _delivery(connection, found)
    return dict(found)


def _publications(
    connection: Connection, cache: MetricsCache, names: Sequence[str], found: Samples
) -> None:
    published, drafters = tables.publications.c, tables.drafters.c
    newest = and_(published.drafter == drafters.name, published.number == drafters.publication)
    query = select(published.drafter, published.number, published.published_at).join(
        tables.drafters, newest
    )
    for row in connection.execute(query.where(published.drafter.in_(names))).all():
        known = cache.publications.get(row.drafter)
        if known is None or known[0] != row.number:
            document = connection.execute(
                select(published.document).where(
                    published.drafter == row.drafter, published.number == row.number
                )
            ).scalar_one()
            known = (row.number, _temperatures(row.drafter, document))
            cache.publications[row.drafter] = known
        found["publication_timestamp_seconds"][row.drafter,] = row.published_at
        _merge(found, known[1])


def _temperatures(drafter: str, document: bytes) -> Samples:
    served = _parsed(document).get("temperatures")
    values = served[:MOST_POSITIONS] if isinstance(served, list) else []
    return {"temperature": {(drafter, str(k)): value for k, value in enumerate(values, 1)}}


def _telemetry(connection: Connection, names: Sequence[str], found: Samples) -> None:
    table = tables.telemetry_counters
    for row in connection.execute(select(table).where(table.c.drafter.in_(names))):
        rows = found["telemetry_rows_total"]
        rows[row.drafter, "usable"] = row.rows - row.excluded
        rows[row.drafter, "excluded"] = row.excluded
        rows[row.drafter, "rejected"] = row.rejected
        rows[row.drafter, "duplicate"] = row.duplicates
        found["telemetry_batches_total"][row.drafter,] = row.batches
        found["telemetry_stored_bytes"][row.drafter,] = row.stored_bytes
        if row.last_received_at is not None:
            last = found["telemetry_last_received_timestamp_seconds"]
            last[row.drafter,] = row.last_received_at


def _engines(
    connection: Connection, names: Sequence[str], silent_after: float, found: Samples
) -> None:
    engines, drafters = tables.engines.c, tables.drafters.c
    status = case(
        (engines.seen_at < current_time(connection) - silent_after, "silent"),
        (engines.applied_publication.is_(None), "unreported"),
        (engines.applied_publication >= drafters.publication, "on_champion"),
        else_="behind",
    ).label("status")
    query = (
        select(engines.drafter, status, func.count().label("number"), func.max(engines.seen_at))
        .join(tables.drafters, drafters.name == engines.drafter)
        .where(engines.drafter.in_(names))
        .group_by(engines.drafter, status)
    )
    seen: dict[str, float] = {}
    for name in names:
        for state in ("on_champion", "behind", "silent", "unreported"):
            found["engines"][name, state] = 0.0
    for drafter, state, number, seen_at in connection.execute(query):
        found["engines"][drafter, state] = number
        seen[drafter] = max(seen_at, seen.get(drafter, seen_at))
    for drafter, seen_at in seen.items():
        found["engine_last_poll_timestamp_seconds"][drafter,] = seen_at


def _jobs(connection: Connection, names: Sequence[str], found: Samples) -> None:
    jobs = tables.jobs.c
    for kind in ("recalibration", "report"):
        for status in ("queued", "running", "succeeded", "refused", "failed"):
            found["jobs"][kind, status] = 0.0
    counted = select(jobs.kind, jobs.status, func.count()).group_by(jobs.kind, jobs.status)
    for kind, status, number in connection.execute(counted):
        if (kind, status) in found["jobs"]:
            found["jobs"][kind, status] = number
    ended = (
        select(jobs.drafter, jobs.status, func.max(jobs.position).label("position"))
        .where(
            jobs.kind == "recalibration",
            jobs.finished_at.is_not(None),
            jobs.drafter.in_(names),
        )
        .group_by(jobs.drafter, jobs.status)
        .subquery()
    )
    last = select(jobs.drafter, jobs.status, jobs.started_at, jobs.finished_at).join(
        ended, jobs.position == ended.c.position
    )
    for row in connection.execute(last):
        found["recalibration_timestamp_seconds"][row.drafter, row.status] = row.finished_at
        if row.status == "succeeded" and row.started_at is not None:
            duration = max(0.0, row.finished_at - row.started_at)
            found["fit_duration_seconds"][row.drafter,] = duration


def _events(connection: Connection, names: Sequence[str], found: Samples) -> None:
    events = tables.events.c
    for name in names:
        for severity in _SEVERITIES:
            found["events_open"][name, severity] = 0.0
    query = select(events.drafter, events.severity, func.count()).where(events.state != "resolved")
    known = set(names)
    for drafter, severity, number in connection.execute(
        query.group_by(events.drafter, events.severity)
    ):
        if drafter is None or drafter in known:
            found["events_open"][drafter or "", severity] = number


def _reports(
    connection: Connection, cache: MetricsCache, names: Sequence[str], found: Samples
) -> None:
    reports = tables.reports.c
    newest = select(reports.drafter, func.max(reports.id).label("id")).where(
        reports.kind == "evaluation", reports.drafter.in_(names)
    )
    for drafter, identifier in connection.execute(newest.group_by(reports.drafter)).all():
        known = cache.reports.get(drafter)
        if known is None or known[0] != identifier:
            query = select(reports.document, reports.created_at).where(reports.id == identifier)
            row = connection.execute(query).one()
            samples = _of_report(drafter, _parsed(row.document))
            samples["report_timestamp_seconds"] = {(drafter,): row.created_at}
            known = cache.reports[drafter] = (identifier, samples)
        _merge(found, known[1])


def _of_report(drafter: str, document: Mapping[str, Any]) -> Samples:
    found: Samples = defaultdict(dict)
    overall = _get(document, "evaluation", "overall")
    for side, calibration in _SIDES.items():
        for view in _VIEWS:
            for k, entry in _numbered(_get(overall, side, view)):
                _put(found, "ece_ratio", (drafter, k, view, calibration), entry.get("ece"))
                if side == "raw":
                    continue
                level = entry.get("null_level")
                _put(found, "ece_expected_ratio", (drafter, k, view), level)
                if view == "conditional":
                    _put(found, "acceptance_ratio", (drafter, k), entry.get("mean_label"))
                    _put(found, "confidence_ratio", (drafter, k), entry.get("mean_prediction"))
    emitted = _get(overall, "acceptance").get("emitted_per_round")
    _put(found, "accepted_length_tokens", (drafter,), emitted)
    return found


def _monitors(
    connection: Connection, cache: MetricsCache, names: Sequence[str], found: Samples
) -> None:
    states = tables.monitor_states.c
    known_at = select(states.drafter, states.updated_at).where(states.drafter.in_(names))
    for drafter, updated_at in connection.execute(known_at).all():
        known = cache.monitors.get(drafter)
        if known is None or known[0] != updated_at:
            query = select(states.document).where(states.drafter == drafter)
            document = connection.execute(query).scalar_one()
            samples = _of_monitor(drafter, _parsed(document))
            samples["drift_timestamp_seconds"] = {(drafter,): updated_at}
            known = cache.monitors[drafter] = (updated_at, samples)
        _merge(found, known[1])


def _of_monitor(drafter: str, document: Mapping[str, Any]) -> Samples:
    found: Samples = defaultdict(dict)
    status = document.get("status")
    for name in _STATUSES:
        found["drift_status"][drafter, name] = float(status == name)
    _put(found, "drift_rows", (drafter,), document.get("rows"))
    for level in ("warn", "act"):
        threshold = _get(document, "levels", level).get("threshold")
        if isinstance(threshold, int | float) and threshold > 0:
            logarithm = math.log10(threshold)
            _put(found, "drift_threshold_log_e_value", (drafter, level), logarithm)
    largest = found["drift_log_e_value"]
    for test in _mappings(document.get("tests")):
        place = _place_of(drafter, test)
        value: Any = test.get("evidence_log10")
        if place is not None and _is_number(value):
            largest[place] = max(float(value), largest.get(place, float(value)))
    quality = _mappings(document.get("data_quality"))
    held = sum(entry.get("status") == "held" for entry in quality)
    found["data_quality_held"][drafter,] = held
    wealth = _get(document, "challenger").get("wealth_log10")
    _put(found, "challenger_log_e_value", (drafter,), wealth)
    return found


def _place_of(drafter: str, test: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Labels of a test of the drift document; None for one that has none."""
    detector, scope, position = (test.get(key) for key in ("detector", "scope", "position"))
    if detector not in _DETECTORS or scope not in _SCOPES:
        return None
    if scope != "position":
        return drafter, str(detector), str(scope), ""
    if not isinstance(position, int) or not 1 <= position <= MOST_POSITIONS:
        return None
    return drafter, str(detector), str(scope), str(position)


def _delivery(connection: Connection, found: Samples) -> None:
    for one in receiver_totals(connection):
        for name in ("delivered", "deferred", "abandoned", "silenced"):
            found[f"alerts_{name}_total"][one.receiver,] = getattr(one, name)
        found["alerts_waiting"][one.receiver,] = one.waiting
    now = current_time(connection)
    active = [one for one in list_silences(connection) if one.starts_at <= now]
    found["silences_active"][()] = len(active)
    tracking = totals(connection)
    for name in ("delivered", "deferred", "failed"):
        found[f"tracking_{name}_total"][()] = getattr(tracking, name)
    found["tracking_waiting"][()] = tracking.waiting
    if tracking.oldest_waiting_at is not None:
        oldest = found["tracking_oldest_waiting_timestamp_seconds"]
        oldest[()] = tracking.oldest_waiting_at


# Documents ------------------------------------------------------------------------------------


def _parsed(document: bytes) -> dict[str, Any]:
    """The object of a stored document; empty for what is none: its metrics are left out."""
    try:
        found = json.loads(document)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _get(value: Any, *keys: str) -> Mapping[str, Any]:
    """What stands below these keys; empty where it is missing or no object."""
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value if isinstance(value, Mapping) else {}


def _numbered(view: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    entries = _mappings(view.get("positions"))[:MOST_POSITIONS]
    return [(str(k), entry) for k, entry in enumerate(entries, 1)]


def _mappings(value: Any) -> list[Mapping[str, Any]]:
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []


def _is_number(value: object) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and math.isfinite(value)  # type: ignore[arg-type]


def _put(found: Samples, name: str, labels: tuple[str, ...], value: Any) -> None:
    if _is_number(value):
        found[name][labels] = float(value)


def _merge(found: Samples, more: Samples) -> None:
    for name, samples in more.items():
        found[name].update(samples)
