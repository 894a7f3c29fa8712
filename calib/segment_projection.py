"""Served numbers of every segment: what an engine can apply of a segment's survival model.

Temperatures of a segment are fitted as those of the pool (:mod:`calib.survival_projection`):
position by position, on logits of the segment and the survival its model gives them, which needs no
labels. A segment with few logits borrows its parent's rows. Slopes and intercepts are the model's
own where survival is the plain product, and projected where the next logit tells more. At positions
for which the pool has neither temperature nor slope for want of rows, segments are served their
parent's, where the pool was projected.

Letters: N rows, γ draft positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from calib.calibration import Calibration
from calib.calibration_values import LARGEST_SCALE, SMALLEST_SCALE
from calib.errors import CalibrationValueError
from calib.records import AcceptanceRecords
from calib.row_hashes import row_hashes
from calib.segment_model import SegmentModel
from calib.segment_serving import SegmentTable, Unseen
from calib.segment_tags import POOL, SegmentKey, leaf_segments
from calib.served_segment import ServedSegment, pool_segment
from calib.statuses import PositionStatus
from calib.survival_model import SurvivalModel
from calib.survival_projection import ProjectionRules, SurvivalProjection, project_survival
from calib.temperature_estimator import checked_count

__all__ = ["SAMPLE_ROWS", "project_segments"]

# Targets have no label noise: from 1,000 logits on the error of what is served no longer changes in
# the fourth digit; 20,000 would cost ten times as much.
SAMPLE_ROWS = 2000

Rows = NDArray[np.intp]


def project_segments(
    model: SegmentModel,
    records: AcceptanceRecords,
    pool: Calibration,
    *,
    survival: SurvivalModel | None = None,
    rules: ProjectionRules | None = None,
    sample_rows: int = SAMPLE_ROWS,
    unseen: Unseen = "identity",
) -> SegmentTable:
    """The table to publish beside a pooled calibration.

    Args:
        model: fitted segments.
        records: rows to take logits from; labels are not read.
        pool: what is served to all traffic; segments carry an affine form only if it does.
        survival: survival model of all rows; None is the plain product.
        rules: options of the projection; defaults when None. Minimum rows play no part: how little
            a segment knows has been settled by shrinkage.
        sample_rows: logits per segment.
        unseen: what an unseen sampling temperature or acceptance rule is served.

    Raises:
        CalibrationValueError: pool or records of another γ.
        ConfigurationError: options out of range.
        FitRefusedError: ``no_rows`` where no row is usable.
    """
    for name, gamma in (("pool", pool.gamma), ("records", records.gamma)):
        if gamma != model.gamma:
            raise CalibrationValueError(f"{name}.gamma", gamma, f"segments have {model.gamma}")
    checked_count("sample_rows", sample_rows, 1)
    samples = _samples(model, records, sample_rows)
    known = _told(pool)
    served = {POOL: pool_segment(pool, model.segments[POOL].rows[0])}
    for key, fit in model.segments.items():
        if key == POOL:
            continue
        parent = served[fit.parent]
        above = model.segments[fit.parent]
        if (fit.slopes, fit.intercepts) == (above.slopes, above.intercepts):
            served[key] = replace(parent, key=key, rows=fit.rows[0])
            continue
        logits = records.confidence_logits[samples[key]]
        target = model.survival_model(key, survival)
        found = _served(key, fit.rows[0], target, logits, parent, rules or ProjectionRules())
        served[key] = _as_far_as(found, known, parent)
    return SegmentTable(model.gamma, model.buckets, model.levels, served, model.seen, unseen)


def _told(pool: Calibration) -> list[bool]:
    """[γ] False where the pool has no number for want of rows; True where its fit says nothing."""
    fits = pool.evidence.get("affine", ())
    # A likelihood also holds back what few rows of one class say; shrinkage makes good use of that
    # (trimmed recording: 1.22 points with it, 1.53 without).
    if not fits or "imputed_survival" not in pool.evidence:
        return [True] * pool.gamma
    ok, few = PositionStatus.OK, PositionStatus.INSUFFICIENT
    return [
        status == ok or fit["status"] != few
        for status, fit in zip(pool.position_statuses, fits, strict=True)
    ]


def _as_far_as(
    segment: ServedSegment, known: Sequence[bool], parent: ServedSegment
) -> ServedSegment:
    """The segment with its parent's slope and intercept where all traffic has too few rows."""
    if segment.slopes is None or segment.intercepts is None:
        return segment
    if parent.slopes is None or parent.intercepts is None:
        return segment

    def chosen(own: Sequence[float], inherited: Sequence[float]) -> tuple[float, ...]:
        return tuple(a if k else b for a, b, k in zip(own, inherited, known, strict=True))

    return replace(
        segment,
        slopes=chosen(segment.slopes, parent.slopes),
        intercepts=chosen(segment.intercepts, parent.intercepts),
    )


def _served(
    key: SegmentKey,
    rows: int,
    target: SurvivalModel,
    logits: NDArray[np.float32],
    parent: ServedSegment,
    rules: ProjectionRules,
) -> ServedSegment:
    options = replace(rules, minimum_rows=0, parent_temperatures=parent.temperatures)
    found = project_survival(logits, target.survival(logits), rules=options)
    slopes, intercepts = parent.slopes, parent.intercepts
    affine = None if slopes is None else _affine(target, found)
    if affine is not None:
        slopes, intercepts = affine
    return ServedSegment(
        key=key,
        rows=rows,
        temperatures=found.temperatures,
        slopes=slopes,
        intercepts=intercepts,
        statuses=found.position_statuses,
    )


def _affine(
    target: SurvivalModel, found: SurvivalProjection
) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Slopes and intercepts that may be published; None where the parent's go on."""
    slopes, intercepts = target.slopes, target.intercepts
    if not target.is_product:
        if any(status is not PositionStatus.OK for status in found.affine_statuses):
            return None
        slopes, intercepts = found.slopes, found.intercepts
    # Factors rest on those before them: one that may not be served takes all of them with it.
    inside = all(SMALLEST_SCALE <= slope <= LARGEST_SCALE for slope in slopes)
    return (slopes, intercepts) if inside else None


def _samples(model: SegmentModel, records: AcceptanceRecords, size: int) -> dict[SegmentKey, Rows]:
    """Rows of each segment by ascending hash, filled up from its parent's; the same in any order.

    Rows are few or many, but never chosen by what happened to them.
    """
    usable = np.flatnonzero(records.usable())
    usable = usable[np.argsort(row_hashes(records)[usable], kind="stable")]
    codes, leaves = leaf_segments(records.select(usable), model.buckets, model.levels.tags)
    samples: dict[SegmentKey, Rows] = {POOL: usable[:size]}
    for key, fit in model.segments.items():
        if key == POOL:
            continue
        member = np.array([leaf.restricted(key.tags) == key for leaf in leaves], dtype=np.bool_)
        own = usable[member[codes]][:size] if len(leaves) else usable[:0]
        others = samples[fit.parent]
        borrowed = others[~np.isin(others, own)][: size - len(own)]
        samples[key] = np.concatenate([own, borrowed])
    return samples
