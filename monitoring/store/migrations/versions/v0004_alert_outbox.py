"""What waits to be told to receivers of alerts, and when they are not to be told."""

from __future__ import annotations

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create its tables."""


def downgrade() -> None:
    """Drop its tables."""
