"""Whether a suspected drift raises what engines explore."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the count of its changes; nothing is raised before the loop's next commit."""
    column = sa.Column("exploration_changes", sa.BigInteger(), server_default="0", nullable=False)
    op.add_column("drafters", column)


def downgrade() -> None:
    """Drop it."""
    op.drop_column("drafters", "exploration_changes")
