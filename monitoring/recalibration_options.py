"""What a recalibration may be asked for: checked when it is ordered and again when it is done.

Without NumPy: the process that takes the order answers polls as well and stays small.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, Literal, Self, get_args

from calib.errors import ConfigurationError

__all__ = [
    "LONGEST_REASON",
    "MOST_HOURS",
    "MOST_ROWS",
    "FrozenBatches",
    "PromotionMode",
    "RecalibrationMethod",
    "RecalibrationOptions",
    "RecalibrationSource",
]

RecalibrationMethod = Literal["auto", "sts", "temperature", "affine", "survival", "segments"]
PromotionMode = Literal["gate", "guard", "never"]
RecalibrationSource = Literal["rows", "sketches"]

# One gigabyte of telemetry of γ = 7 in memory.
MOST_ROWS: Final = 5_000_000
LONGEST_REASON: Final = 512
MOST_HOURS: Final = 24 * 366

# What speaks of rows and has no meaning for sketches, and what does the reverse.
_OF_ROWS: Final = ("rows", "evaluation_share", "largest_tenant_share")
_OF_SKETCHES: Final = ("hours", "half_life_hours")


@dataclass(frozen=True, slots=True)
class FrozenBatches:
    """Which stored batches a window may read; both ends count.

    Attributes:
        from_batch: id of the oldest one; None has no bound.
        through_batch: id of the newest one; None reads whatever is stored by then.

    Raises:
        ConfigurationError: ids that are no numbers of 0 or more, or ends in the wrong order.
    """

    from_batch: int | None = None
    through_batch: int | None = None

    def __post_init__(self) -> None:
        for name in ("from_batch", "through_batch"):
            value = getattr(self, name)
            if value is not None and not _is_whole(value, 0, 2**63 - 1):
                raise ConfigurationError(f"window.{name}", value, "give the id of a batch")
        first, last = self.from_batch, self.through_batch
        if first is not None and last is not None and first > last:
            raise ConfigurationError("window.through_batch", last, f"give {first} or more")

    @classmethod
    def from_mapping(cls, values: object) -> Self:
        """The window that options carry.

        Raises:
            ConfigurationError: no object with these members.
        """
        if isinstance(values, cls):
            return values
        known = [field.name for field in fields(cls)]
        if not isinstance(values, Mapping) or set(values) - set(known):
            raise ConfigurationError("window", values, f"give {' and '.join(known)}")
        return cls(**values)


@dataclass(frozen=True, slots=True)
class RecalibrationOptions:
    """Options of one recalibration; what is None follows the settings of the worker.

    Attributes:
        method: how served numbers are fitted:

            - ``"auto"``: the one of the next four with the smallest held-out log loss, and segments
              where they lower it further (:mod:`monitoring.method_choice`);
            - ``"temperature"``: conditional likelihood, right on trimmed telemetry;
            - ``"affine"``: the same, with slopes and intercepts beside the temperatures;
            - ``"survival"``: temperatures and affine numbers fitted to the survival model, for
              trimmed telemetry of heads whose next logit reveals the token;
            - ``"sts"``: Sequential Temperature Scaling (paper §3.2.1) on rows whose full
              verification was decided before they were drafted;
            - ``"segments"``: ``"survival"`` with numbers of its own for every segment.
        rows: newest rows to fit and judge on, 1 to 5,000,000.
        window: stored batches to read; all when None.
        minimum_rows: rows a position needs before its number is published, at least 1.
        evaluation_share: share of prompts (or requests) kept for judging, between 0 and 1.
        largest_tenant_share: most of the total weight that rows of one tenant may have, in (0, 1].
        reason: why it was ordered; kept in the provenance.
        promote: what may publish the result: ``"gate"``, the comparison on rows that come after
            the fit; ``"guard"``, the held-out comparison alone; ``"never"``, a person.

    Raises:
        ConfigurationError: naming option, value and remedy.
    """

    method: RecalibrationMethod = "auto"
    rows: int | None = None
    window: FrozenBatches | None = None
    minimum_rows: int | None = None
    evaluation_share: float = 0.5
    largest_tenant_share: float = 0.5
    reason: str | None = None
    promote: PromotionMode = "gate"
    source: RecalibrationSource = "rows"
    hours: int | None = None
    half_life_hours: float | None = None

    def __post_init__(self) -> None:
        words_of = (RecalibrationMethod, PromotionMode, RecalibrationSource)
        for name, kind in zip(("method", "promote", "source"), words_of, strict=True):
            words = get_args(kind)
            if getattr(self, name) not in words:
                choices = ", ".join(repr(word) for word in words)
                raise ConfigurationError(name, getattr(self, name), f"give one of {choices}")
        for name in ("rows", "minimum_rows"):
            value = getattr(self, name)
            if value is not None and not _is_whole(value, 1, MOST_ROWS):
                raise ConfigurationError(name, value, f"give a number from 1 to {MOST_ROWS}")
        if self.window is not None:
            window = FrozenBatches.from_mapping(self.window)
            object.__setattr__(self, "window", None if window == FrozenBatches() else window)
        share: object = self.evaluation_share  # from JSON it may be anything
        if not (isinstance(share, float) and 0.0 < share < 1.0):
            raise ConfigurationError("evaluation_share", share, "give a share between 0 and 1")
        cap: object = self.largest_tenant_share
        if isinstance(cap, bool) or not isinstance(cap, int | float) or not 0.0 < cap <= 1.0:
            raise ConfigurationError("largest_tenant_share", cap, "give a share in (0, 1]")
        self._check_reason()
        self._check_source()

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
        found = {name: value for name, value in asdict(self).items() if value != default[name]}
        if self.window is not None:
            ends = asdict(self.window)
            found["window"] = {name: value for name, value in ends.items() if value is not None}
        return found

    def _check_reason(self) -> None:
        reason: object = self.reason
        if reason is None:
            return
        if not isinstance(reason, str) or not 0 < len(reason) <= LONGEST_REASON:
            remedy = f"give a text of 1 to {LONGEST_REASON} characters"
            raise ConfigurationError("reason", reason, remedy)

    def _check_source(self) -> None:
        if self.hours is not None and not _is_whole(self.hours, 1, MOST_HOURS):
            raise ConfigurationError("hours", self.hours, f"give hours from 1 to {MOST_HOURS}")
        life: object = self.half_life_hours
        number = isinstance(life, int | float) and not isinstance(life, bool) and life > 0.0
        if life is not None and (not number or life == float("inf")):
            raise ConfigurationError("half_life_hours", life, "give hours above 0")
        default = {entry.name: entry.default for entry in fields(self)}
        for name in _OF_SKETCHES if self.source == "rows" else _OF_ROWS:
            if getattr(self, name) != default[name]:
                remedy = f"leave it out: the source is {self.source!r}"
                raise ConfigurationError(name, getattr(self, name), remedy)
        if self.source == "rows":
            return
        if self.method in ("sts", "segments"):
            raise ConfigurationError("method", self.method, "it needs rows; sketches hold none")
        if self.promote == "guard":
            raise ConfigurationError("promote", "guard", "sketches hold nothing out; use the gate")
        if self.window is not None and self.window.through_batch is not None:
            remedy = "leave it out: sketches reach to the newest folded row"
            raise ConfigurationError("window.through_batch", self.window.through_batch, remedy)


def _is_whole(value: object, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
