"""Silences as pages show them: which hold, and which events they keep from being told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from monitoring.store.database import current_time
from monitoring.store.events import Event
from monitoring.store.silences import Silence, list_silences

__all__ = ["Silences", "load_silences"]


@dataclass(frozen=True, slots=True)
class Silences:
    """What is not told at present.

    Attributes:
        listed: silences that hold or will hold, newest first.
        now: seconds since the epoch.
    """

    listed: Sequence[Silence]
    now: float

    def about(self, drafter: str) -> Silences:
        """Those that keep events of this drafter from being told."""
        return Silences([one for one in self.listed if one.drafter in (None, drafter)], self.now)

    def of(self, event: Event) -> Silence | None:
        """The silence that an unresolved event falls under, the longest; None where it is told."""
        if event.state == "resolved":
            return None
        holding = [
            one
            for one in self.listed
            if one.starts_at <= self.now < one.ends_at
            and one.drafter in (None, event.drafter)
            and one.kind in (None, event.kind)
        ]
        return max(holding, key=lambda one: one.ends_at, default=None)

    @staticmethod
    def subject(silence: Silence) -> str:
        """What a silence keeps from being told."""
        kind = "every event" if silence.kind is None else f"{silence.kind.replace('_', ' ')} events"
        return f"{kind.capitalize()} of {silence.drafter or 'every drafter'}"


def load_silences(connection: Connection) -> Silences:
    """Every silence that holds or will hold."""
    return Silences(list_silences(connection), current_time(connection))
