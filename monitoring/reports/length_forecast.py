"""Predicted against realised accepted length, before and after recalibration.

Of a block with verified length ℓ and accepted length n a model expects 1 + Σ_{j ≤ ℓ} a_j tokens and
1 + n come. The difference is never divided by ℓ. Groups are drawn by the first confidence logit,
which is known before any outcome of its block: groups by ℓ or by later logits would show errors
that even a perfect model has.

Letters: N rows, γ positions.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from calib.clusters import cluster_codes
from calib.evaluation import ConfidenceModel
from calib.records import AcceptanceRecords

__all__ = ["ForecastError", "LengthForecast", "LengthGroup", "length_forecast"]

Floats = NDArray[np.float64]

_GROUPS: Final = 10
_MINIMUM_ROWS: Final = 30  # of a group


@dataclass(frozen=True, slots=True)
class ForecastError:
    """How one model forecasts accepted length.

    Attributes:
        predicted: mean predicted length, bonus token included; None without rows.
        error: predicted less realised.
        error_low: lower end of its 95 % interval, rows of a prompt counted together.
        error_high: upper end of it.
    """

    predicted: float | None = None
    error: float | None = None
    error_low: float | None = None
    error_high: float | None = None


@dataclass(frozen=True, slots=True)
class LengthGroup:
    """Blocks of like first confidence.

    Attributes:
        rows: how many.
        raw: mean length that raw confidence predicts.
        calibrated: mean length that the calibration predicts.
        realised: mean accepted length, bonus token included.
        realised_low: lower end of its 95 % interval; None with one prompt.
        realised_high: upper end of it.
    """

    rows: int
    raw: float
    calibrated: float
    realised: float
    realised_low: float | None
    realised_high: float | None


@dataclass(frozen=True, slots=True)
class LengthForecast:
    """Both models on the same blocks.

    Attributes:
        rows: N.
        realised: mean accepted length, bonus token included; None without rows.
        raw: forecast of raw confidence.
        calibrated: forecast of the calibration.
        groups: blocks by tenths of the first logit, lowest first.
    """

    rows: int
    realised: float | None
    raw: ForecastError
    calibrated: ForecastError
    groups: tuple[LengthGroup, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {**asdict(self), "groups": [asdict(group) for group in self.groups]}


def length_forecast(
    records: AcceptanceRecords, raw: ConfidenceModel, calibrated: ConfidenceModel
) -> LengthForecast:
    """Forecasts of both models on the usable rows.

    Args:
        records: telemetry; clusters are its prompts, else its requests, else its blocks.
        raw: gives survivals from raw logits.
        calibrated: likewise.
    """
    rows = records.fitting_rows()
    if not len(rows):
        return LengthForecast(0, None, ForecastError(), ForecastError(), ())
    codes = _clusters(rows)
    realised = 1.0 + rows.accepted.astype(np.float64)
    first = _predicted(rows, raw)
    second = first if calibrated is raw else _predicted(rows, calibrated)
    return LengthForecast(
        rows=len(rows),
        realised=float(realised.mean()),
        raw=_error(first, realised, codes),
        calibrated=_error(second, realised, codes),
        groups=_groups(rows.confidence_logits[:, 0], first, second, realised, codes),
    )


def _predicted(rows: AcceptanceRecords, model: ConfidenceModel) -> Floats:
    """[N] expected lengths within what was verified."""
    survival = model.survival(rows.confidence_logits).astype(np.float64)
    verified = np.arange(1, rows.gamma + 1) <= rows.verified[:, None]
    return np.asarray(1.0 + (survival * verified).sum(axis=1), dtype=np.float64)


def _error(predicted: Floats, realised: Floats, codes: NDArray[np.intp]) -> ForecastError:
    mean, low, high = _mean(predicted - realised, codes)
    return ForecastError(float(predicted.mean()), mean, low, high)


def _groups(
    logit: NDArray[np.float32],
    raw: Floats,
    calibrated: Floats,
    realised: Floats,
    codes: NDArray[np.intp],
) -> tuple[LengthGroup, ...]:
    """Equal shares of the blocks; equal logits stay together."""
    edges = np.unique(np.quantile(logit, np.linspace(0.0, 1.0, _GROUPS + 1)[1:-1]))
    group = np.searchsorted(edges, logit, side="left")
    found = []
    for index in range(len(edges) + 1):
        mask = group == index
        if np.count_nonzero(mask) < _MINIMUM_ROWS:
            continue
        mean, low, high = _mean(realised[mask], codes[mask])
        found.append(
            LengthGroup(
                rows=int(np.count_nonzero(mask)),
                raw=float(raw[mask].mean()),
                calibrated=float(calibrated[mask].mean()),
                realised=mean,
                realised_low=low,
                realised_high=high,
            )
        )
    return tuple(found)


def _mean(values: Floats, codes: NDArray[np.intp]) -> tuple[float, float | None, float | None]:
    """Mean with its cluster-robust 95 % interval; no interval from one cluster."""
    mean = float(values.mean())
    _, cluster = np.unique(codes, return_inverse=True)
    sums = np.bincount(cluster, weights=values - mean)
    count = len(sums)
    if count < 2:
        return mean, None, None
    error = float(np.sqrt((sums**2).sum() * count / (count - 1))) / len(values)
    half = float(stats.t.isf(0.025, count - 1)) * error
    return mean, mean - half, mean + half


def _clusters(rows: AcceptanceRecords) -> NDArray[np.intp]:
    for column in (rows.prompt, rows.request):
        if column is not None:
            return cluster_codes(column)
    return np.arange(len(rows))
