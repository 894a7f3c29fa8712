"""Streams built from recordings: who comes after whom, and what changes in between.

Requests of a recording ran side by side: rows are taken in the order of its engine steps, so that
neighbours in the stream belong to different requests, as a fleet sends them. Within one request
residuals are correlated through what no head can see (:mod:`monitoring.detectors.e_cusum`).

Letters: N rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from calib.clusters import cluster_codes
from calib.errors import ConfigurationError, RecordError
from calib.record_schema import COLUMN_BY_NAME
from calib.records import AcceptanceRecords
from monitoring.replay import Stretch

__all__ = ["Stream", "deal", "interleaved", "shuffled"]

_SLOTS = 64
ORDERS = ("domain", "sampling_temperature", "adapter", "acceptance_rule", "draft_mode", "engine")


@dataclass(frozen=True, slots=True, eq=False)
class Stream:
    """Rows in the order in which they are replayed, and their phases.

    Attributes:
        records: all rows.
        stretches: phases that cover them.
        synthetic: what was done to the rows themselves, in words; empty for recorded rows.
    """

    records: AcceptanceRecords
    stretches: tuple[Stretch, ...]
    synthetic: tuple[str, ...] = ()

    @classmethod
    def of(cls, records: AcceptanceRecords, name: str = "recording") -> Self:
        """A recording as the fleet sent it."""
        rows = interleaved(records)
        return cls(rows, (Stretch(name, 0, len(rows)),))

    def ordered(self, column: str, values: Sequence[str]) -> Self:
        """Rows of each value one after another; rows of other values are left out.

        Raises:
            ConfigurationError: a column that nothing can be ordered by, or a value without rows.
        """
        if column not in ORDERS:
            raise ConfigurationError("order", column, f"order by one of {ORDERS}")
        cells = getattr(self.records, column)
        if cells is None:
            raise ConfigurationError("order", column, "these rows do not know it")
        chosen, stretches, first = [], [], 0
        for value in values:
            rows = np.flatnonzero(_equal(cells, column, value))
            if not len(rows):
                raise ConfigurationError("order", f"{column}={value}", "no row has this value")
            chosen.append(rows)
            stretches.append(Stretch(f"{column}={value}", first, len(rows)))
            first += len(rows)
        records = self.records.select(np.concatenate(chosen))
        return type(self)(records, tuple(stretches), self.synthetic)

    def then(self, other: AcceptanceRecords, name: str, *, announced: bool) -> Self:
        """Followed by another recording: a drafter swap.

        Args:
            other: rows of the other drafter.
            name: of the phase.
            announced: with a new calibration key, which begins a new baseline at identity; without
                one nobody is told.

        Raises:
            RecordError: rows of another γ.
        """
        if other.gamma != self.records.gamma:
            remedy = f"give rows of γ {self.records.gamma}: another block size is another key"
            raise RecordError("gamma", other.gamma, remedy)
        columns = interleaved(other).columns()
        # Another engine: steps and requests of two recordings count from the same start.
        columns["engine"] = np.full(len(other), name, dtype=object)
        rows = AcceptanceRecords.from_columns(other.gamma, columns)
        joined = AcceptanceRecords.concatenate([self.records, rows])
        stretch = Stretch(name, len(self.records), len(rows), announced)
        return type(self)(joined, (*self.stretches, stretch), self.synthetic)

    def scaled(self, factor: float, first: int) -> Self:
        """Logits times ``factor`` from row ``first`` on: the right temperature grows by as much.

        Raises:
            ConfigurationError: a factor that is not positive, or a row that does not exist.
        """
        if not 0.0 < factor < 100.0:
            raise ConfigurationError("scale_logits", factor, "give a factor above 0")
        if not 0 < first < len(self.records):
            raise ConfigurationError("scale_logits", first, f"give a row below {len(self.records)}")
        columns = dict(self.records.columns())
        logits = columns["confidence_logits"].copy()
        logits[first:] *= np.float32(factor)
        columns["confidence_logits"] = logits
        name = f"logits × {factor:g} (synthetic)"
        before = [_cut(each, first) for each in self.stretches if each.first < first]
        stretch = Stretch(name, first, len(self.records) - first)
        records = AcceptanceRecords.from_columns(self.records.gamma, columns)
        note = f"logits times {factor:g} from row {first} on"
        return type(self)(records, (*before, stretch), (*self.synthetic, note))


def interleaved(records: AcceptanceRecords) -> AcceptanceRecords:
    """Rows in the order of time, else of engine steps; as they are where neither is known."""
    if records.timestamp is not None and not np.isnan(records.timestamp).any():
        return records.select(np.argsort(records.timestamp, kind="stable"))
    if records.step is None:
        return records
    return records.select(np.argsort(records.step, kind="stable"))


def shuffled(records: AcceptanceRecords, seed: int) -> AcceptanceRecords:
    """Another fleet of the same requests: each request keeps its rows in order and starts anew.

    Neighbours in the stream then belong to other requests than they did. See :func:`deal`.
    """
    order, steps = deal(records, seed)
    columns = {**records.columns(), "step": steps}
    columns.pop("timestamp", None)
    return AcceptanceRecords.from_columns(records.gamma, columns).select(order)


def deal(records: AcceptanceRecords, seed: int) -> tuple[NDArray[np.intp], NDArray[np.int64]]:
    """Order of the stream [N], and the engine step of every row [N], of one random fleet.

    Requests are dealt out at random to as many slots as ran side by side; a slot takes the next
    request when one ends. Rows without a request stand alone.
    """
    rng = np.random.default_rng(seed)
    count = len(records)
    codes = np.arange(count) if records.request is None else cluster_codes(records.request)
    slots = _SLOTS if records.step_requests is None else max(int(records.step_requests.max()), 1)
    clock = np.zeros(slots, dtype=np.int64)
    steps, seats = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
    by_request = np.argsort(codes, kind="stable")
    bounds = np.searchsorted(codes[by_request], np.arange(int(codes.max()) + 2))
    for code in rng.permutation(int(codes.max()) + 1).tolist():
        rows = by_request[bounds[code] : bounds[code + 1]]
        slot = int(clock.argmin())
        steps[rows], seats[rows] = clock[slot] + np.arange(len(rows)), slot
        clock[slot] += len(rows)
    return np.lexsort((seats, steps)), steps


def _cut(stretch: Stretch, end: int) -> Stretch:
    rows = min(stretch.rows, end - stretch.first)
    return Stretch(stretch.name, stretch.first, rows, stretch.announced)


def _equal(cells: NDArray[np.object_], column: str, value: str) -> NDArray[np.bool_]:
    if COLUMN_BY_NAME[column].dtype != np.dtype(object):
        try:
            number = np.float32(float(value))
        except ValueError as error:
            raise ConfigurationError("order", value, f"{column} is a number") from error
        close: NDArray[np.bool_] = np.isclose(cells.astype(np.float32), number, atol=1e-6)
        return close
    found: NDArray[np.bool_] = cells == value
    return found
