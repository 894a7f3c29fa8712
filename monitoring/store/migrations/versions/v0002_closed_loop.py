"""What the closed loop keeps of every drafter: its state, and who may act on it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create its tables."""
    op.create_table(
        "monitor_states",
        sa.Column("drafter", sa.Text(), nullable=False),
        sa.Column("consumed_through", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.Column("document", sa.LargeBinary(), nullable=False),
        sa.Column("state", sa.LargeBinary(), nullable=False),
        *_keys("monitor_states"),
    )
    op.create_table(
        "drafter_leases",
        sa.Column("drafter", sa.Text(), nullable=False),
        sa.Column("fencing", sa.BigInteger(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=True),
        sa.Column("until", sa.Double(), nullable=True),
        *_keys("drafter_leases"),
    )


def downgrade() -> None:
    """Drop its tables."""
    op.drop_table("drafter_leases")
    op.drop_table("monitor_states")


def _keys(table: str) -> tuple[sa.PrimaryKeyConstraint, sa.ForeignKeyConstraint]:
    return (
        sa.PrimaryKeyConstraint("drafter", name=op.f(f"pk_{table}")),
        sa.ForeignKeyConstraint(["drafter"], ["drafters.name"], name=op.f(f"fk_{table}_drafter")),
    )
