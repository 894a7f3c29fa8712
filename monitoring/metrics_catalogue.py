"""Every metric of the service: name, help and labels, in one table.

Names follow Prometheus: base units, ``_total`` for what only grows, times as timestamps whose age
is ``time() - x``. Labels are bounded: drafters up to a limit, positions up to 16, receivers as
configured; no engine, request, tenant or segment ever becomes one.

``source`` says how replicas go together. ``database``: every replica shows the same value, so take
``max without (instance, pod)``. ``process``: each replica shows its own, so take ``sum``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

__all__ = ["METRICS", "MOST_POSITIONS", "PREFIX", "MetricSpec", "Source"]

PREFIX: Final = "dspark_calibration_"
MOST_POSITIONS: Final = 16
"""Positions with metrics of their own; blocks are rarely longer."""

Source = Literal["database", "process"]


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One metric family.

    Attributes:
        name: as exposed, without the prefix.
        kind: ``gauge`` or ``counter``.
        help: what the value is.
        labels: names of its labels, in the order of their values.
        source: ``database`` or ``process``.
    """

    name: str
    kind: Literal["gauge", "counter"]
    help: str
    labels: tuple[str, ...] = ()
    source: Source = "database"

    @property
    def full_name(self) -> str:
        """The name as it is exposed and asked for."""
        return PREFIX + self.name


def _gauge(name: str, text: str, *labels: str, source: Source = "database") -> MetricSpec:
    return MetricSpec(name, "gauge", text, labels, source)


def _counter(name: str, text: str, *labels: str, source: Source = "database") -> MetricSpec:
    return MetricSpec(name, "counter", text, labels, source)


_CALIBRATION: Final = (
    _gauge(
        "ece_ratio",
        "Expected calibration error on the newest telemetry, by the latest report; calibration is "
        "identity (raw confidence) or champion, view is conditional or survival.",
        *("drafter", "position", "view", "calibration"),
    ),
    _gauge(
        "ece_expected_ratio",
        "Calibration error that a perfectly calibrated champion would show on that many rows.",
        *("drafter", "position", "view"),
    ),
    _gauge(
        "acceptance_ratio",
        "Share of verified positions that were accepted, given that all before them were.",
        *("drafter", "position"),
    ),
    _gauge(
        "confidence_ratio",
        "Mean conditional confidence of the champion on the same rows.",
        *("drafter", "position"),
    ),
    _gauge(
        "accepted_length_tokens",
        "Mean tokens emitted per verification, bonus token included, by the latest report.",
        "drafter",
    ),
    _gauge(
        "temperature", "Served temperature T_k: confidence is sigma(z / T).", "drafter", "position"
    ),
    _gauge("report_timestamp_seconds", "When the latest report was made.", "drafter"),
    _gauge(
        "revision_info",
        "1 for each revision that an alias (champion, challenger, previous) points at.",
        *("drafter", "alias", "revision"),
    ),
    _gauge("publication", "Number of the newest publication; only grows.", "drafter"),
    _gauge("publication_timestamp_seconds", "When the newest publication was made.", "drafter"),
)

_DRIFT: Final = (
    _gauge(
        "drift_log_e_value",
        "log10 of the e-value against calibration, the largest of each scope (pooled, position, "
        "segment); position is empty but for scope position.",
        *("drafter", "detector", "scope", "position"),
    ),
    _gauge("drift_threshold_log_e_value", "log10 of the alarm threshold.", "drafter", "level"),
    _gauge(
        "drift_status",
        "1 for the drift status in force, 0 for the others.",
        *("drafter", "status"),
    ),
    _gauge("drift_rows", "Rows that the drift monitor has read since the publication.", "drafter"),
    _gauge("drift_timestamp_seconds", "When the drift monitor last wrote its state.", "drafter"),
    _gauge("data_quality_held", "Data-quality monitors that hold recalibration.", "drafter"),
    _gauge("challenger_log_e_value", "log10 of the challenger's evidence at the gate.", "drafter"),
    _gauge("events_open", "Events that are not resolved.", "drafter", "severity"),
)

_WORK: Final = (
    _counter(
        "telemetry_rows_total",
        "Telemetry rows since registration: usable, excluded (stored, but no fit or monitor uses "
        "them), rejected or duplicate.",
        *("drafter", "outcome"),
    ),
    _counter("telemetry_batches_total", "Telemetry batches stored since registration.", "drafter"),
    _gauge("telemetry_stored_bytes", "Payload bytes of telemetry that retention left.", "drafter"),
    _gauge(
        "telemetry_last_received_timestamp_seconds",
        "When the newest telemetry batch came.",
        "drafter",
    ),
    _gauge("jobs", "Jobs by kind and status; ended ones are kept for 30 days.", "kind", "status"),
    _gauge(
        "recalibration_timestamp_seconds",
        "When a recalibration last ended this way.",
        *("drafter", "status"),
    ),
    _gauge("fit_duration_seconds", "Duration of the last recalibration that succeeded.", "drafter"),
    _gauge(
        "engines",
        "Engines by status: on_champion, behind, silent (no poll for long) or unreported.",
        *("drafter", "status"),
    ),
    _gauge(
        "engine_last_poll_timestamp_seconds",
        "When any engine of the drafter last polled.",
        "drafter",
    ),
)

_DELIVERY: Final = (
    _counter("alerts_delivered_total", "Alert messages that a receiver took.", "receiver"),
    _counter(
        "alerts_deferred_total",
        "Attempts that a receiver did not take and that are made again; nothing is dropped.",
        "receiver",
    ),
    _counter("alerts_abandoned_total", "Alert messages given up after days.", "receiver"),
    _counter("alerts_silenced_total", "Alert messages that a silence made needless.", "receiver"),
    _gauge("alerts_waiting", "Alert messages not delivered yet.", "receiver"),
    _gauge("silences_active", "Silences that hold now."),
    _counter("tracking_delivered_total", "Entries that the tracking server has got."),
    _counter(
        "tracking_deferred_total",
        "Entries that had to wait because the tracking server was away; nothing is dropped.",
    ),
    _counter("tracking_failed_total", "Entries that the tracking server can never take."),
    _gauge("tracking_waiting", "Entries that the tracking server has not got yet."),
    _gauge(
        "tracking_oldest_waiting_timestamp_seconds",
        "When the oldest entry was written that still waits.",
    ),
)

_SERVICE: Final = (
    _gauge("drafters", "Registered drafters."),
    _gauge("drafters_left_out", "Drafters without metrics of their own: there are too many."),
    _gauge("state_timestamp_seconds", "When this state was read from the database."),
    _counter("polls_total", "Polls of temperatures by HTTP status.", "status", source="process"),
    _gauge("polls_held", "Polls that wait for news right now.", source="process"),
    _gauge("ingest_pending_bytes", "Bytes of telemetry that wait to be stored.", source="process"),
    _gauge(
        "ingest_pending_limit_bytes",
        "Bytes of telemetry that may wait before senders are turned away.",
        source="process",
    ),
    _gauge("store_up", "1 while the database answers, else 0.", source="process"),
    _gauge("build_info", "1, with the version of the service.", "version", source="process"),
)

METRICS: Final[tuple[MetricSpec, ...]] = (
    *_CALIBRATION,
    *_DRIFT,
    *_WORK,
    *_DELIVERY,
    *_SERVICE,
)
"""All of them; a test compares dashboards and rules with this table."""
