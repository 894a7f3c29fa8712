"""The calibration of one drafter as an immutable value: numbers, evidence, status, digest.

Letters: N rows, g = gamma draft positions; arrays use index 0 for position 1, the anchor is never a
position. z is the raw confidence logit, c_k the conditional confidence, a_k = c_1 · … · c_k the
survival (paper §3.2.1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Literal, Self, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib.calibration_fields import (
    checked_mapping,
    checked_statuses,
    checked_text,
    checked_word,
    frozen_evidence,
    serving_status,
)
from calib.calibration_key import CalibrationKey
from calib.calibration_values import checked_gamma, checked_numbers, checked_scales
from calib.canonical_json import canonical_json, parse_json_object, plain_json, sha256_hex
from calib.errors import CalibrationValueError, FormatError, RecordError
from calib.labels import LabelKind
from calib.sigmoid import sigmoid_fp32
from calib.statuses import PositionStatus, ServingStatus

__all__ = ["FORMS", "METHODS", "Calibration", "CalibrationKey", "Form", "serving_status"]

METHODS = ("identity", "sts", "temperature", "affine", "manual")
FORMAT = "dspark-calib/calibration/1"

Form = Literal["temperatures", "affine"]
FORMS: tuple[Form, ...] = get_args(Form)


@dataclass(frozen=True, eq=False)
class Calibration:
    """Temperatures, and optionally the affine form, of one drafter.

    Numbers are rounded to six significant digits and then validated, so equal calibrations are
    equal bytes on every rank. Two calibrations are equal when all their fields are; they hash by
    ``digest``, which covers key and numbers but neither evidence nor time.

    Attributes:
        gamma: block size the numbers are for.
        temperatures: T_k in [0.05, 20], one per position: c_k = sigma(z_k / T_k). Every
            calibration has them, because they are what any engine can apply.
        slopes: s_k in [0.05, 20] of the affine form c_k = sigma(s_k z_k + b_k), or None.
        intercepts: b_k, finite; given exactly when slopes are.
        status: how good the numbers are as a whole.
        position_statuses: how each position's fit went; other than ``ok`` means that the number
            is the parent's, or 1.
        method: one of :data:`METHODS`.
        label_kind: ``hard``, ``soft_full`` or ``soft_truncated``; None when nothing was fitted.
        key: what the numbers are for; None outside a service.
        evidence: plain JSON: counts, errors before and after, reasons.
        fitted_at: ISO 8601 time, or None.
        derived_from_gamma: the block size this prefix was cut from, or None.

    Raises:
        CalibrationValueError: naming field, value and remedy.
    """

    gamma: int
    temperatures: tuple[float, ...]
    slopes: tuple[float, ...] | None = None
    intercepts: tuple[float, ...] | None = None
    status: ServingStatus = ServingStatus.FITTED
    position_statuses: tuple[PositionStatus, ...] = ()
    method: str = "manual"
    label_kind: str | None = None
    key: CalibrationKey | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)
    fitted_at: str | None = None
    derived_from_gamma: int | None = None

    def __post_init__(self) -> None:
        gamma = checked_gamma(self.gamma)
        if (self.slopes is None) != (self.intercepts is None):
            raise CalibrationValueError("intercepts", self.intercepts, "give slopes and intercepts")
        checked: dict[str, Any] = {
            "gamma": gamma,
            "temperatures": checked_scales("temperatures", self.temperatures, gamma),
            "status": checked_word(ServingStatus, "status", self.status),
            "position_statuses": checked_statuses(self.position_statuses, gamma),
            "label_kind": _label_kind(self.label_kind),
            "fitted_at": checked_text("fitted_at", self.fitted_at),
            "evidence": frozen_evidence(self.evidence),
        }
        if self.slopes is not None:
            checked["slopes"] = checked_scales("slopes", self.slopes, gamma)
            checked["intercepts"] = checked_numbers("intercepts", self.intercepts, gamma)
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        _check_consistency(self)

    @classmethod
    def identity(cls, gamma: int, key: CalibrationKey | None = None) -> Self:
        """The calibration that changes nothing: all ones, status ``identity``."""
        gamma = checked_gamma(gamma)
        return cls(
            gamma=gamma,
            temperatures=(1.0,) * gamma,
            status=ServingStatus.IDENTITY,
            position_statuses=(PositionStatus.INSUFFICIENT,) * gamma,  # no rows, no fit
            method="identity",
            key=key,
        )

    @classmethod
    def from_temperatures(
        cls,
        temperatures: Iterable[float],
        *,
        gamma: int,
        key: CalibrationKey | None = None,
        method: str = "manual",
        position_statuses: Iterable[PositionStatus] | None = None,
        label_kind: str | None = None,
        evidence: Mapping[str, Any] | None = None,
        fitted_at: str | None = None,
    ) -> Self:
        """A calibration of these temperatures; its status follows from ``position_statuses``.

        Args:
            temperatures: one per position, in [0.05, 20] after rounding.
            gamma: block size; stated, never inferred from the list.
            key: what the numbers are for.
            method: where they come from.
            position_statuses: how each fit went; all ``ok`` when None.
            label_kind: kind of the labels fitted on.
            evidence: plain JSON.
            fitted_at: ISO 8601 time.

        Raises:
            CalibrationValueError: naming field, value and remedy.

        Examples:
            >>> Calibration.from_temperatures([1.5, 1.25], gamma=2).status
            <ServingStatus.FITTED: 'fitted'>
        """
        gamma = checked_gamma(gamma)
        given = () if position_statuses is None else tuple(position_statuses)
        statuses = checked_statuses(given, gamma)
        return cls(
            gamma=gamma,
            temperatures=checked_scales("temperatures", temperatures, gamma),
            status=serving_status(statuses),
            position_statuses=statuses,
            method=method,
            label_kind=label_kind,
            key=key,
            evidence={} if evidence is None else evidence,
            fitted_at=fitted_at,
        )

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hexadecimal) of the canonical JSON of key, gamma and numbers."""
        named = ("gamma", "temperatures", "slopes", "intercepts")
        numbers = {name: getattr(self, name) for name in named}
        key = None if self.key is None else self.key.to_dict()
        return sha256_hex({"key": key, **numbers})

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Calibration):
            return NotImplemented
        return self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash(self.digest)

    def __reduce__(self) -> tuple[Callable[[bytes], Self], tuple[bytes]]:
        # The read-only views of the evidence cannot be pickled; the JSON round trip is exact.
        return type(self).from_json, (self.to_json(),)

    def to_dict(self) -> dict[str, Any]:
        """Every field and the digest as plain JSON values."""
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        values["key"] = None if self.key is None else self.key.to_dict()
        return {"format": FORMAT, "digest": self.digest, **plain_json(values)}

    def to_json(self) -> bytes:
        """Canonical JSON (RFC 8785) of :meth:`to_dict`: equal calibrations give equal bytes."""
        return canonical_json(self.to_dict())

    @classmethod
    def from_json(cls, data: bytes | str) -> Self:
        """The calibration that :meth:`to_json` wrote.

        Raises:
            FormatError: no JSON object of this format, unknown or missing fields, or a digest
                that does not belong to the numbers.
            CalibrationValueError: a number or word that no calibration may hold.
        """
        source = "calibration JSON"
        values = parse_json_object(data, source)
        if values.pop("format", None) != FORMAT:
            raise FormatError(source, f"'format' is not {FORMAT!r}", "write it with to_json()")
        digest = values.pop("digest", None)
        known = {entry.name for entry in fields(cls)}
        if set(values) - known or not {"gamma", "temperatures"} <= set(values):
            wrong = sorted(set(values) ^ known)
            raise FormatError(source, f"unknown or missing fields {wrong}", f"fields are {known}")
        if values.get("key") is not None:
            values["key"] = CalibrationKey.from_dict(checked_mapping("key", values["key"]))
        calibration = cls(**values)
        if digest not in (None, calibration.digest):
            raise FormatError(source, "the digest does not match", "fetch or write it again")
        return calibration

    def prefix(self, gamma: int) -> Self:
        """The first ``gamma`` positions, marked with ``derived_from_gamma``.

        Equal to this calibration when ``gamma`` is its own. The key stays the drafter's.

        Raises:
            CalibrationValueError: when ``gamma`` is longer than what was fitted.
        """
        gamma = checked_gamma(gamma)
        if gamma > self.gamma:
            raise CalibrationValueError(
                "gamma", gamma, f"this calibration has {self.gamma} positions; fit a longer one"
            )
        if gamma == self.gamma:
            return self
        statuses = self.position_statuses[:gamma]
        affine = self.slopes is not None
        refit = self.status in (ServingStatus.FITTED, ServingStatus.PARTIAL)
        return replace(
            self,
            gamma=gamma,
            temperatures=self.temperatures[:gamma],
            slopes=None if self.slopes is None else self.slopes[:gamma],
            intercepts=None if self.intercepts is None else self.intercepts[:gamma],
            position_statuses=statuses,
            status=serving_status(statuses, affine=affine) if refit else self.status,
            derived_from_gamma=self.derived_from_gamma or self.gamma,
        )

    def conditional(
        self,
        confidence_logits: ArrayLike,  # [..., gamma] raw, finite
        *,
        form: Form = "temperatures",
    ) -> NDArray[np.float32]:
        """Conditional confidences c, fp32 in [0, 1], in the shape of the logits.

        Args:
            confidence_logits: raw logits, cast to fp32.
            form: ``"temperatures"`` for sigma(z / T), ``"affine"`` for sigma(s z + b).

        Raises:
            RecordError: wrong last axis or logits that are not finite.
            CalibrationValueError: ``"affine"`` without slopes, or another word.
        """
        if form not in get_args(Form) or (form == "affine" and self.slopes is None):
            raise CalibrationValueError(
                "form", form, "use 'temperatures'; 'affine' needs slopes and intercepts"
            )
        logits = _checked_logits(confidence_logits, self.gamma)
        argument = np.empty_like(logits)
        with np.errstate(over="ignore"):  # the fp32 argument may reach infinity: sigma is 0 or 1
            if form == "temperatures":
                np.divide(logits, np.array(self.temperatures, dtype=np.float32), out=argument)
            else:
                np.multiply(logits, np.array(self.slopes, dtype=np.float32), out=argument)
                argument += np.array(self.intercepts, dtype=np.float32)
        return sigmoid_fp32(argument)

    def survival(
        self,
        confidence_logits: ArrayLike,  # [..., gamma] raw, finite
        *,
        form: Form = "temperatures",
    ) -> NDArray[np.float32]:
        """Survival a_k = c_1 · … · c_k, multiplied in fp32 from the left; never rises along k.

        Arguments and errors are those of :meth:`conditional`.
        """
        conditional = self.conditional(confidence_logits, form=form)
        return np.cumprod(conditional, axis=-1, dtype=np.float32)


def _check_consistency(calibration: Calibration) -> None:
    """Fields that must agree with one another."""
    if calibration.method not in METHODS:
        raise CalibrationValueError("method", calibration.method, f"give one of {METHODS}")
    ones = (1.0,) * calibration.gamma
    plain = calibration.temperatures == ones and calibration.slopes is None
    if calibration.status is ServingStatus.IDENTITY and not plain:
        raise CalibrationValueError(
            "status", "identity", "identity is all ones without an affine form"
        )
    all_ok = all(status is PositionStatus.OK for status in calibration.position_statuses)
    if calibration.status is ServingStatus.FITTED and not all_ok:
        raise CalibrationValueError(
            "status", "fitted", "some positions are not ok; use 'partial' or 'insufficient'"
        )
    origin = calibration.derived_from_gamma
    if origin is not None and checked_gamma(origin, "derived_from_gamma") <= calibration.gamma:
        raise CalibrationValueError("derived_from_gamma", origin, "must exceed gamma")
    key = calibration.key
    if key is not None and not isinstance(key, CalibrationKey):
        raise CalibrationValueError("key", key, "give a CalibrationKey")
    if key is not None and key.gamma != (origin or calibration.gamma):
        raise CalibrationValueError("key.gamma", key.gamma, "must be the gamma of the calibration")


def _label_kind(value: Any) -> str | None:
    text = checked_text("label_kind", value)
    if text is not None and text not in set(LabelKind):
        raise CalibrationValueError("label_kind", text, f"give one of {[*map(str, LabelKind)]}")
    return text


def _checked_logits(confidence_logits: ArrayLike, gamma: int) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):  # reported below as not finite
        logits = np.asarray(confidence_logits, dtype=np.float32)
    if logits.ndim == 0 or logits.shape[-1] != gamma:
        raise RecordError(
            "confidence_logits", logits.shape, f"the last axis must have gamma = {gamma} entries"
        )
    if not np.isfinite(logits).all():
        wrong = logits[~np.isfinite(logits)]
        raise RecordError("confidence_logits", float(wrong[0]), "give finite fp32 logits")
    return logits
