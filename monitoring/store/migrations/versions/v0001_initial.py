"""The first form of every table, and guards for what must never change.

Revisions, publications and audit rows are neither changed nor deleted, and a drafter's version and
publication number never go back: the database itself refuses, whoever asks.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_IMMUTABLE = ("audit", "publications", "revisions")


def upgrade() -> None:
    """Create every table and guard."""
    _create_drafters()
    _create_revisions()
    _create_telemetry()
    _create_jobs()
    _create_events()
    _create_fleet()
    _create_access()
    if op.get_bind().dialect.name == "postgresql":
        _guard_postgresql()
    else:
        _guard_sqlite()


def downgrade() -> None:
    """There is nothing before the first form: create an empty database instead."""
    raise NotImplementedError("nothing precedes the first migration; start on an empty database")


def _text(name: str, *, null: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.Text(), nullable=null)


def _integer(name: str, *, null: bool = False) -> sa.Column[int]:
    return sa.Column(name, sa.Integer(), nullable=null)


def _long(name: str, *, null: bool = False) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger(), nullable=null)


def _time(name: str, *, null: bool = False) -> sa.Column[float]:
    return sa.Column(name, sa.Double(), nullable=null)


def _bytes(name: str) -> sa.Column[bytes]:
    return sa.Column(name, sa.LargeBinary(), nullable=False)


def _growing(name: str = "id") -> sa.Column[int]:
    kind = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    return sa.Column(name, kind, sa.Identity(always=True), nullable=False)


def _create(table: str, columns: list[sa.Column[Any]], key: list[str]) -> None:
    """A table with primary key and, where it has a column ``drafter``, the reference to it."""
    names = {column.name for column in columns}
    constraints: list[Any] = [sa.PrimaryKeyConstraint(*key, name=op.f(f"pk_{table}"))]
    if "drafter" in names and table != "audit":
        constraints.append(
            sa.ForeignKeyConstraint(
                ["drafter"], ["drafters.name"], name=op.f(f"fk_{table}_drafter")
            )
        )
    growing = any(column.identity is not None for column in columns)
    options: dict[str, Any] = {"sqlite_autoincrement": True} if growing else {}
    op.create_table(table, *columns, *constraints, **options)


def _index(table: str, *columns: str) -> None:
    op.create_index(op.f(f"ix_{table}_{'_'.join(columns)}"), table, list(columns))


def _unique_where(name: str, table: str, column: str, condition: str) -> None:
    where = sa.text(condition)
    op.create_index(name, table, [column], unique=True, sqlite_where=where, postgresql_where=where)


def _create_drafters() -> None:
    columns: list[sa.Column[Any]] = [
        _text("name"),
        _integer("gamma"),
        _text("key_digest"),
        _text("key"),
        _long("version"),
        _time("created_at"),
        _integer("champion"),
        _integer("challenger", null=True),
        _integer("previous", null=True),
        _long("publication"),
    ]
    _create("drafters", columns, ["name"])


def _create_revisions() -> None:
    revisions: list[sa.Column[Any]] = [
        _text("drafter"),
        _integer("number"),
        _text("digest"),
        _time("created_at"),
        _text("created_by"),
        _text("segments", null=True),
        _text("provenance"),
        _bytes("calibration"),
    ]
    _create("revisions", revisions, ["drafter", "number"])
    op.create_table(
        "publications",
        _text("drafter"),
        _long("number"),
        _integer("revision"),
        _time("published_at"),
        _time("valid_until", null=True),
        _text("published_by"),
        _text("reason"),
        _bytes("document"),
        sa.PrimaryKeyConstraint("drafter", "number", name=op.f("pk_publications")),
        sa.ForeignKeyConstraint(
            ["drafter"], ["drafters.name"], name=op.f("fk_publications_drafter")
        ),
        sa.ForeignKeyConstraint(
            ["drafter", "revision"],
            ["revisions.drafter", "revisions.number"],
            name=op.f("fk_publications_drafter_revision"),
        ),
    )


def _create_telemetry() -> None:
    batches: list[sa.Column[Any]] = [
        _growing(),
        _text("drafter"),
        _text("engine", null=True),
        _time("received_at"),
        _integer("rows"),
        _integer("excluded"),
        _long("payload_bytes"),
        _bytes("payload"),
    ]
    _create("telemetry_batches", batches, ["id"])
    _index("telemetry_batches", "drafter", "id", "rows", "payload_bytes")
    _index("telemetry_batches", "received_at")
    totals = ("rows", "batches", "bytes", "excluded", "rejected", "duplicates")
    counters: list[sa.Column[Any]] = [
        _text("drafter"),
        *(_long(name) for name in (*totals, "stored_rows", "stored_bytes")),
        _time("last_received_at", null=True),
    ]
    _create("telemetry_counters", counters, ["drafter"])
    answers: list[sa.Column[Any]] = [
        _text("drafter"),
        _text("token"),
        _text("key"),
        _text("body_sha256"),
        _time("created_at"),
        _bytes("answer"),
    ]
    _create("idempotency_answers", answers, ["drafter", "token", "key"])
    _index("idempotency_answers", "created_at")


def _create_jobs() -> None:
    op.create_table(
        "jobs",
        _growing("position"),
        _text("id"),
        _text("drafter"),
        _text("kind"),
        _text("options"),
        _text("status"),
        _integer("attempts"),
        _long("fencing"),
        _text("lease_owner", null=True),
        _time("lease_until", null=True),
        _long("reads_from", null=True),
        _time("created_at"),
        _text("created_by"),
        _time("started_at", null=True),
        _time("finished_at", null=True),
        _text("result", null=True),
        _text("error", null=True),
        sa.PrimaryKeyConstraint("position", name=op.f("pk_jobs")),
        sa.UniqueConstraint("id", name=op.f("uq_jobs_id")),
        sa.ForeignKeyConstraint(["drafter"], ["drafters.name"], name=op.f("fk_jobs_drafter")),
        sqlite_autoincrement=True,
    )
    _index("jobs", "status", "position")
    _index("jobs", "drafter", "position")
    _unique_where("uq_jobs_running", "jobs", "drafter", "status = 'running'")


def _create_events() -> None:
    events: list[sa.Column[Any]] = [
        _growing(),
        _text("drafter", null=True),
        _text("kind"),
        _text("severity"),
        _text("title"),
        _text("details"),
        _text("state"),
        _time("opened_at"),
        _time("updated_at"),
        _text("acknowledged_by", null=True),
        _time("resolved_at", null=True),
        _text("dedup_key", null=True),
        _long("count"),
    ]
    _create("events", events, ["id"])
    _index("events", "drafter", "id")
    _unique_where("uq_events_open", "events", "dedup_key", "state <> 'resolved'")


def _create_fleet() -> None:
    engines: list[sa.Column[Any]] = [
        _text("drafter"),
        _text("engine"),
        _text("client_version", null=True),
        _long("applied_publication", null=True),
        _long("applied_revision", null=True),
        _text("state", null=True),
        _time("first_seen_at"),
        _time("seen_at"),
    ]
    _create("engines", engines, ["drafter", "engine"])
    costs: list[sa.Column[Any]] = [
        _text("drafter"),
        _time("updated_at"),
        _text("updated_by"),
        _text("document"),
    ]
    _create("cost_tables", costs, ["drafter"])
    reports: list[sa.Column[Any]] = [
        _growing(),
        _text("drafter"),
        _text("kind"),
        _integer("revision"),
        _long("through_batch", null=True),
        _time("created_at"),
        _bytes("document"),
    ]
    _create("reports", reports, ["id"])
    _index("reports", "drafter", "kind", "id")


def _create_access() -> None:
    tokens: list[sa.Column[Any]] = [
        _text("id"),
        _text("name"),
        _text("scopes"),
        _text("secret_sha256"),
        _time("created_at"),
        _time("expires_at", null=True),
        _time("revoked_at", null=True),
    ]
    _create("tokens", tokens, ["id"])
    _unique_where("uq_tokens_active_name", "tokens", "name", "revoked_at IS NULL")
    audit: list[sa.Column[Any]] = [
        _growing(),
        _time("at"),
        _text("actor"),
        _text("action"),
        _text("drafter", null=True),
        _text("details"),
        _text("request_id", null=True),
    ]
    _create("audit", audit, ["id"])
    _index("audit", "drafter", "id")
    clock = op.create_table(
        "store_clock",
        sa.Column("id", sa.Integer(), nullable=False, autoincrement=False),
        _time("seconds"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_store_clock")),
    )
    op.bulk_insert(clock, [{"id": 1, "seconds": 0.0}])


def _guard_sqlite() -> None:
    for table in _IMMUTABLE:
        for change in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER guard_{table}_{change.lower()} BEFORE {change} ON {table} "
                f"BEGIN SELECT RAISE(ABORT, '{table} are immutable'); END"
            )
    op.execute(
        "CREATE TRIGGER guard_drafters_update BEFORE UPDATE ON drafters "
        "WHEN NEW.version < OLD.version OR NEW.publication < OLD.publication "
        "BEGIN SELECT RAISE(ABORT, 'versions and publications only grow'); END"
    )


def _guard_postgresql() -> None:
    op.execute(
        "CREATE FUNCTION dspark_calib_refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "RAISE EXCEPTION USING ERRCODE = 'check_violation', MESSAGE = TG_ARGV[0]; END $$"
    )
    for table in _IMMUTABLE:
        op.execute(
            f"CREATE TRIGGER guard_{table} BEFORE UPDATE OR DELETE ON {table} FOR EACH ROW "
            f"EXECUTE FUNCTION dspark_calib_refuse('{table} are immutable')"
        )
    op.execute(
        "CREATE TRIGGER guard_drafters_update BEFORE UPDATE ON drafters FOR EACH ROW "
        "WHEN (NEW.version < OLD.version OR NEW.publication < OLD.publication) "
        "EXECUTE FUNCTION dspark_calib_refuse('versions and publications only grow')"
    )
    # Payloads are compressed already.
    op.execute("ALTER TABLE telemetry_batches ALTER COLUMN payload SET STORAGE EXTERNAL")
