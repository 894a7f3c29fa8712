"""Do soft labels and observed acceptance tell the same story?

A soft label c*_k is the probability that position k is accepted given that all before it were, so
on the rows where acceptance was observed (k ≤ min(n + 1, ℓ)) the residual y − c* has mean 0. A
gap means wrong labels: another acceptance rule, other sampling parameters, a shifted slot, target
logits of other prefixes. Fitting on such labels would move every temperature to the wrong place.

Two numbers are given for each position, both from the same rows:

* z = Σ(y − c*) / √Σ c*(1 − c*), the familiar standard score, to read;
* evidence, an e-value against "no row's acceptance probability differs from its c* by more than
  the effect floor δ", to decide. It is the mean over bets λ of

      ∏ e^{λy} / (1 + min(c* + δ, 1)(e^λ − 1))    λ > 0   (with max(c* − δ, 0) for λ < 0)

  whose factors have mean at most 1 under that null. The product is a supermartingale over rows,
  so by Ville's inequality P(evidence ever reaches γ/α at any position) ≤ α however often, and
  whenever, the check is made while rows arrive.

Rows are folded into cells of c* first and a cell's denominator taken at its mean: the logarithm
is concave in c*, so this only lowers the evidence, and the guarantee stays exact.

Where every c* of a position is 0 or 1 (greedy on both sides) there is no chance left to explain a
difference: one row that disagrees makes the position inconsistent.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calib.errors import ConfigurationError, FitRefusedError
from calib.labels import observed_mask
from calib.records import AcceptanceRecords
from calib.statuses import Refusal

DEFAULT_EFFECT_FLOOR = 0.01
DEFAULT_ERROR_RATE = 1e-3

_CELLS = 256
# The best bet on a gap g is about (|g| − δ)/(c*(1 − c*)): .01 … 10 covers gaps just above the
# floor in a million rows and gross ones in ten; a factor of 2 off costs at most 12 % of the rate.
_BETS = 0.01 * 2.0 ** np.arange(11)


@dataclass(frozen=True, slots=True)
class PositionConsistency:
    """Soft labels against acceptance at one position.

    Attributes:
        position: k, from 1.
        rows: rows with an observed acceptance and a known soft label.
        mean_soft_label: mean c*; None without rows.
        mean_acceptance: mean y on the same rows; None without rows.
        gap: mean of y − c*; None without rows.
        z: gap in standard errors under c*; None where c* leaves no variance.
        impossible: rows accepted at c* = 0 or rejected at c* = 1.
        log_evidence: natural logarithm of the e-value; 0 without rows.
        inconsistent: the evidence passed the threshold and the gap the floor, or an impossible
            row where every c* is 0 or 1.
    """

    position: int
    rows: int
    mean_soft_label: float | None
    mean_acceptance: float | None
    gap: float | None
    z: float | None
    impossible: int
    log_evidence: float
    inconsistent: bool


@dataclass(frozen=True, slots=True)
class LabelConsistency:
    """Result of one check.

    Attributes:
        positions: one entry per position, 1 to γ.
        effect_floor: δ, differences up to it are tolerated.
        error_rate: α, bound on the chance that consistent labels are ever called inconsistent.
        log_threshold: evidence at which a position is inconsistent, ln(γ/α).
    """

    positions: tuple[PositionConsistency, ...]
    effect_floor: float
    error_rate: float
    log_threshold: float

    @property
    def inconsistent(self) -> bool:
        """Whether any position is."""
        return any(position.inconsistent for position in self.positions)

    @property
    def rows(self) -> int:
        """Compared labels over all positions; 0 says that nothing was compared."""
        return sum(position.rows for position in self.positions)

    @property
    def refusal(self) -> Refusal | None:
        """``label_inconsistent``, or None."""
        return Refusal.LABEL_INCONSISTENT if self.inconsistent else None

    @property
    def reason(self) -> str:
        """Evidence in words: each inconsistent position, or that labels agree."""
        if not self.rows:
            return "no row carries both a soft label and an observed acceptance"
        parts = [_describe(position) for position in self.positions if position.inconsistent]
        if not parts:
            return f"soft labels agree with acceptance on {self.rows:,} labels"
        return (
            "; ".join(parts) + "; check acceptance rule, draft mode, sampling parameters and slots"
        )

    def require(self) -> None:
        """Let a fit go on.

        Raises:
            FitRefusedError: ``label_inconsistent``, with :attr:`reason`.
        """
        if self.inconsistent:
            raise FitRefusedError(Refusal.LABEL_INCONSISTENT, self.reason)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON: no NaN, no infinity."""
        return asdict(self) | {"inconsistent": self.inconsistent, "reason": self.reason}


def check_label_consistency(
    records: AcceptanceRecords,
    *,
    effect_floor: float = DEFAULT_EFFECT_FLOOR,
    error_rate: float = DEFAULT_ERROR_RATE,
) -> LabelConsistency:
    """Compare soft labels with observed acceptance on the usable rows.

    Args:
        records: telemetry; without soft labels nothing is compared and nothing is inconsistent.
        effect_floor: δ in [0, 1), the gap that is tolerated.
        error_rate: α in (0, 1), see :class:`LabelConsistency`; shared by all positions.

    Raises:
        ConfigurationError: an option outside its range.
    """
    if not 0.0 <= effect_floor < 1.0:
        raise ConfigurationError("effect_floor", effect_floor, "give a gap in [0, 1)")
    if not 0.0 < error_rate < 1.0:
        raise ConfigurationError("error_rate", error_rate, "give a probability in (0, 1)")
    log_threshold = float(np.log(records.gamma / error_rate))
    positions = tuple(
        _compare(k + 1, soft, accepted, effect_floor, log_threshold)
        for k, (soft, accepted) in enumerate(_columns(records))
    )
    return LabelConsistency(positions, effect_floor, error_rate, log_threshold)


def _columns(
    records: AcceptanceRecords,
) -> list[tuple[NDArray[np.float64], NDArray[np.bool_]]]:
    """Per position, c* and acceptance of the rows that carry both."""
    if records.soft_labels is None:
        return [(np.zeros(0), np.zeros(0, dtype=bool))] * records.gamma
    compared = observed_mask(records) & records.usable()[:, None]
    compared &= np.isfinite(records.soft_labels)
    return [
        (records.soft_labels[rows, k].astype(np.float64), records.accepted[rows] > k)
        for k, rows in enumerate(compared.T)
    ]


def _compare(
    position: int,
    soft: NDArray[np.float64],  # [n] in [0, 1]
    accepted: NDArray[np.bool_],  # [n]
    effect_floor: float,
    log_threshold: float,
) -> PositionConsistency:
    rows = len(soft)
    if rows == 0:
        return PositionConsistency(position, 0, None, None, None, None, 0, 0.0, False)
    gap = float((accepted - soft).mean())
    variance = float((soft * (1.0 - soft)).sum())
    impossible = int(np.count_nonzero(np.where(accepted, soft == 0.0, soft == 1.0)))
    evidence = _log_evidence(soft, accepted, effect_floor)
    if variance == 0.0:
        inconsistent = impossible > 0
    else:
        inconsistent = evidence >= log_threshold and abs(gap) > effect_floor
    return PositionConsistency(
        position=position,
        rows=rows,
        mean_soft_label=float(soft.mean()),
        mean_acceptance=float(accepted.mean()),
        gap=gap,
        z=gap * rows / float(np.sqrt(variance)) if variance > 0.0 else None,
        impossible=impossible,
        log_evidence=evidence,
        inconsistent=inconsistent,
    )


def _log_evidence(
    soft: NDArray[np.float64],  # [n]
    accepted: NDArray[np.bool_],  # [n]
    effect_floor: float,
) -> float:
    """Logarithm of the mixture e-value of one position."""
    cell = np.minimum((soft * _CELLS).astype(np.int64), _CELLS - 1)
    counts = np.bincount(cell, minlength=_CELLS).astype(np.float64)
    held = np.flatnonzero(counts)
    counts = counts[held]
    means = np.bincount(cell, weights=soft, minlength=_CELLS)[held] / counts
    accepts = float(np.count_nonzero(accepted))
    bets = np.concatenate([_BETS, -_BETS])[:, None]
    nearest = np.where(
        bets > 0.0,
        np.minimum(means + effect_floor, 1.0),
        np.maximum(means - effect_floor, 0.0),
    )
    expected = np.log1p(nearest * np.expm1(bets)) @ counts
    growth = bets[:, 0] * accepts - expected
    return float(np.logaddexp.reduce(growth) - np.log(growth.size))


def _describe(position: PositionConsistency) -> str:
    score = "no variance" if position.z is None else f"{position.z:+.1f} standard errors"
    return (
        f"position {position.position}: mean soft label {position.mean_soft_label:.4f} against "
        f"observed acceptance {position.mean_acceptance:.4f} on {position.rows} rows ({score}, "
        f"{position.impossible} impossible)"
    )
