"""What flexible calibrators reach on the same split: isotonic and Platt per position.

A reference, not a product: these curves use labels freely, position by position and view by view,
so what temperatures leave beyond them no monotone recalibration of the head can win. Engines cannot
apply them, and no prefix scheduler could rank on a survival that need not fall along the block.

scikit-learn does the work and is imported when a reference is fitted, not before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from calib.calibration import Calibration
from calib.confidence_model import conditional_log_odds, survival_log_odds
from calib.errors import ConfigurationError
from calib.labels import (
    conditional_labels,
    observed_mask,
    survival_informed_mask,
    survival_labels,
)
from calib.records import AcceptanceRecords
from calib.reliability import DEFAULT_BINS
from monitoring.reports.evaluation_report import Judgement, judge

__all__ = ["KINDS", "ReferenceCalibrator", "fit_reference", "reference_judgements"]

Floats = NDArray[np.float64]
Curve = Callable[[Floats], Floats]
Kind = Literal["isotonic", "platt"]

KINDS: tuple[Kind, ...] = get_args(Kind)
# Fewer rows do not hold a curve; such positions keep raw confidence.
MINIMUM_ROWS = 50


@dataclass(frozen=True, slots=True)
class ReferenceCalibrator:
    """One curve per position and view over raw log-odds; a model that ``evaluate`` can judge.

    Attributes:
        kind: ``"isotonic"`` or ``"platt"``.
        conditional_curves: log-odds z_k to c_k, one per position.
        survival_curves: log-odds of the raw product to a_k, one per position.
    """

    kind: str
    conditional_curves: tuple[Curve, ...]
    survival_curves: tuple[Curve, ...]

    def conditional(self, confidence_logits: NDArray[np.float32], /) -> NDArray[np.float32]:
        """Conditional confidences c, [N, gamma] in [0, 1]."""
        conditional, _ = _raw_log_odds(confidence_logits)
        return _apply(self.conditional_curves, conditional)

    def survival(self, confidence_logits: NDArray[np.float32], /) -> NDArray[np.float32]:
        """Survivals a, [N, gamma] in [0, 1]; not the product of :meth:`conditional`."""
        _, survival = _raw_log_odds(confidence_logits)
        return _apply(self.survival_curves, survival)


def fit_reference(records: AcceptanceRecords, kind: Kind) -> ReferenceCalibrator:
    """Fit every curve on the usable rows.

    Args:
        records: rows to fit on, not those to judge on.
        kind: ``"isotonic"`` or ``"platt"``.

    Raises:
        ConfigurationError: another kind.
    """
    if kind not in KINDS:
        raise ConfigurationError("kind", kind, f"give one of {', '.join(KINDS)}")
    fit = _fit_isotonic if kind == "isotonic" else _fit_platt
    rows = records.fitting_rows()
    conditional, survival = _raw_log_odds(rows.confidence_logits)

    def curves(
        odds: Floats, labels: NDArray[np.float32], mask: NDArray[np.bool_]
    ) -> tuple[Curve, ...]:
        return tuple(
            _fit_curve(fit, odds[mask[:, k], k], labels[mask[:, k], k]) for k in range(rows.gamma)
        )

    return ReferenceCalibrator(
        kind,
        curves(conditional, conditional_labels(rows), observed_mask(rows)),
        curves(survival, survival_labels(rows), survival_informed_mask(rows)),
    )


def reference_judgements(
    fit: AcceptanceRecords, evaluation: AcceptanceRecords, *, n_bins: int = DEFAULT_BINS
) -> dict[str, Judgement]:
    """Both references, fitted on one part and judged on the other, by kind.

    Args:
        fit: rows to fit on.
        evaluation: rows to judge on.
        n_bins: bins of every ECE.
    """
    return {kind: judge(evaluation, fit_reference(fit, kind), n_bins) for kind in KINDS}


def _raw_log_odds(confidence_logits: NDArray[np.float32]) -> tuple[Floats, Floats]:
    """Log-odds of raw conditionals and of their product, both [N, gamma]."""
    identity = Calibration.identity(confidence_logits.shape[1])
    conditional = conditional_log_odds(
        identity, confidence_logits, identity.conditional(confidence_logits)
    )
    survival = survival_log_odds(
        identity, confidence_logits, conditional, identity.survival(confidence_logits)
    )
    return conditional, survival


def _fit_curve(fit: Callable[[Floats, Any], Curve], odds: Floats, labels: Any) -> Curve:
    if len(labels) < MINIMUM_ROWS or labels.min() == labels.max():
        return _sigmoid
    return fit(odds, labels)


def _fit_isotonic(odds: Floats, labels: Any) -> Curve:
    from sklearn.isotonic import IsotonicRegression

    # A step that saw no failure would claim certainty; half a row of doubt keeps log loss finite.
    doubt = 0.5 / len(labels)
    model = IsotonicRegression(y_min=doubt, y_max=1.0 - doubt, out_of_bounds="clip")
    model.fit(odds, labels)
    return lambda values: np.asarray(model.predict(values), dtype=np.float64)


def _fit_platt(odds: Floats, labels: Any) -> Curve:
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(C=1e6).fit(odds[:, None], labels)  # as good as unpenalised
    slope, intercept = float(model.coef_[0, 0]), float(model.intercept_[0])
    return lambda values: _sigmoid(slope * values + intercept)


def _sigmoid(values: Floats) -> Floats:
    with np.errstate(over="ignore"):
        return np.asarray(1.0 / (1.0 + np.exp(-values)), dtype=np.float64)


def _apply(curves: tuple[Curve, ...], odds: Floats) -> NDArray[np.float32]:
    columns = [curve(odds[:, k]) for k, curve in enumerate(curves)]
    return np.stack(columns, axis=1).astype(np.float32)
