"""Served numbers of one segment: what an engine can apply to its traffic.

Letters: γ draft positions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from calib.calibration import Calibration
from calib.calibration_fields import checked_statuses
from calib.calibration_values import checked_gamma, checked_numbers, checked_scales
from calib.errors import CalibrationValueError
from calib.segment_tags import POOL, SegmentKey
from calib.statuses import PositionStatus
from calib.temperature_estimator import checked_count

__all__ = ["ServedSegment", "pool_segment"]


@dataclass(frozen=True, slots=True)
class ServedSegment:
    """Served numbers of one segment, rounded to six significant digits.

    Attributes:
        key: the segment.
        rows: observed labels of its first position: how much is known of it.
        temperatures: T_k in [0.05, 20]; always there.
        slopes: s_k in [0.05, 20] of the affine form, or None.
        intercepts: b_k, given exactly when slopes are.
        statuses: per position; other than ``ok``: the temperature is the parent's.

    Raises:
        CalibrationValueError: naming field, value and remedy.
        ConfigurationError: rows that are no count.
    """

    key: SegmentKey
    rows: int
    temperatures: tuple[float, ...]
    slopes: tuple[float, ...] | None = None
    intercepts: tuple[float, ...] | None = None
    statuses: tuple[PositionStatus, ...] = ()

    def __post_init__(self) -> None:
        gamma = checked_gamma(len(self.temperatures))
        if (self.slopes is None) != (self.intercepts is None):
            raise CalibrationValueError("intercepts", self.intercepts, "give slopes and intercepts")
        checked_count("rows", self.rows, 0)
        temperatures = checked_scales("temperatures", self.temperatures, gamma)
        object.__setattr__(self, "temperatures", temperatures)
        object.__setattr__(self, "statuses", checked_statuses(self.statuses, gamma))
        if self.slopes is not None:
            object.__setattr__(self, "slopes", checked_scales("slopes", self.slopes, gamma))
            shifts = checked_numbers("intercepts", self.intercepts, gamma)
            object.__setattr__(self, "intercepts", shifts)

    def affine(self, gamma: int) -> dict[str, list[float]] | None:
        """Slopes and intercepts of the first ``gamma`` positions, or None."""
        if self.slopes is None or self.intercepts is None:
            return None
        return {"slopes": list(self.slopes[:gamma]), "intercepts": list(self.intercepts[:gamma])}

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "tags": self.key.to_dict(),
            "rows": self.rows,
            "temperatures": list(self.temperatures),
            "affine": self.affine(len(self.temperatures)),
            "statuses": [str(status) for status in self.statuses],
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The segment that :meth:`to_dict` wrote."""
        affine = values.get("affine") or {}
        return cls(
            key=SegmentKey.of(values["tags"]),
            rows=values["rows"],
            temperatures=tuple(values["temperatures"]),
            slopes=affine.get("slopes"),
            intercepts=affine.get("intercepts"),
            statuses=tuple(values.get("statuses", ())),
        )


def pool_segment(calibration: Calibration, rows: int) -> ServedSegment:
    """The pool's entry: the numbers of a pooled calibration."""
    return ServedSegment(
        key=POOL,
        rows=rows,
        temperatures=calibration.temperatures,
        slopes=calibration.slopes,
        intercepts=calibration.intercepts,
        statuses=calibration.position_statuses,
    )
