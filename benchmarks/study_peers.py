"""The other libraries' calibrators, each on the same rows, as functions of raw logits.

netcal and scikit-learn know neither blocks nor trimming, so two ways of using them are shown.
*Conditional*: one calibrator a position on the labels that were observed, multiplied up: what
someone does who has thought about censoring. *Survival*: one calibrator a position on the product
of raw confidences against [n >= k], on rows that were verified as far as k.

:func:`online_estimator` restates in float64 what vLLM's online acceptance estimator computes: one
slope for all positions, an intercept for each, damped Newton steps on the observed labels every 100
engine steps. vLLM feeds it the log-odds of the drafter's largest probability and does not use it
where there is a confidence head; here it is given the head's logit.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from calib.labels import observed_mask, survival_informed_mask
from calib.records import AcceptanceRecords

Survival = NDArray[np.float64]
Predictor = Callable[[NDArray[np.float32]], Survival]
Fit = Callable[[AcceptanceRecords], Predictor]
OneFit = Callable[[Any, Any], Callable[[Any], Any]]  # log-odds, labels -> log-odds to probability

INSTALLED = {name: find_spec(name) is not None for name in ("netcal", "sklearn", "river")}
FEWEST = 5  # of each label; below, the position keeps its raw confidence
_EDGE = 1e-7  # netcal and scikit-learn need probabilities inside (0, 1)


def online_estimator(records: AcceptanceRecords, requests: int = 8) -> tuple[float, Any]:
    """Slope and intercepts after the log has passed by in steps of ``requests`` rows."""
    slope, intercepts = 0.5, np.full(records.gamma, -0.2)
    features = np.clip(records.confidence_logits.astype(np.float64), -40.0, 40.0)
    observed = observed_mask(records)
    labels = np.arange(records.gamma) < records.accepted[:, None]
    size = 100 * requests
    for start in range(0, len(records) - size + 1, size):
        rows = slice(start, start + size)
        f, seen = features[rows], observed[rows]
        p = expit(slope * f + intercepts)
        gap = np.where(seen, labels[rows] - p, 0.0)
        weight = np.where(seen, p * (1.0 - p), 0.0)
        step_w, step_b = _arrowhead(
            (float((weight * f * f).sum()), (weight * f).sum(axis=0), weight.sum(axis=0)),
            (float((gap * f).sum()), gap.sum(axis=0)),
        )
        count = seen.sum(axis=0)
        total = float(count.sum())
        slope = max(slope + step_w * total / (total + 50.0), 0.0)
        intercepts = intercepts + step_b * count / (count + 50.0)
    return slope, intercepts


def _arrowhead(information: tuple[float, Any, Any], score: tuple[float, Any]) -> tuple[float, Any]:
    """Solve [[a, c], [cᵀ, diag(d)]] x = score, with a ridge of 10⁻³ on the step."""
    ridge = 1e-3
    corner, cross, diagonal = information[0] + ridge, information[1], information[2] + ridge
    slope = (score[0] - cross @ (score[1] / diagonal)) / (corner - cross @ (cross / diagonal))
    return float(slope), (score[1] - cross * slope) / diagonal


def fit_online(records: AcceptanceRecords) -> Predictor:
    slope, intercepts = online_estimator(records)
    return lambda logits: np.cumprod(
        expit(slope * np.clip(logits.astype(np.float64), -40.0, 40.0) + intercepts), axis=1
    )


def netcal_calibrator(name: str) -> OneFit:
    from netcal.binning import IsotonicRegression
    from netcal.scaling import BetaCalibration, TemperatureScaling

    kinds = {
        "temperature": TemperatureScaling,
        "beta": BetaCalibration,
        "isotonic": IsotonicRegression,
    }

    def fit(odds: Any, labels: Any) -> Callable[[Any], Any]:
        model = kinds[name]()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(_inside(odds), labels.astype(np.int64))

        def predict(values: Any) -> Any:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return np.asarray(model.transform(_inside(values))).reshape(-1)

        return predict

    return fit


def sklearn_calibrator(name: str) -> OneFit:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.frozen import FrozenEstimator

    class Head(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
        """A fitted classifier whose decision function is the logit it is given."""

        classes_ = np.array([0, 1])

        def __sklearn_is_fitted__(self) -> bool:
            return True

        def fit(self, X: Any, y: Any) -> Any:
            return self

        def decision_function(self, X: Any) -> Any:
            return np.asarray(X)[:, 0]

        def predict(self, X: Any) -> Any:
            return (self.decision_function(X) > 0.0).astype(np.int64)

    def fit(odds: Any, labels: Any) -> Callable[[Any], Any]:
        model = CalibratedClassifierCV(FrozenEstimator(Head()), method=name)
        model.fit(odds[:, None], labels.astype(np.int64))
        return lambda values: model.predict_proba(values[:, None])[:, 1]

    return fit


def conditional_arm(make: OneFit) -> Fit:
    """One calibrator a position on observed labels; their product."""

    def fit(records: AcceptanceRecords) -> Predictor:
        z = records.confidence_logits.astype(np.float64)
        found = _by_position(make, z, observed_mask(records), records)
        return lambda logits: np.cumprod(_applied(found, logits.astype(np.float64)), axis=1)

    return fit


def survival_arm(make: OneFit) -> Fit:
    """One calibrator a position on raw survival, where ℓ ≥ k."""

    def fit(records: AcceptanceRecords) -> Predictor:
        odds = _survival_odds(records.confidence_logits)
        found = _by_position(make, odds, survival_informed_mask(records), records)
        return lambda logits: _applied(found, _survival_odds(logits))

    return fit


def _by_position(
    make: OneFit, odds: Any, mask: Any, records: AcceptanceRecords
) -> list[Callable[[Any], Any]]:
    found: list[Callable[[Any], Any]] = []
    for k in range(records.gamma):
        labels = records.accepted[mask[:, k]] > k
        rarer = min(int(labels.sum()), int((~labels).sum()))
        found.append(expit if rarer < FEWEST else make(odds[mask[:, k], k], labels))
    return found


def _applied(found: list[Callable[[Any], Any]], odds: Any) -> Survival:
    columns = [predict(odds[:, k]) for k, predict in enumerate(found)]
    return np.clip(np.stack(columns, axis=1).astype(np.float64), 0.0, 1.0)


def _survival_odds(logits: Any) -> Any:
    p = np.clip(np.cumprod(expit(logits.astype(np.float64)), axis=1), _EDGE, 1.0 - _EDGE)
    return np.log(p) - np.log1p(-p)


def _inside(odds: Any) -> Any:
    return np.clip(expit(odds), _EDGE, 1.0 - _EDGE)


def peer_arms() -> dict[str, Fit]:
    """Every peer that is installed, by the name it has in tables."""
    arms: dict[str, Fit] = {"vLLM online estimator (restated)": fit_online}
    if INSTALLED["netcal"]:
        for name in ("temperature", "beta", "isotonic"):
            arms[f"netcal {name}, conditional"] = conditional_arm(netcal_calibrator(name))
        for name in ("temperature", "isotonic"):
            arms[f"netcal {name}, survival"] = survival_arm(netcal_calibrator(name))
    if INSTALLED["sklearn"]:
        for name in ("sigmoid", "isotonic", "temperature"):
            arms[f"scikit-learn {name}, conditional"] = conditional_arm(sklearn_calibrator(name))
    return arms
