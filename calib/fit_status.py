"""How the fit of one position went: one status, the numbers behind it and a sentence.

The order in which reasons are checked is fixed: no rows, one class, a gap that no temperature
closes, a search that ended at its bound, too few rows. Too few rows never change a number, only
whether it is published.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

from calib.statuses import PositionStatus

__all__ = ["GAP_TOLERANCE", "MINIMUM_ROWS", "Bound", "FitEvidence", "PositionFit", "judge"]

Bound = Literal["lower", "upper"]

# A temperature alone needs about 1,000 rows that reach the position before its calibration error
# falls to 0.01 (20 simulated seeds).
MINIMUM_ROWS = 1000

# A remaining gap this far above what chance explains is no noise and no mild misfit: mis-specified
# heads in simulation, and the drafters of the paper, stay below 0.02 after scaling.
GAP_TOLERANCE = 0.05


@dataclass(frozen=True, slots=True)
class FitEvidence:
    """What a search knows about one position.

    Attributes:
        rows: rows that inform the position.
        one_class: whether every label is 0, or every label is 1.
        temperature: the best temperature in the search; None where none was searched.
        at_bound: the bound of the search that is as good as any temperature, or None.
        residual: smallest calibration error that any temperature in that direction leaves.
        null_level: the error a perfectly calibrated model would show at this number of rows.
    """

    rows: int
    one_class: bool
    temperature: float | None = None
    at_bound: Bound | None = None
    residual: float = 0.0
    null_level: float = 0.0


@dataclass(frozen=True, slots=True)
class PositionFit:
    """Result for one position.

    Attributes:
        position: k, from 1.
        rows: rows that inform it.
        status: how the fit went; only ``ok`` is published.
        temperature: the fitted number, also where too few rows forbid publishing it; None where
            the data give none.
        continued_with: what later positions were fitted on top of.
        ece_before: calibration error with temperature 1; None without rows.
        ece_after: calibration error with ``continued_with``; None without rows.
        residual: smallest error that any temperature leaves; None where none was searched.
        null_level: what a perfectly calibrated model would show at this number of rows.
        reason: why it is not published, in a sentence; None when it is.
    """

    position: int
    rows: int
    status: PositionStatus
    temperature: float | None
    continued_with: float
    ece_before: float | None
    ece_after: float | None
    residual: float | None
    null_level: float | None
    reason: str | None

    @classmethod
    def concluded(
        cls,
        index: int,
        evidence: FitEvidence,
        verdict: tuple[PositionStatus, str | None],
        parent: float,
        errors: tuple[Callable[[float], float | None], Callable[[float], float | None]],
    ) -> Self:
        """What a search and its verdict amount to.

        A number that only lacks rows is a number, and later positions rest on it; with any other
        fault they rest on the parent's.

        Args:
            index: of the position, from 0.
            evidence: what the search found.
            verdict: status and reason, as :func:`judge` gives them.
            parent: served where the position has no number.
            errors: calibration error by temperature, before calibration and of the fit.
        """
        status, reason = verdict
        usable = status in (PositionStatus.OK, PositionStatus.INSUFFICIENT)
        temperature = evidence.temperature if usable else None
        continued = parent if temperature is None else temperature
        searched = evidence.temperature is not None
        before, after = errors
        return cls(
            position=index + 1,
            rows=evidence.rows,
            status=status,
            temperature=temperature,
            continued_with=continued,
            ece_before=before(1.0),
            ece_after=after(continued),
            residual=evidence.residual if searched else None,
            null_level=evidence.null_level if searched else None,
            reason=reason,
        )

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain JSON values."""
        return {**asdict(self), "status": str(self.status)}


def judge(
    evidence: FitEvidence,
    *,
    minimum_rows: int = MINIMUM_ROWS,
    gap_tolerance: float = GAP_TOLERANCE,
) -> tuple[PositionStatus, str | None]:
    """Status and reason of one position.

    Args:
        evidence: what the search found.
        minimum_rows: rows below which nothing is published.
        gap_tolerance: residual above the null level that counts as unfit.
    """
    if evidence.rows == 0:
        return PositionStatus.INSUFFICIENT, "No row informs this position."
    if evidence.one_class:
        return PositionStatus.ONE_CLASS, f"All {evidence.rows} labels are the same."
    if evidence.residual - evidence.null_level > gap_tolerance:
        return PositionStatus.TEMPERATURE_CANNOT_FIT, (
            f"Best residual {evidence.residual:.4f}: no positive temperature closes this gap, so "
            "temperature alone cannot fix this position; the affine form may (slope and intercept)."
        )
    if evidence.at_bound is not None:
        return PositionStatus.AT_BOUND, (
            f"No temperature fits better than the {evidence.at_bound} bound of the search, so the "
            "data give no number."
        )
    if evidence.rows < minimum_rows:
        return PositionStatus.INSUFFICIENT, (
            f"{evidence.rows} rows inform this position; {minimum_rows} are needed to publish."
        )
    return PositionStatus.OK, None
