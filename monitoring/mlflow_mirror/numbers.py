"""Metrics without NaN and infinity: MLflow turns them into 0 with a flag or 1.797e308, and charts
lie. What has no number is left out, and a tag says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

__all__ = ["Metric", "Metrics"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One number as MLflow stores it.

    Attributes:
        key: a key that MLflow accepts.
        value: finite.
        step: position (from 1) of what has one value a position; else what the caller counts by.
    """

    key: str
    value: float
    step: int


@dataclass(slots=True)
class Metrics:
    """Metrics that are being collected, and the names of those that have no value."""

    found: list[Metric] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def add(self, key: str, value: object, step: int = 0) -> None:
        """Take a number; null, NaN, infinity and what is no number are left out by name."""
        number = isinstance(value, Real) and not isinstance(value, bool)
        if number and math.isfinite(value):  # type: ignore[arg-type]  # a Real, as just asked
            self.found.append(Metric(key, float(value), step))  # type: ignore[arg-type]
        else:
            self.left_out.append(f"{key}[{step}]" if step else key)

    def add_positions(self, key: str, values: Iterable[object]) -> None:
        """One value a position: position k is step k."""
        for index, value in enumerate(values):
            self.add(key, value, index + 1)

    def add_fields(
        self, prefix: str, positions: Sequence[Mapping[str, Any]], names: Iterable[str]
    ) -> None:
        """Fields of one mapping a position; a field may be ``{"before": …, "after": …}``.

        A field that no position has is no measurement and leaves no trace.
        """
        for name in names:
            if not any(name in entry for entry in positions):
                continue
            values = [entry.get(name) for entry in positions]
            if any(isinstance(value, Mapping) for value in values):
                self._add_sides(f"{prefix}/{name}", values)
            else:
                self.add_positions(f"{prefix}/{name}", values)

    def _add_sides(self, key: str, values: Sequence[object]) -> None:
        for side in ("before", "after"):
            sides = [value.get(side) if isinstance(value, Mapping) else None for value in values]
            plain = [v.get("value") if isinstance(v, Mapping) else v for v in sides]
            self.add_positions(f"{key}/{side}", plain)
