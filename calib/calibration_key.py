"""The identity of what a calibration is for: another key never inherits its numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any, Self

from calib.calibration_values import checked_gamma
from calib.canonical_json import sha256_hex
from calib.errors import CalibrationValueError

__all__ = ["SLOT_CONVENTIONS", "CalibrationKey"]

SLOT_CONVENTIONS = ("anchor_excluded", "anchor_included")

_NULLABLE = "draft_vocabulary_hash"


@dataclass(frozen=True)
class CalibrationKey:
    """Everything that decides which event a confidence logit predicts.

    Any change starts a new baseline at identity. Sampling temperature, acceptance rule and other
    tags of single requests are not part of it: engines mix them in one batch.

    Attributes:
        target_model: full name of the target.
        target_revision: commit or tag of its weights.
        target_quantization: its quantisation, ``"none"`` where there is none.
        draft_model: full name of the drafter.
        draft_revision: commit or tag of its weights.
        draft_quantization: its quantisation.
        gamma: block size, 1 … 254.
        slot_convention: ``"anchor_excluded"``, or ``"anchor_included"`` when slot 0 is the anchor.
        confidence_source: ``"head"`` or another named source such as ``"max_log_odds"``.
        verification_method: the engine's configured method.
        draft_vocabulary_hash: hash of the mapping of a pruned draft vocabulary; None without one.

    Raises:
        CalibrationValueError: for empty or non-text names, an unknown convention, a wrong gamma.
    """

    target_model: str
    target_revision: str
    target_quantization: str
    draft_model: str
    draft_revision: str
    draft_quantization: str
    gamma: int
    slot_convention: str
    confidence_source: str = "head"
    verification_method: str = "rejection"
    draft_vocabulary_hash: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "gamma", checked_gamma(self.gamma, "key.gamma"))
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "gamma" or (field.name == _NULLABLE and value is None):
                continue
            if not isinstance(value, str) or not value.strip():
                raise CalibrationValueError(f"key.{field.name}", value, "give a non-empty text")
        if self.slot_convention not in SLOT_CONVENTIONS:
            raise CalibrationValueError(
                "key.slot_convention", self.slot_convention, f"give one of {SLOT_CONVENTIONS}"
            )

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the key's canonical JSON, 64 hexadecimal digits."""
        return sha256_hex(self.to_dict())

    def to_dict(self) -> dict[str, str | int | None]:
        """The fields as plain JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The key with these fields; optional ones may be absent.

        Raises:
            CalibrationValueError: for unknown or missing fields and wrong values.
        """
        names = {field.name for field in fields(cls)}
        unknown = sorted(set(values) - names)
        if unknown:
            raise CalibrationValueError("key", unknown, f"fields are {sorted(names)}")
        try:
            return cls(**values)
        except TypeError as error:
            raise CalibrationValueError("key", dict(values), str(error)) from error
