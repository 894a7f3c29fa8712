"""Every table of the store. Migrations create them; a test compares the two.

Conventions: times are seconds since the epoch in float64; JSON is RFC 8785 text; sizes are bytes.
Large columns stand last, so that SQLite reads the others without following overflow pages.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    text,
)

__all__ = [
    "alert_deliveries",
    "alert_notices",
    "alert_receivers",
    "audit",
    "cost_tables",
    "drafter_leases",
    "drafters",
    "engines",
    "events",
    "idempotency_answers",
    "jobs",
    "metadata",
    "monitor_states",
    "publications",
    "reports",
    "revisions",
    "silences",
    "store_clock",
    "telemetry_batches",
    "telemetry_counters",
    "tokens",
    "tracking_outbox",
    "tracking_totals",
]

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

# SQLite counts 64-bit row ids only in a column of the very type INTEGER.
_ROW_ID = BigInteger().with_variant(Integer(), "sqlite")


def _row_id() -> Column[int]:
    """A key that grows and is never given twice, not even after the newest row was deleted."""
    return Column("id", _ROW_ID, Identity(always=True), primary_key=True)


def _drafter(*, primary_key: bool = False, nullable: bool = False) -> Column[str]:
    return Column(
        "drafter", Text, ForeignKey("drafters.name"), primary_key=primary_key, nullable=nullable
    )


# The aliases stand in the drafter's row: one row to lock, one version to compare.
drafters = Table(
    "drafters",
    metadata,
    Column("name", Text, primary_key=True),
    Column("gamma", Integer, nullable=False),
    Column("key_digest", Text, nullable=False),
    Column("key", Text, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("champion", Integer, nullable=False),
    Column("challenger", Integer),
    Column("previous", Integer),
    Column("publication", BigInteger, nullable=False),
    Column("exploration_changes", BigInteger, nullable=False, server_default="0"),
)

revisions = Table(
    "revisions",
    metadata,
    _drafter(primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("digest", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("created_by", Text, nullable=False),
    Column("segments", Text),
    Column("provenance", Text, nullable=False),
    Column("calibration", LargeBinary, nullable=False),
)

publications = Table(
    "publications",
    metadata,
    _drafter(primary_key=True),
    Column("number", BigInteger, primary_key=True),
    Column("revision", Integer, nullable=False),
    Column("published_at", Double, nullable=False),
    Column("valid_until", Double),
    Column("published_by", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("document", LargeBinary, nullable=False),
    ForeignKeyConstraint(["drafter", "revision"], ["revisions.drafter", "revisions.number"]),
)

telemetry_batches = Table(
    "telemetry_batches",
    metadata,
    _row_id(),
    _drafter(),
    Column("engine", Text),
    Column("received_at", Double, nullable=False),
    Column("rows", Integer, nullable=False),
    Column("excluded", Integer, nullable=False),
    Column("payload_bytes", BigInteger, nullable=False),
    Column("payload", LargeBinary, nullable=False),
    Index(None, "drafter", "id", "rows", "payload_bytes"),
    Index(None, "received_at"),
    sqlite_autoincrement=True,
)

# Totals since registration, and what of it is still stored.
telemetry_counters = Table(
    "telemetry_counters",
    metadata,
    _drafter(primary_key=True),
    Column("rows", BigInteger, nullable=False),
    Column("batches", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("excluded", BigInteger, nullable=False),
    Column("rejected", BigInteger, nullable=False),
    Column("duplicates", BigInteger, nullable=False),
    Column("stored_rows", BigInteger, nullable=False),
    Column("stored_bytes", BigInteger, nullable=False),
    Column("last_received_at", Double),
)

idempotency_answers = Table(
    "idempotency_answers",
    metadata,
    _drafter(primary_key=True),
    Column("token", Text, primary_key=True),
    Column("key", Text, primary_key=True),
    Column("body_sha256", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("answer", LargeBinary, nullable=False),
    Index(None, "created_at"),
)

jobs = Table(
    "jobs",
    metadata,
    Column("position", _ROW_ID, Identity(always=True), primary_key=True),
    Column("id", Text, nullable=False, unique=True),
    _drafter(),
    Column("kind", Text, nullable=False),
    Column("options", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("fencing", BigInteger, nullable=False),
    Column("lease_owner", Text),
    Column("lease_until", Double),
    Column("reads_from", BigInteger),
    Column("created_at", Double, nullable=False),
    Column("created_by", Text, nullable=False),
    Column("started_at", Double),
    Column("finished_at", Double),
    Column("result", Text),
    Column("error", Text),
    Index(None, "status", "position"),
    Index(None, "drafter", "position"),
    # The database itself refuses a second running job of a drafter.
    Index(
        "uq_jobs_running",
        "drafter",
        unique=True,
        sqlite_where=text("status = 'running'"),
        postgresql_where=text("status = 'running'"),
    ),
    sqlite_autoincrement=True,
)

events = Table(
    "events",
    metadata,
    _row_id(),
    _drafter(nullable=True),
    Column("kind", Text, nullable=False),
    Column("severity", Text, nullable=False),
    Column("title", Text, nullable=False),
    Column("details", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("opened_at", Double, nullable=False),
    Column("updated_at", Double, nullable=False),
    Column("acknowledged_by", Text),
    Column("resolved_at", Double),
    Column("dedup_key", Text),
    Column("count", BigInteger, nullable=False),
    Index(None, "drafter", "id"),
    # One open event per key.
    Index(
        "uq_events_open",
        "dedup_key",
        unique=True,
        sqlite_where=text("state <> 'resolved'"),
        postgresql_where=text("state <> 'resolved'"),
    ),
    sqlite_autoincrement=True,
)

engines = Table(
    "engines",
    metadata,
    _drafter(primary_key=True),
    Column("engine", Text, primary_key=True),
    Column("client_version", Text),
    Column("applied_publication", BigInteger),
    Column("applied_revision", BigInteger),
    Column("state", Text),
    Column("first_seen_at", Double, nullable=False),
    Column("seen_at", Double, nullable=False),
)

cost_tables = Table(
    "cost_tables",
    metadata,
    _drafter(primary_key=True),
    Column("updated_at", Double, nullable=False),
    Column("updated_by", Text, nullable=False),
    Column("document", Text, nullable=False),
)

reports = Table(
    "reports",
    metadata,
    _row_id(),
    _drafter(),
    Column("kind", Text, nullable=False),
    Column("revision", Integer, nullable=False),
    Column("through_batch", BigInteger),
    Column("created_at", Double, nullable=False),
    Column("document", LargeBinary, nullable=False),
    Index(None, "drafter", "kind", "id"),
    sqlite_autoincrement=True,
)

# How far the closed loop has read, and what it knows by then.
monitor_states = Table(
    "monitor_states",
    metadata,
    _drafter(primary_key=True),
    Column("consumed_through", BigInteger, nullable=False),
    Column("updated_at", Double, nullable=False),
    Column("document", LargeBinary, nullable=False),
    Column("state", LargeBinary, nullable=False),
)

# Who acts on a drafter; the row stays, so that the fencing number grows for ever.
drafter_leases = Table(
    "drafter_leases",
    metadata,
    _drafter(primary_key=True),
    Column("fencing", BigInteger, nullable=False),
    Column("owner", Text),
    Column("until", Double),
)

tokens = Table(
    "tokens",
    metadata,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("scopes", Text, nullable=False),
    Column("secret_sha256", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("expires_at", Double),
    Column("revoked_at", Double),
    # A name may be given again once its token is revoked.
    Index(
        "uq_tokens_active_name",
        "name",
        unique=True,
        sqlite_where=text("revoked_at IS NULL"),
        postgresql_where=text("revoked_at IS NULL"),
    ),
)

audit = Table(
    "audit",
    metadata,
    _row_id(),
    Column("at", Double, nullable=False),
    Column("actor", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("drafter", Text),
    Column("details", Text, nullable=False),
    Column("request_id", Text),
    Index(None, "drafter", "id"),
    sqlite_autoincrement=True,
)

# What receivers of alerts are to be told, written in the transaction of the event itself.
alert_notices = Table(
    "alert_notices",
    metadata,
    _row_id(),
    Column("event", BigInteger, ForeignKey("events.id"), nullable=False),
    Column("notice", Text, nullable=False),
    Column("severity", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("spread_at", Double),
    Column("message", Text, nullable=False),
    Index(None, "event"),
    Index(
        "ix_alert_notices_unspread",
        "id",
        sqlite_where=text("spread_at IS NULL"),
        postgresql_where=text("spread_at IS NULL"),
    ),
    sqlite_autoincrement=True,
)

# One row for each notice and receiver: what was tried, and when to try again.
alert_deliveries = Table(
    "alert_deliveries",
    metadata,
    _row_id(),
    Column("notice", BigInteger, ForeignKey("alert_notices.id"), nullable=False),
    Column("event", BigInteger, nullable=False),
    Column("receiver", Text, nullable=False),
    Column("delivery", Text, nullable=False, unique=True),
    Column("status", Text, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("held", Integer, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("due_at", Double, nullable=False),
    Column("lease_owner", Text),
    Column("lease_until", Double),
    Column("finished_at", Double),
    Column("last_error", Text),
    Index("uq_alert_deliveries_place", "notice", "receiver", unique=True),
    Index(None, "status", "due_at"),
    Index(None, "event", "receiver"),
    sqlite_autoincrement=True,
)

# Totals of each receiver, which outlive the rows they were counted from.
alert_receivers = Table(
    "alert_receivers",
    metadata,
    Column("receiver", Text, primary_key=True),
    Column("delivered", BigInteger, nullable=False),
    Column("deferred", BigInteger, nullable=False),
    Column("abandoned", BigInteger, nullable=False),
    Column("silenced", BigInteger, nullable=False),
    Column("last_delivered_at", Double),
    Column("last_failed_at", Double),
    Column("last_error", Text),
)

# When nobody is to be told; a removed silence stays, as a record.
silences = Table(
    "silences",
    metadata,
    _row_id(),
    _drafter(nullable=True),
    Column("kind", Text),
    Column("starts_at", Double, nullable=False),
    Column("ends_at", Double, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("created_by", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("removed_at", Double),
    Column("removed_by", Text),
    Index(None, "ends_at"),
    sqlite_autoincrement=True,
)

# What the tracking server is still to be told, written in the transaction of the thing itself.
tracking_outbox = Table(
    "tracking_outbox",
    metadata,
    _row_id(),
    _drafter(),
    Column("kind", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("faults", Integer, nullable=False),
    Column("deferred", Integer, nullable=False),
    Column("lease_owner", Text),
    Column("lease_until", Double),
    Column("failed_at", Double),
    Column("error", Text),
    Column("content", Text, nullable=False),
    Index(None, "status", "drafter", "id"),
    sqlite_autoincrement=True,
)

# One row: what became of all entries, which are deleted once delivered.
tracking_totals = Table(
    "tracking_totals",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("enabled", Integer, nullable=False),
    Column("delivered", BigInteger, nullable=False),
    Column("deferred", BigInteger, nullable=False),
    Column("failed", BigInteger, nullable=False),
    Column("away_since", Double),
    Column("delivered_at", Double),
)

# The latest time that any process has seen: leases on SQLite never see an earlier one.
store_clock = Table(
    "store_clock",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("seconds", Double, nullable=False),
)
