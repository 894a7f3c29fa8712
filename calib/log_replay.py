"""The replay that a log allows: its own steps where they are whole, counts where all was verified.

A log whose steps are known and complete is replayed as it ran; another is cut into steps of its
usual size. Fully verified rows count themselves. Where rows were trimmed, what was not verified is
told by a survival model fitted on the other half of the log (whole prompts or requests), inside the
doubly robust sum of :mod:`calib.replay_doubly_robust`: no row answers for itself, and neither side
of a comparison provides the answers.

Letters: N rows, γ positions.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from calib.conditional_likelihood import ConditionalLikelihood
from calib.cost_table import AdditiveCostTable, CostTable, FlatCostTable
from calib.cost_table_staircase import StaircaseCostTable
from calib.errors import FitRefusedError
from calib.labels import observed_mask
from calib.pair_sketch import PairSketch
from calib.records import AcceptanceRecords
from calib.regret import ThroughputReplay
from calib.replay_doubly_robust import DoublyRobustOutcomes
from calib.replay_outcomes import FullyVerified, ReplayOutcomes
from calib.replay_schedule import Policy
from calib.row_hashes import cluster_hashes
from calib.segment_fitting import fit_segments
from calib.segment_sketches import SegmentSketches
from calib.segment_tags import POOL
from calib.segmented_survival import segmented_survival
from calib.statuses import Refusal
from calib.survival_model import SurvivalModel, fit_survival_model

__all__ = [
    "cross_fitted_survival",
    "engine_policy",
    "log_outcomes",
    "replay_log",
    "usual_requests",
]

FOLDS = 2
MINIMUM_LABELS = 30  # observed at a position in a half before its model speaks for the other


def replay_log(
    records: AcceptanceRecords,
    cost: CostTable,
    *,
    batch_size: int | None = None,
    policy: Policy | None = None,
    outcomes: ReplayOutcomes | None = None,
) -> ThroughputReplay:
    """Prepare a log for replay, whatever was verified.

    Args:
        records: usable rows.
        cost: step curve of the engine.
        batch_size: requests of a step; the log's own steps when None, or steps of its usual size
            where none of them is whole.
        policy: how steps are scheduled; :func:`engine_policy` when None.
        outcomes: of :func:`log_outcomes`, where it is asked for more than once.

    Raises:
        FitRefusedError: ``no_rows``: nothing to replay, or trimmed rows and nothing to fit on.
        ConfigurationError: steps are unknown and no size is stated.
    """
    told = log_outcomes(records) if outcomes is None else outcomes
    how = engine_policy(cost) if policy is None else policy
    try:
        return ThroughputReplay.of(records, cost, batch_size=batch_size, policy=how, outcomes=told)
    except FitRefusedError:
        usual = usual_requests(records)
        if batch_size is not None or usual is None:
            raise
        return ThroughputReplay.of(records, cost, batch_size=usual, policy=how, outcomes=told)


def engine_policy(cost: CostTable) -> Policy:
    """How an engine with such a table schedules: lagged with SGLang's and vLLM's, else Algorithm 1.

    Their tables are staircases, and early stop waits before the first step that costs more than its
    next token brings, however much lies beyond it (paper §5.2).

    Args:
        cost: step curve.
    """
    tables = (FlatCostTable, AdditiveCostTable, StaircaseCostTable)
    return "lagged" if isinstance(cost, tables) else "early_stop"


def log_outcomes(records: AcceptanceRecords) -> ReplayOutcomes:
    """Counts where every row was verified fully, else doubly robust sums.

    Raises:
        FitRefusedError: ``no_rows``: trimmed rows and nothing to fit on.
    """
    counted = FullyVerified(records)
    if counted.known.all():
        return counted
    return DoublyRobustOutcomes(records, cross_fitted_survival(records))


def cross_fitted_survival(
    records: AcceptanceRecords,
) -> NDArray[np.float32]:
    """Survival of every row by a model of the rows of other prompts (or requests), fp32 [N, γ].

    Raises:
        FitRefusedError: ``no_rows``: a position that a half verified in fewer than 30 rows, of
            which a model would know nothing.
    """
    half = cluster_hashes(records) % np.uint64(FOLDS)
    survival = np.empty_like(records.confidence_logits)
    for fold in range(FOLDS):
        other = records.select(half != fold)
        _refuse_unseen(other)
        mine = half == fold
        if mine.any():
            survival[mine] = _survival(other, records.select(mine))
    return survival


def _refuse_unseen(records: AcceptanceRecords) -> None:
    counts = observed_mask(records).sum(axis=0)
    thin = np.flatnonzero(counts < MINIMUM_LABELS)
    if len(thin):
        raise FitRefusedError(
            Refusal.NO_ROWS,
            f"position {int(thin[0]) + 1} was observed {int(counts[thin[0]])} times in half of the "
            f"log, {MINIMUM_LABELS} needed to say what trimmed rows would have had",
        )


def usual_requests(records: AcceptanceRecords) -> int | None:
    """Median requests of a step; None where steps do not say how many they had."""
    stated = records.step_requests
    known = None if stated is None else stated[stated > 0]
    return None if known is None or not len(known) else int(np.median(known))


def _survival(fit: AcceptanceRecords, rows: AcceptanceRecords) -> NDArray[np.float32]:
    """By segment where rows have tags: a pooled model would favour pooled numbers."""
    pooled = _model(fit)
    segments = fit_segments(SegmentSketches.from_records(fit))
    if set(segments.segments) == {POOL}:
        return pooled.survival(rows.confidence_logits)
    return segmented_survival(segments, pooled, rows)


def _model(records: AcceptanceRecords) -> SurvivalModel:
    fitted = ConditionalLikelihood("affine", minimum_rows=0).fit_records(records)
    if records.gamma == 1:
        rows = tuple(fit.rows for fit in fitted.position_fits_)
        slopes, shifts = tuple(fitted.slopes_.tolist()), tuple(fitted.intercepts_.tolist())
        return SurvivalModel(slopes, shifts, (), rows)
    return fit_survival_model(fitted, [PairSketch.from_records(records)])
