"""Which method serves best: decided by log loss on rows that none of the candidates saw.

**The rule.** The rows to fit on are split once more by prompt (or request, or order). Every
candidate is fitted on one part and scored on the other: log loss of served survival over positions
with ℓ ≥ k, averaged over the two forms an engine can apply (temperatures, and slopes and intercepts
where the candidate has them). The smallest loss is the best; of those whose loss exceeds it by at
most one standard error of the paired difference, the simplest is taken. Segments are then kept
where they lower the loss of the chosen numbers by more than one standard error and raise it in
neither form: an engine applies one of them, and has nothing of what the other gains.

Few rows cannot tell a leak from luck, and a leak missed costs far more than one imagined: below
``FEW_ROWS`` rows ``survival`` is taken, unless its loss exceeds that of the simplest candidate by
more than two standard errors. Mean survival error on five simulated heads, trimmed and not, by the
first rule and by this one: .0137 and .0095 on 1,000 rows, .0118 and .0069 on 3,000, .0070 and .0051
on 10,000, .0066 and .0045 on 20,000; without a leak .0059 and .0065, and no difference from 3,000
rows on.

Whether position k was verified is decided before its label, so the comparison is fair on trimmed
rows too. Standard errors treat the rows of a prompt (or request) as one piece of luck.

Letters: N rows, γ draft positions, ℓ verified length.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from calib.calibration import FORMS, Form
from calib.canonical_json import round_significant
from calib.clusters import cluster_codes, clustered_mean
from calib.errors import FitRefusedError
from calib.labels import survival_informed_mask, survival_labels
from calib.records import AcceptanceRecords
from monitoring.held_out_rows import held_out_rows
from monitoring.recalibration_methods import (
    MethodFit,
    MethodRules,
    PooledMethod,
    fit_pool,
    with_segments,
)
from monitoring.recalibration_rows import FitRows
from monitoring.served_numbers import ServedNumbers

__all__ = [
    "FEW_ROWS",
    "RULE",
    "RULE_ON_FEW_ROWS",
    "SIMPLEST_FIRST",
    "Choice",
    "RowLosses",
    "choose_method",
    "loss_difference",
    "rounded",
    "row_losses",
]

_log = logging.getLogger(__name__)

SIMPLEST_FIRST: Final[tuple[PooledMethod, ...]] = ("temperature", "sts", "affine", "survival")

FEW_ROWS: Final = 20_000
"""Rows given to the choice, half of them scored, below which ``survival`` need not prove itself."""

RULE: Final = (
    "smallest held-out log loss of served survival over both forms; the simplest within one "
    "standard error; segments where they lower it by more than one and raise it in neither form"
)
RULE_ON_FEW_ROWS: Final = (
    f"below {FEW_ROWS:,} rows survival, unless its held-out log loss of served survival over both "
    "forms is worse than that of the simplest by more than two standard errors; segments where "
    "they lower it by more than one and raise it in neither form"
)
_SALT: Final = "method choice"
_SMALLEST: Final = 1e-6  # as the gate: fp32 knows no closer to 0 or 1


@dataclass(frozen=True, eq=False, slots=True)
class RowLosses:
    """Log losses of served survival, row by row.

    Attributes:
        loss: [N] sum over the row's informed positions, in nats.
        labels: [N] how many those are.
    """

    loss: NDArray[np.float64]
    labels: NDArray[np.int64]

    @property
    def mean(self) -> float:
        """Nats per label; NaN without labels."""
        count = int(self.labels.sum())
        return float(self.loss.sum()) / count if count else math.nan

    def averaged(self, other: RowLosses) -> RowLosses:
        """Of two forms of the same rows."""
        return RowLosses(0.5 * (self.loss + other.loss), self.labels)


@dataclass(frozen=True, slots=True)
class Choice:
    """What was chosen, and why.

    Attributes:
        method: of the pooled numbers.
        segments: whether segments are served.
        evidence: rule, rows and losses of every candidate, plain JSON.
    """

    method: PooledMethod
    segments: bool
    evidence: dict[str, Any]


def choose_method(
    records: AcceptanceRecords, tenant_share: float, rules: MethodRules, *, segments: bool = True
) -> Choice:
    """Choose a method for these rows; they are split in two, and none of them is judged on later.

    Args:
        records: usable rows that a fit may see.
        tenant_share: largest share of the weight that one tenant may have.
        rules: see :class:`MethodRules`; minimum rows play no part here.
        segments: whether they are tried; not worth it where none can be served.

    Raises:
        FitRefusedError: ``no_rows``: too few to split, or no label on one side; or why the first
            candidate could not be fitted, where none could.
    """
    parts = held_out_rows(records, share=0.5, salt=_SALT)
    rows = FitRows.of(parts.fit, tenant_share)
    fits, refused = _candidates(rows, rules)
    if not fits:
        raise next(iter(refused.values()))
    clusters = _clusters(parts.judged)
    forms = {name: _losses_of(fit, parts.judged) for name, fit in fits.items()}
    losses = {name: _averaged(found) for name, found in forms.items()}
    best = min(losses, key=lambda name: losses[name].mean)
    gaps = {name: _difference(found, losses[best], clusters) for name, found in losses.items()}
    chosen = next(
        name for name in SIMPLEST_FIRST if name in gaps and gaps[name][0] <= gaps[name][1]
    )
    few = len(records) < FEW_ROWS and "survival" in losses
    if few and not _clearly_worse(losses, clusters):
        chosen = "survival"
    tried = fits[chosen]
    if segments:
        tried = with_segments(tried, rows, replace(rules, minimum_rows=0))
    found = _segment_evidence(tried, forms[chosen], parts.judged, clusters)
    evidence = {
        "rule": RULE_ON_FEW_ROWS if few else RULE,
        "fitted_rows": len(parts.fit),
        "scored_rows": len(parts.judged),
        "split": parts.kind,
        "candidates": [
            {
                "method": name,
                "log_loss": rounded(found.mean),
                "above_best": rounded(gaps[name][0]),
                "standard_error": rounded(gaps[name][1]),
            }
            for name, found in losses.items()
        ],
        "refused": {name: error.reason for name, error in refused.items()},
        "best": best,
        "chosen": chosen,
        "segments": found,
    }
    _log.info("method %s chosen: %s", chosen, evidence["candidates"])
    return Choice(chosen, bool(found["kept"]), evidence)


def _candidates(
    rows: FitRows, rules: MethodRules
) -> tuple[dict[PooledMethod, MethodFit], dict[str, FitRefusedError]]:
    """Fits by method, and why the others have none."""
    fits: dict[PooledMethod, MethodFit] = {}
    refused: dict[str, FitRefusedError] = {}
    # Held-out loss says what few rows are worth, and a minimum would hide it; but where only few
    # rows were verified fully, there is no survival to fit.
    free = replace(rules, minimum_rows=0)
    for method in SIMPLEST_FIRST:
        try:
            fits[method] = fit_pool(method, rows, rules if method == "sts" else free)
        except FitRefusedError as error:
            refused[method] = error
    return fits, refused


def _clearly_worse(losses: dict[PooledMethod, RowLosses], clusters: NDArray[np.intp]) -> bool:
    """Whether survival loses to the simplest candidate by more than two standard errors."""
    simplest = next(name for name in SIMPLEST_FIRST if name in losses)
    loss, spread = _difference(losses["survival"], losses[simplest], clusters)
    return loss > 2.0 * spread


def _segment_evidence(
    segmented: MethodFit,
    pooled: Mapping[Form, RowLosses],
    records: AcceptanceRecords,
    clusters: NDArray[np.intp],
) -> dict[str, Any]:
    """Whether segments lower the loss of the chosen numbers, and for every engine."""
    if segmented.table is None:
        return {"tried": False, "kept": False}
    found = _losses_of(segmented, records)
    average = _averaged(found)
    gain, spread = _difference(_averaged(pooled), average, clusters)
    gains = {form: _difference(pooled[form], found[form], clusters)[0] for form in FORMS}
    return {
        "tried": True,
        "kept": gain > spread and min(gains.values()) >= 0.0,
        "log_loss": rounded(average.mean),
        "gain": rounded(gain),
        "standard_error": rounded(spread),
        "gain_by_form": {form: rounded(each) for form, each in gains.items()},
    }


def row_losses(records: AcceptanceRecords, survival: NDArray[np.floating[Any]]) -> RowLosses:
    """Log losses of predicted survival [N, γ] where ℓ ≥ k.

    Zeros of rows with n < ℓ < k are known too, but because of the outcome; they are left out.
    """
    informed = survival_informed_mask(records)
    p = np.clip(survival.astype(np.float64), _SMALLEST, 1.0 - _SMALLEST)
    accepted = survival_labels(records) == 1.0
    loss = -np.where(accepted, np.log(p), np.log1p(-p))
    return RowLosses(np.where(informed, loss, 0.0).sum(axis=1), informed.sum(axis=1))


def loss_difference(
    one: RowLosses, other: RowLosses, records: AcceptanceRecords
) -> tuple[float, float]:
    """Nats a label that ``one`` loses more than ``other``, and the standard error of that.

    Args:
        one: losses of the records.
        other: losses of the same records by other numbers.
        records: rows of a prompt (or request) count as one piece of luck.
    """
    return _difference(one, other, _clusters(records))


def _losses_of(fit: MethodFit, records: AcceptanceRecords) -> dict[Form, RowLosses]:
    served = ServedNumbers(fit.calibration, fit.table)
    return {form: row_losses(records, served.survival(records, form)) for form in FORMS}


def _averaged(losses: Mapping[Form, RowLosses]) -> RowLosses:
    return losses["temperatures"].averaged(losses["affine"])


def _difference(
    one: RowLosses, other: RowLosses, clusters: NDArray[np.intp]
) -> tuple[float, float]:
    """Mean loss of ``one`` less that of ``other``, and its standard error over clusters."""
    return clustered_mean(one.loss - other.loss, one.labels, clusters)


def _clusters(records: AcceptanceRecords) -> NDArray[np.intp]:
    column = records.prompt if records.prompt is not None else records.request
    return np.arange(len(records)) if column is None else cluster_codes(column)


def rounded(value: float | None) -> float | None:
    """The value to six significant digits, as evidence is stored; None where it is not finite."""
    return round_significant(value) if value is not None and math.isfinite(value) else None
