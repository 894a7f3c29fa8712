"""Slope and intercept per position: fit, status and what to serve where the rows are too few.

The affine form has one more parameter than a temperature, so it needs more rows. It is pulled
towards the temperature fit of its position; where it is not served, (1/T, 0) is, which is the same
curve as the temperature.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from calib.calibration_values import LARGEST_SCALE, SMALLEST_SCALE
from calib.cell_fits import AffineNumbers, cell_ece, fit_affine
from calib.fit_status import FitEvidence, judge
from calib.sketch_cells import LogitCells
from calib.statuses import PositionStatus

__all__ = ["AFFINE_PULL", "MINIMUM_AFFINE_ROWS", "MINIMUM_CLASS_ROWS", "AffineFit", "AffineRules"]

Floats = NDArray[np.float64]

# The affine form is pulled to the temperature fit 20 times as strongly as 1/T to 1: by 100 rows, s
# and b within 0.1 of it, the size of real biases. Simulated on 10k rows, that leaves .0041 of
# held-out error on trimmed logs where a free fit leaves .0122, and costs .0005 on full ones where a
# temperature is wrong.
AFFINE_PULL = 20.0
# Slopes and intercepts beat a temperature from about 3,000 rows that reach the position.
MINIMUM_AFFINE_ROWS = 3000
# With 100 labels of the rarer class the intercept is known to 0.1, the size of the biases it mends.
MINIMUM_CLASS_ROWS = 100


@dataclass(frozen=True, slots=True)
class AffineFit:
    """Affine form of one position.

    Attributes:
        position: k, from 1.
        rows: effective rows that inform it.
        status: how the fit went; only ``ok`` is served, others serve (1/T, 0).
        slope: fitted s, also where too few rows forbid serving it; None where there is none.
        intercept: fitted b, likewise.
        slope_error: standard error of s; None where unknown.
        intercept_error: standard error of b; None where unknown.
        confidence_error: standard error of c, root mean square over the rows; None where unknown.
        gain: log loss saved over the temperature, nats per row; None without a fit.
        reason: why it is not served, in a sentence; None when it is.
    """

    position: int
    rows: int
    status: PositionStatus
    slope: float | None = None
    intercept: float | None = None
    slope_error: float | None = None
    intercept_error: float | None = None
    confidence_error: float | None = None
    gain: float | None = None
    reason: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain JSON values."""
        return {**asdict(self), "status": str(self.status)}


@dataclass(frozen=True, slots=True)
class AffineRules:
    """How affine forms are fitted and judged.

    Attributes:
        ridge: pull of the temperature fit, in rows; slope and intercept get 20 times as much.
        minimum_rows: effective rows needed to serve.
        minimum_class_rows: accepts, and rejects, needed to serve.
        n_bins: equal-width bins of the residual.
        gap_tolerance: residual above the null level that counts as unfit.
    """

    ridge: float
    minimum_rows: int
    minimum_class_rows: int
    n_bins: int
    gap_tolerance: float

    def fit(self, cells: LogitCells, temperatures: Floats, losses: Floats) -> tuple[AffineFit, ...]:
        """Fit and judge every position.

        Args:
            cells: of the positions.
            temperatures: [g] what the temperature form continues with.
            losses: [F] log loss of the temperature fits in nats, of positions with two classes.
        """
        found = [
            _without_number(index, rows)
            for index, rows in enumerate(cells.effective_rows.astype(int).tolist(), 1)
        ]
        fitted = ~cells.one_class
        part = cells.take(fitted)
        center = np.stack([1.0 / temperatures[fitted], np.zeros(part.gamma)], axis=1)
        numbers = fit_affine(part, ridge=AFFINE_PULL * self.ridge, center=center)
        gains = (losses - numbers.loss) / part.total
        verdicts = self._verdicts(part, numbers)
        for place, index in enumerate(np.flatnonzero(fitted).tolist()):
            status, reason = verdicts[place]
            usable = status in (PositionStatus.OK, PositionStatus.INSUFFICIENT)
            found[index] = AffineFit(
                position=index + 1,
                rows=found[index].rows,
                status=status,
                reason=reason,
                slope=float(numbers.slope[place]) if usable else None,
                intercept=float(numbers.intercept[place]) if usable else None,
                slope_error=_finite(numbers.slope_error[place]),
                intercept_error=_finite(numbers.intercept_error[place]),
                confidence_error=_finite(numbers.confidence_error[place]),
                gain=float(gains[place]),
            )
        return tuple(found)

    def _verdicts(
        self, cells: LogitCells, numbers: AffineNumbers
    ) -> list[tuple[PositionStatus, str | None]]:
        odds = numbers.slope[:, None] * cells.logit + numbers.intercept[:, None]
        residual, null_level = cell_ece(cells, expit(odds), self.n_bins)
        accepts = cells.positive.sum(axis=1)
        rarer = np.minimum(accepts, cells.total - accepts) * cells.effective_rows / cells.total
        each = zip(
            residual.tolist(),
            (residual - null_level).tolist(),
            numbers.slope.tolist(),
            numbers.converged.tolist(),
            cells.effective_rows.astype(int).tolist(),
            rarer.tolist(),
            strict=True,
        )
        return [self._verdict(*values) for values in each]

    def _verdict(
        self, residual: float, excess: float, slope: float, converged: bool, rows: int, rarer: float
    ) -> tuple[PositionStatus, str | None]:
        if excess > self.gap_tolerance:
            return PositionStatus.TEMPERATURE_CANNOT_FIT, (
                f"Best residual {residual:.4f}: neither a temperature nor slope and intercept "
                "close this gap; acceptance does not rise with the logit as a sigmoid does."
            )
        if not converged or not SMALLEST_SCALE <= slope <= LARGEST_SCALE:
            return PositionStatus.AT_BOUND, (
                f"The most likely slope, {slope:g}, is outside "
                f"[{SMALLEST_SCALE}, {LARGEST_SCALE:g}]."
            )
        if rows < self.minimum_rows or rarer < self.minimum_class_rows:
            return PositionStatus.INSUFFICIENT, (
                f"{rows} rows, {int(rarer)} of the rarer outcome, inform this position; "
                f"{self.minimum_rows} and {self.minimum_class_rows} are needed."
            )
        return PositionStatus.OK, None


def _without_number(position: int, rows: int) -> AffineFit:
    status, reason = judge(FitEvidence(rows, one_class=True))
    return AffineFit(position, rows, status, reason=reason)


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
