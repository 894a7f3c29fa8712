"""Calibration error before and after each change of what is served, on the same rows.

Both revisions are judged on the rows that came after the change and before the next one: rows that
neither was fitted on. Mean of the 15-bin survival ECE over positions by their rows, with 95 %
intervals by the circular block bootstrap (:mod:`calib.block_bootstrap`) over rows sorted by
request, so that a block holds what the rows of a request share; and the debiased error with its
interval over prompts. What is judged are temperatures; where these are the same before and after,
slopes and intercepts.

Letters: N rows, γ draft positions.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from calib.block_bootstrap import block_totals, bootstrap_interval
from calib.calibration import Form
from calib.clusters import cluster_codes
from calib.records import AcceptanceRecords
from calib.reliability import DEFAULT_BINS, bin_index
from monitoring.replay import ReplayResult
from monitoring.reports.block_error import block_errors
from monitoring.served_numbers import ServedNumbers
from monitoring.store.revisions import Revision

__all__ = ["Interval", "ServedChange", "served_changes", "survival_error"]

UNIT_ROWS: Final = 8  # neighbours that are resampled together at least
BLOCK_UNITS: Final = 25  # 200 rows: a request of the shipped recording has 84
_LEAST_ROWS: Final = 400  # two blocks

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Interval:
    """A number with its 95 % interval; None where there are too few rows for one."""

    value: float | None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class ServedChange:
    """One change of what is served, judged on the rows after it.

    Attributes:
        row: rows replayed by then.
        before: revision that was served.
        after: revision that is served.
        rows: rows it is judged on.
        ece_before: of the old one, on those rows.
        ece_after: of the new one, on the same rows.
        difference: after minus before.
        debiased_before: debiased L2 error, all positions, interval over prompts.
        debiased_after: of the new one.
        form: which numbers were judged.
    """

    row: int
    before: int
    after: int
    rows: int
    ece_before: Interval
    ece_after: Interval
    difference: Interval
    debiased_before: Interval
    debiased_after: Interval
    form: Form = "temperatures"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)


def served_changes(records: AcceptanceRecords, result: ReplayResult) -> tuple[ServedChange, ...]:
    """Every change of a replay but the first champion and new baselines.

    Args:
        records: rows in the order in which they were replayed.
        result: of that replay.
    """
    starts = {stretch.first for stretch in result.stretches if stretch.announced} | {0}
    served = list(result.champions)
    ends = [row for row, _ in served[1:]] + [result.rows]
    found = []
    for (_, old), (row, new), end in zip(served, served[1:], ends[1:], strict=False):
        if row not in starts:
            rows = records.select(slice(row, end))
            found.append(_judged(row, result.revisions[old], result.revisions[new], rows))
    return tuple(found)


def survival_error(records: AcceptanceRecords, *revisions: Revision) -> tuple[Interval, ...]:
    """Mean-over-positions survival ECE of each revision on the same rows."""
    return _errors(records, *map(ServedNumbers.of, revisions))[: len(revisions)]


def _judged(row: int, old: Revision, new: Revision, records: AcceptanceRecords) -> ServedChange:
    usable = records.fitting_rows()
    both = ServedNumbers.of(old), ServedNumbers.of(new)
    form = _changed_form(usable, *both)
    before, after, difference = _errors(records, *both, form=form)
    debiased = []
    for served in both:
        error = None
        if len(usable):
            error = block_errors(usable, served.on(usable, form))["survival"]
        debiased.append(
            Interval(None) if error is None else Interval(error.value, error.low, error.high)
        )
    return ServedChange(
        row=row,
        before=old.number,
        after=new.number,
        rows=len(usable),
        ece_before=before,
        ece_after=after,
        difference=difference,
        debiased_before=debiased[0],
        debiased_after=debiased[1],
        form=form,
    )


def _changed_form(records: AcceptanceRecords, old: ServedNumbers, new: ServedNumbers) -> Form:
    """The form in which these rows are served other numbers; temperatures where in both."""

    def same(form: Form) -> bool:
        return np.array_equal(old.conditional(records, form), new.conditional(records, form))

    return "affine" if same("temperatures") and not same("affine") else "temperatures"


def _errors(
    records: AcceptanceRecords, *served: ServedNumbers, form: Form = "temperatures"
) -> tuple[Interval, ...]:
    """ECE of each, then the last minus the first."""
    rows = records.fitting_rows()
    width = len(served) + 1
    if not len(rows):
        return (Interval(None),) * width
    order = np.argsort(_requests(rows), kind="stable")
    rows = rows.select(order)
    sums = [_unit_sums(rows, each.survival(rows, form)) for each in served]
    estimates = [float(_ece(each.sum(axis=0)[None], rows.gamma)[0]) for each in sums]
    estimates.append(estimates[-1] - estimates[0])
    if len(rows) < _LEAST_ROWS:
        return tuple(Interval(value) for value in estimates)
    # The same draws for all: their difference has the interval of a pair.
    samples = [_ece(block_totals(each, BLOCK_UNITS, replicates=400), rows.gamma) for each in sums]
    samples.append(samples[-1] - samples[0])
    blocks = max(len(sums[0]) // BLOCK_UNITS, 2)
    found = []
    for place, (value, drawn) in enumerate(zip(estimates, samples, strict=True)):
        low, high = bootstrap_interval(drawn, value, blocks)
        floor = -1.0 if place == len(served) else 0.0
        found.append(Interval(value, max(low, floor), high))
    return tuple(found)


def _requests(rows: AcceptanceRecords) -> NDArray[np.intp]:
    column = rows.request if rows.request is not None else rows.prompt
    return np.arange(len(rows)) if column is None else cluster_codes(column)


def _unit_sums(rows: AcceptanceRecords, survival: NDArray[np.float32]) -> Floats:
    """[units, γ·bins + γ]: residuals by cell, and informed rows by position, of each unit."""
    gamma, units = rows.gamma, -(-len(rows) // UNIT_ROWS)
    index = np.arange(gamma)
    row, position = np.nonzero(index < rows.verified[:, None])
    p = survival[row, position]
    y = (index < rows.accepted[:, None])[row, position]
    cell = position * DEFAULT_BINS + bin_index(p, DEFAULT_BINS)
    width = gamma * DEFAULT_BINS
    unit = row // UNIT_ROWS
    residual = np.bincount(unit * width + cell, y - p.astype(np.float64), units * width)
    counts = np.bincount(unit * gamma + position, minlength=units * gamma).astype(np.float64)
    return np.concatenate([residual.reshape(units, width), counts.reshape(units, gamma)], axis=1)


def _ece(totals: Floats, gamma: int) -> Floats:
    """[M] Σ_b |Σ(y − p)| / N of all positions together, so that each counts by its rows N."""
    residual = totals[:, : gamma * DEFAULT_BINS].reshape(len(totals), gamma, DEFAULT_BINS)
    counts = totals[:, gamma * DEFAULT_BINS :]
    gaps = np.abs(residual).sum(axis=2)
    mean: Floats = gaps.sum(axis=1) / np.maximum(counts.sum(axis=1), 1.0)
    return mean
