"""What every fit of one temperature per position shares: input checks, serving, transformation.

Letters: N rows, g = gamma draft positions; arrays use index 0 for position 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib.calibration import Calibration, CalibrationKey
from calib.calibration_values import LARGEST_SCALE, SMALLEST_SCALE, checked_scales
from calib.data_quality import looks_like_probabilities
from calib.errors import ConfigurationError, FitRefusedError, RecordError
from calib.estimator_shape import EstimatorShape
from calib.fit_status import PositionFit
from calib.sigmoid import sigmoid_fp32
from calib.statuses import PositionStatus, Refusal

__all__ = [
    "PUBLISHABLE_BOUNDS",
    "TemperatureEstimator",
    "checked_bounds",
    "checked_count",
    "checked_logits",
    "checked_positive",
]

PUBLISHABLE_BOUNDS = (SMALLEST_SCALE, LARGEST_SCALE)


class TemperatureEstimator(EstimatorShape):
    """Base of the estimators with one temperature per position.

    Attributes (after ``fit``):
        temperatures_: [g] fp64; the fitted number of a position, also where too few rows forbid
            publishing it, and the parent's number (or 1) where the data give none.
        position_statuses_: how each position went.
        position_fits_: the same with all numbers and reasons.
        ece_before_, ece_after_: [g] fp64 calibration errors in [0, 1], NaN without rows.
        n_features_in_: g.
    """

    parent_temperatures: Sequence[float] | None
    allow_unit_interval: bool
    temperatures_: NDArray[np.float64]
    position_statuses_: tuple[PositionStatus, ...]
    position_fits_: tuple[PositionFit, ...]
    ece_before_: NDArray[np.float64]
    ece_after_: NDArray[np.float64]
    n_features_in_: int
    label_kind_: str

    _method: str

    def fit(self, X: ArrayLike, y: ArrayLike | None = None) -> Self:
        """Learn one temperature per position; see the subclass."""
        raise NotImplementedError

    def calibration(
        self,
        key: CalibrationKey | None = None,
        *,
        fitted_at: str | None = None,
    ) -> Calibration:
        """What may be published: ``ok`` positions carry their fit, others the parent's number or 1.

        Args:
            key: what the numbers are for.
            fitted_at: ISO 8601 time to store with them.

        Raises:
            NotFittedError: before ``fit``.
            CalibrationValueError: a fitted number outside [0.05, 20], possible only when the
                search was given wider bounds.
        """
        self._require_fit()
        parent = self._parent(self.n_features_in_)
        served = [
            float(temperature) if published else fallback
            for temperature, published, fallback in zip(
                self.temperatures_, self._published(), parent, strict=True
            )
        ]
        return Calibration.from_temperatures(
            served,
            gamma=self.n_features_in_,
            key=key,
            method=self._method,
            position_statuses=self.position_statuses_,
            label_kind=self.label_kind_,
            evidence=self._evidence(),
            fitted_at=fitted_at,
        )

    def transform(self, X: ArrayLike) -> NDArray[np.float32]:
        """Conditional confidences sigma(z_k / T_k), fp32 [N, g], with ``temperatures_``.

        Raises:
            NotFittedError: before ``fit``.
            RecordError: logits of another width or not finite.
        """
        self._require_fit()
        logits = checked_logits(X).astype(np.float32, copy=False)
        if logits.shape[1] != self.n_features_in_:
            raise RecordError("confidence_logits", logits.shape, f"gamma is {self.n_features_in_}")
        with np.errstate(over="ignore"):  # an infinite argument gives 0 or 1
            argument = np.divide(logits, self.temperatures_.astype(np.float32), dtype=np.float32)
        return sigmoid_fp32(argument)

    def survival(self, X: ArrayLike) -> NDArray[np.float32]:
        """Survival, the running product of :meth:`transform`, fp32 [N, g].

        Raises:
            NotFittedError: before ``fit``.
            RecordError: logits of another width or not finite.
        """
        return np.cumprod(self.transform(X), axis=1, dtype=np.float32)

    def fit_transform(self, X: ArrayLike, y: ArrayLike | None = None) -> NDArray[np.float32]:
        """``fit(X, y).transform(X)``."""
        return self.fit(X, y).transform(X)

    def _published(self) -> list[bool]:
        return [status is PositionStatus.OK for status in self.position_statuses_]

    def _evidence(self) -> dict[str, Any]:
        parameters = {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in self.get_params().items()
            if name != "parent_temperatures"
        }
        return {
            "parameters": parameters,
            "parent_temperatures": list(self._parent(self.n_features_in_)),
            "positions": [fit.to_dict() for fit in self.position_fits_],
        }

    def _parent(self, gamma: int) -> tuple[float, ...]:
        """The numbers served where a position has none of its own."""
        if self.parent_temperatures is None:
            return (1.0,) * gamma
        return checked_scales("parent_temperatures", self.parent_temperatures, gamma)

    def _store(self, fits: Iterable[PositionFit], label_kind: str) -> Self:
        """Set the learned attributes."""
        self.position_fits_ = tuple(fits)
        self.n_features_in_ = len(self.position_fits_)
        self.position_statuses_ = tuple(fit.status for fit in self.position_fits_)
        self.temperatures_ = np.array([fit.continued_with for fit in self.position_fits_])
        self.ece_before_ = _or_nan(fit.ece_before for fit in self.position_fits_)
        self.ece_after_ = _or_nan(fit.ece_after for fit in self.position_fits_)
        self.label_kind_ = label_kind
        return self

    def _refuse_probabilities(self, logits: NDArray[np.floating]) -> None:
        if not self.allow_unit_interval and looks_like_probabilities(logits):
            raise FitRefusedError(
                Refusal.LOOKS_LIKE_PROBABILITIES,
                f"all {logits.size} values lie in [0, 1]; send raw confidence logits, or set "
                "allow_unit_interval=True if these are logits",
            )


def _or_nan(values: Iterable[float | None]) -> NDArray[np.float64]:
    return np.array([np.nan if value is None else value for value in values])


def checked_logits(X: ArrayLike) -> NDArray[np.floating]:
    """[N, g] finite floating-point logits with N, g >= 1.

    Raises:
        RecordError: another shape or type, or values that are not finite as fp32.
        FitRefusedError: no rows.
    """
    logits = np.asarray(X)
    if logits.dtype.kind in "iu":
        logits = logits.astype(np.float64)
    if logits.ndim != 2 or logits.shape[1] == 0 or logits.dtype.kind != "f":
        shown = (logits.dtype.name, logits.shape)
        raise RecordError("confidence_logits", shown, "give a float array [N, gamma]")
    if len(logits) == 0:
        raise FitRefusedError(Refusal.NO_ROWS, "there are 0 rows")
    largest = np.finfo(np.float32).max
    # Two reductions and no copy; NaN fails both comparisons.
    if not (logits.min() >= -largest and logits.max() <= largest):
        wrong = logits[~(np.abs(logits) <= largest)]
        raise RecordError("confidence_logits", float(wrong[0]), "give finite fp32 logits")
    return logits


def checked_bounds(bounds: Any) -> tuple[float, float]:
    """Search bounds (low, high) with 0 < low <= 1 <= high, finite in fp32.

    Raises:
        ConfigurationError: for anything else.
    """
    remedy = "give (low, high) with 0 < low <= 1 <= high"
    try:
        low, high = (float(bound) for bound in bounds)
    except (TypeError, ValueError):
        raise ConfigurationError("bounds", bounds, remedy) from None
    if not 1e-30 <= low <= 1.0 <= high <= 1e30:
        raise ConfigurationError("bounds", bounds, remedy)
    return low, high


def checked_count(field: str, value: Any, smallest: int) -> int:
    """A whole number of at least ``smallest``.

    Raises:
        ConfigurationError: for anything else.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < smallest:
        raise ConfigurationError(field, value, f"give a whole number >= {smallest}")
    return int(value)


def checked_positive(field: str, value: Any) -> float:
    """A finite number >= 0.

    Raises:
        ConfigurationError: for anything else.
    """
    is_number = isinstance(value, int | float | np.integer | np.floating)
    if not is_number or isinstance(value, bool) or not 0 <= value < float("inf"):
        raise ConfigurationError(field, value, "give a finite number >= 0")
    return float(value)
