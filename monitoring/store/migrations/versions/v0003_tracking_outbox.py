"""What waits to be mirrored to the tracking server, and what became of the rest."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create its tables; the one row of totals comes with them."""
    row_id = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "tracking_outbox",
        sa.Column("id", row_id, sa.Identity(always=True), nullable=False),
        sa.Column("drafter", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("faults", sa.Integer(), nullable=False),
        sa.Column("deferred", sa.Integer(), nullable=False),
        sa.Column("lease_owner", sa.Text(), nullable=True),
        sa.Column("lease_until", sa.Double(), nullable=True),
        sa.Column("failed_at", sa.Double(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("content", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tracking_outbox")),
        sa.ForeignKeyConstraint(
            ["drafter"], ["drafters.name"], name=op.f("fk_tracking_outbox_drafter")
        ),
        sqlite_autoincrement=True,
    )
    columns = ["status", "drafter", "id"]
    op.create_index(op.f(f"ix_tracking_outbox_{'_'.join(columns)}"), "tracking_outbox", columns)
    totals = op.create_table(
        "tracking_totals",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("enabled", sa.Integer(), nullable=False),
        sa.Column("delivered", sa.BigInteger(), nullable=False),
        sa.Column("deferred", sa.BigInteger(), nullable=False),
        sa.Column("failed", sa.BigInteger(), nullable=False),
        sa.Column("away_since", sa.Double(), nullable=True),
        sa.Column("delivered_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tracking_totals")),
    )
    op.bulk_insert(totals, [{"id": 1, "enabled": 1, "delivered": 0, "deferred": 0, "failed": 0}])


def downgrade() -> None:
    """Drop its tables."""
    op.drop_table("tracking_totals")
    op.drop_table("tracking_outbox")
