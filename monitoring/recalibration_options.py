"""What a recalibration may be asked for: checked when it is ordered and again when it is done.

Without NumPy: the process that takes the order answers polls as well and stays small.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, Literal, Self, get_args

from calib.errors import ConfigurationError

__all__ = ["MOST_ROWS", "RecalibrationMethod", "RecalibrationOptions"]

RecalibrationMethod = Literal["sts", "temperature"]

# One gigabyte of telemetry of γ = 7 in memory.
MOST_ROWS: Final = 5_000_000


@dataclass(frozen=True, slots=True)
class RecalibrationOptions:
    """Options of one recalibration; what is None follows the settings of the worker.

    Attributes:
        method: ``"sts"`` (Sequential Temperature Scaling), or ``"temperature"`` (conditional
            likelihood, for trimmed telemetry).
        rows: newest rows to fit and judge on, 1 to 5,000,000.
        minimum_rows: rows a position needs before its number is published, at least 1.
        evaluation_share: share of prompts (or requests) kept for judging, between 0 and 1.

    Raises:
        ConfigurationError: naming option, value and remedy.
    """

    method: RecalibrationMethod = "sts"
    rows: int | None = None
    minimum_rows: int | None = None
    evaluation_share: float = 0.5

    def __post_init__(self) -> None:
        if self.method not in get_args(RecalibrationMethod):
            choices = " or ".join(repr(word) for word in get_args(RecalibrationMethod))
            raise ConfigurationError("method", self.method, f"give {choices}")
        for name in ("rows", "minimum_rows"):
            value = getattr(self, name)
            whole = isinstance(value, int) and not isinstance(value, bool)
            if value is not None and not (whole and 1 <= value <= MOST_ROWS):
                raise ConfigurationError(name, value, f"give a number from 1 to {MOST_ROWS}")
        share: object = self.evaluation_share  # from JSON it may be anything
        if not (isinstance(share, float) and 0.0 < share < 1.0):
            raise ConfigurationError("evaluation_share", share, "give a share between 0 and 1")

    @classmethod
    def from_mapping(cls, options: Mapping[str, Any]) -> Self:
        """The options that a job carries.

        Raises:
            ConfigurationError: an unknown option, or one outside its range.
        """
        known = [field.name for field in fields(cls)]
        unknown = sorted(set(options) - set(known))
        if unknown:
            raise ConfigurationError("options", unknown, f"options are {', '.join(known)}")
        return cls(**options)

    def to_mapping(self) -> dict[str, Any]:
        """The options that differ from the defaults, for a job."""
        default = asdict(type(self)())
        return {name: value for name, value in asdict(self).items() if value != default[name]}
