"""What waits to be mirrored to the tracking server."""

from __future__ import annotations

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create its tables."""


def downgrade() -> None:
    """Drop its tables."""
