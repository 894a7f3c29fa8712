"""What waits to be told to receivers of alerts, and when they are not to be told."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create its tables."""
    _create_notices()
    _create_deliveries()
    _create_receivers()
    _create_silences()


def downgrade() -> None:
    """Drop its tables."""
    for table in ("silences", "alert_receivers", "alert_deliveries", "alert_notices"):
        op.drop_table(table)


def _text(name: str, *, null: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.Text(), nullable=null)


def _long(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger(), nullable=False)


def _time(name: str, *, null: bool = False) -> sa.Column[float]:
    return sa.Column(name, sa.Double(), nullable=null)


def _growing() -> sa.Column[int]:
    kind = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    return sa.Column("id", kind, sa.Identity(always=True), nullable=False)


def _create_notices() -> None:
    op.create_table(
        "alert_notices",
        _growing(),
        _long("event"),
        _text("notice"),
        _text("severity"),
        _time("created_at"),
        _time("spread_at", null=True),
        _text("message"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_alert_notices")),
        sa.ForeignKeyConstraint(["event"], ["events.id"], name=op.f("fk_alert_notices_event")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_alert_notices_event"), "alert_notices", ["event"])
    where = sa.text("spread_at IS NULL")
    op.create_index(
        "ix_alert_notices_unspread",
        "alert_notices",
        ["id"],
        sqlite_where=where,
        postgresql_where=where,
    )


def _create_deliveries() -> None:
    op.create_table(
        "alert_deliveries",
        _growing(),
        _long("notice"),
        _long("event"),
        _text("receiver"),
        _text("delivery"),
        _text("status"),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("held", sa.Integer(), nullable=False),
        _time("created_at"),
        _time("due_at"),
        _text("lease_owner", null=True),
        _time("lease_until", null=True),
        _time("finished_at", null=True),
        _text("last_error", null=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_alert_deliveries")),
        sa.ForeignKeyConstraint(
            ["notice"], ["alert_notices.id"], name=op.f("fk_alert_deliveries_notice")
        ),
        sa.UniqueConstraint("delivery", name=op.f("uq_alert_deliveries_delivery")),
        sqlite_autoincrement=True,
    )
    for columns in (["status", "due_at"], ["event", "receiver"]):
        name = op.f(f"ix_alert_deliveries_{'_'.join(columns)}")
        op.create_index(name, "alert_deliveries", columns)
    op.create_index(
        "uq_alert_deliveries_place", "alert_deliveries", ["notice", "receiver"], unique=True
    )


def _create_receivers() -> None:
    op.create_table(
        "alert_receivers",
        _text("receiver"),
        _long("delivered"),
        _long("deferred"),
        _long("abandoned"),
        _long("silenced"),
        _time("last_delivered_at", null=True),
        _time("last_failed_at", null=True),
        _text("last_error", null=True),
        sa.PrimaryKeyConstraint("receiver", name=op.f("pk_alert_receivers")),
    )


def _create_silences() -> None:
    op.create_table(
        "silences",
        _growing(),
        _text("drafter", null=True),
        _text("kind", null=True),
        _time("starts_at"),
        _time("ends_at"),
        _time("created_at"),
        _text("created_by"),
        _text("reason"),
        _time("removed_at", null=True),
        _text("removed_by", null=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_silences")),
        sa.ForeignKeyConstraint(["drafter"], ["drafters.name"], name=op.f("fk_silences_drafter")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_silences_ends_at"), "silences", ["ends_at"])
