"""The share of steps that engines are asked to verify in full: one rule for loop and service."""

from __future__ import annotations

__all__ = ["asked_exploration"]


def asked_exploration(usual: float, on_warning: float, *, raised: bool) -> float:
    """Share of steps to verify in full; what a warning asks for is never less than usual.

    Args:
        usual: share asked for always.
        on_warning: least share while exploration is raised.
        raised: whether it is.
    """
    return max(usual, on_warning) if raised else usual
