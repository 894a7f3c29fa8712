"""Which rows of a log ran together: the steps that a replay schedules again.

A step is (engine, rank, step). It is replayed whole or not at all: a step that lost rows would run
at another load than it had. Where steps are unknown, or another load is asked for, rows are cut
into batches of a stated size instead, in order of time.

Letters: N rows of the log, M replayed rows, S steps, R requests of a step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calib.clusters import cluster_codes
from calib.errors import ConfigurationError, FitRefusedError
from calib.records import AcceptanceRecords
from calib.statuses import Refusal

__all__ = ["ReplaySteps", "group_steps"]

Indices = NDArray[np.intp]


@dataclass(frozen=True, eq=False, slots=True)
class ReplaySteps:
    """Rows of the log, step by step.

    Attributes:
        rows: [M] row numbers of the log.
        starts: [S + 1] where each step begins in ``rows``, and M.
        streams: [S] number of the engine and rank that ran the step; 0 for stated batches.
        slots: [M] what makes a row of one step and a row of another the same request: its request
            where the log names it, its place in the step otherwise.
        requests_named: whether ``slots`` are requests.
        left_out: rows that are not replayed: unusable, of unknown outcome, of unknown or
            incomplete steps, or a remainder smaller than a batch.
    """

    rows: Indices
    starts: Indices
    streams: Indices
    slots: Indices
    requests_named: bool
    left_out: int

    @property
    def steps(self) -> int:
        """S."""
        return len(self.streams)

    @property
    def sizes(self) -> Indices:
        """[S] requests of each step."""
        return np.diff(self.starts)

    @property
    def step_of_row(self) -> Indices:
        """[M] step of each row."""
        return np.repeat(np.arange(self.steps), self.sizes)

    @property
    def mean_stay(self) -> int:
        """Steps that a request stays on average, 1 … S; 1 where requests are not named."""
        if not self.requests_named:
            return 1
        return max(1, round(len(self.rows) / len(np.unique(self.slots))))


def group_steps(
    records: AcceptanceRecords,
    known: NDArray[np.bool_],  # [N] rows whose outcome the replay can tell
    *,
    batch_size: int | None = None,
) -> ReplaySteps:
    """Complete steps of usable rows with a known outcome.

    Args:
        records: the log.
        known: rows that may be replayed; unusable rows are left out in any case.
        batch_size: cut rows into batches of this many requests instead, ordered by step where
            steps are known.

    Raises:
        ConfigurationError: a batch size below 1, or none given where the log has no steps.
        FitRefusedError: no complete step is left.
    """
    keep = known & records.usable()
    if batch_size is not None:
        if isinstance(batch_size, bool) or batch_size < 1:
            raise ConfigurationError("batch_size", batch_size, "give at least 1 request a step")
        found = _batches(records, keep, int(batch_size))
    elif records.step is None:
        remedy = "state how many requests a step had; these records have no steps"
        raise ConfigurationError("batch_size", None, remedy)
    else:
        found = _steps(records, keep)
    if found.steps == 0:
        raise FitRefusedError(
            Refusal.NO_ROWS,
            f"none of {len(records)} rows belongs to a complete step whose outcome is known; "
            "verify whole steps, or state a batch size",
        )
    return found


def _batches(records: AcceptanceRecords, keep: NDArray[np.bool_], size: int) -> ReplaySteps:
    rows = _by_time(records)
    rows = rows[keep[rows]]
    steps = len(rows) // size
    return ReplaySteps(
        rows=rows[: steps * size],
        starts=np.arange(steps + 1) * size,
        streams=np.zeros(steps, dtype=np.intp),
        slots=np.tile(np.arange(size), steps),
        requests_named=False,
        left_out=len(records) - steps * size,
    )


def _steps(records: AcceptanceRecords, keep: NDArray[np.bool_]) -> ReplaySteps:
    order = _by_time(records)
    stream, step = _streams(records)[order], _step_numbers(records)[order]
    changes = (np.diff(stream) != 0) | (np.diff(step) != 0)
    number = np.concatenate([[0], np.cumsum(changes)]) if len(order) else order
    complete = np.bincount(number, keep[order]) == np.bincount(number)
    complete &= np.bincount(number, step >= 0) > 0
    if records.step_requests is not None:
        stated = records.step_requests[order]
        wrong = (stated >= 0) & (stated != np.bincount(number)[number])
        complete &= np.bincount(number, wrong) == 0
    chosen = complete[number]
    rows, number = order[chosen], number[chosen]
    first = np.flatnonzero(np.diff(number, prepend=-1))
    starts = np.append(first, len(rows))
    if records.request is None:
        slots = np.arange(len(rows)) - np.repeat(first, np.diff(starts))
    else:
        slots = cluster_codes(records.request[rows])
    return ReplaySteps(
        rows=rows,
        starts=starts,
        streams=stream[chosen][first],
        slots=slots,
        requests_named=records.request is not None,
        left_out=len(records) - len(rows),
    )


def _by_time(records: AcceptanceRecords) -> Indices:
    """Row numbers by engine, rank and step, in their own order within a step."""
    if records.step is None:
        return np.arange(len(records))
    return np.lexsort((records.step, _streams(records)))


def _streams(records: AcceptanceRecords) -> Indices:
    """[N] number of the engine and rank of each row; rows of unknown engine are one stream."""
    codes = np.zeros(len(records), dtype=np.intp)
    if records.engine is not None:
        named = ["" if name is None else name for name in records.engine.tolist()]
        codes = cluster_codes(named)
    if records.rank is not None:
        ranks = cluster_codes(records.rank)
        codes = codes * (int(ranks.max(initial=0)) + 1) + ranks
    return codes


def _step_numbers(records: AcceptanceRecords) -> NDArray[np.int64]:
    if records.step is None:
        return np.full(len(records), -1, dtype=np.int64)
    return records.step
