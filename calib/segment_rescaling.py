"""The last sequential step on served segments, on rows that were verified fully.

One factor and one shift a position for all segments together (:mod:`calib.survival_rescaling`): a
segment of few rows takes no more part in it than its rows. What is served to the pool, and to
segments that are served the same, stays: those numbers have seen the hard labels already.

Letters: N rows, γ draft positions.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from calib.calibration_values import LARGEST_SCALE, SMALLEST_SCALE
from calib.canonical_json import round_significant
from calib.errors import CalibrationValueError
from calib.records import AcceptanceRecords
from calib.row_hashes import cluster_hashes, row_hashes
from calib.segment_serving import SegmentTable
from calib.segment_tags import POOL, TAGS, leaf_segments
from calib.served_segment import ServedSegment
from calib.survival_rescaling import SurvivalRescaling, fit_rescaling

__all__ = ["FEWEST_ROWS", "MOST_ROWS", "rescale_segments"]

MOST_ROWS = 50_000
"""Rows that the step is fitted on: its errors then no longer show in what is served."""

FEWEST_ROWS = 1000
"""Rows without which it is not tried, as a temperature is not published."""


def rescale_segments(
    table: SegmentTable, records: AcceptanceRecords
) -> tuple[SegmentTable, SurvivalRescaling | None]:
    """The table with the step, and how it went.

    Args:
        table: what would be served; only slopes and intercepts change.
        records: rows it was fitted on, those alone whose full verification no confidence has
            decided; what lies behind a row's ℓ is not read. Rows of a prompt (or request) are one
            piece of luck.

    Returns:
        The same table where the step is not taken; None beside it where it could not be tried:
        fewer than 1,000 usable rows are served slopes and intercepts of a segment's own.

    Raises:
        CalibrationValueError: records of another γ.
    """
    if records.gamma != table.gamma:
        raise CalibrationValueError("gamma", records.gamma, f"this table is for {table.gamma}")
    rows = _rows(table, records)
    if rows is None:
        return table, None
    slopes, intercepts = table.numbers(rows, "affine")
    odds = rows.confidence_logits * slopes + intercepts
    # Numbered by hash: halves, too, depend on no order of the rows.
    clusters = np.unique(cluster_hashes(rows), return_inverse=True)[1]
    found = fit_rescaling(odds, rows.accepted, rows.verified, clusters)
    if not found.taken:
        return table, found
    segments = dict(table.segments)
    for key, segment in table.segments.items():
        if _own(segment, table):
            moved = _rescaled(segment, found)
            if moved is None:  # one step for all of them, or none
                return table, found.not_taken()
            segments[key] = moved
    return replace(table, segments=segments), found


def _rows(table: SegmentTable, records: AcceptanceRecords) -> AcceptanceRecords | None:
    """Rows to fit on, chosen by their logits; None where they are too few."""
    usable = records.usable()
    codes, keys = leaf_segments(records, table.buckets, TAGS)
    served = [table.served_to(key) for key in keys]
    own = np.array([each is not None and _own(each, table) for each in served], dtype=np.bool_)
    rows = records.select(usable & own[codes])
    if len(rows) < FEWEST_ROWS:
        return None
    if len(rows) > MOST_ROWS:
        first = np.argsort(row_hashes(rows), kind="stable")[:MOST_ROWS]
        rows = rows.select(np.sort(first))
    return rows


def _own(segment: ServedSegment, table: SegmentTable) -> bool:
    """Whether a segment is served slopes and intercepts that are not the pool's."""
    pool = table.segments[POOL]
    same = (segment.slopes, segment.intercepts) == (pool.slopes, pool.intercepts)
    return segment.slopes is not None and not same


def _rescaled(segment: ServedSegment, found: SurvivalRescaling) -> ServedSegment | None:
    """The segment after the step; None where a slope would leave its bounds."""
    if segment.slopes is None or segment.intercepts is None:
        return segment
    slopes = [
        round_significant(slope * factor)
        for slope, factor in zip(segment.slopes, found.factors, strict=True)
    ]
    if not all(SMALLEST_SCALE <= slope <= LARGEST_SCALE for slope in slopes):
        return None
    intercepts = [
        round_significant(intercept * factor + shift)
        for intercept, factor, shift in zip(
            segment.intercepts, found.factors, found.shifts, strict=True
        )
    ]
    return replace(segment, slopes=tuple(slopes), intercepts=tuple(intercepts))
