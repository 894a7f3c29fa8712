"""What the closed loop keeps of every drafter."""

from __future__ import annotations

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create its tables."""


def downgrade() -> None:
    """Drop its tables."""
