"""Sketches by hour: what a refit reads without going back to rows.

Recalibrations with ``source: "sketches"`` read them (:mod:`monitoring.sketch_rows`). They hold all
traffic together: a sketch for each segment would grow with the words that requests call themselves,
and segments are fitted on rows.

The open hour is held as sums, closed hours as bytes: they do not change, and packing them again at
every fold would cost more than the fold. Rows come as they come; an hour ends when the clock says.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from calib.logit_sketch import LogitSketch
from calib.pair_sketch import PairSketch
from calib.records import AcceptanceRecords

__all__ = [
    "HOUR_SECONDS",
    "ClosedHour",
    "HourSketches",
    "OpenHour",
    "pack_open",
    "unpack_open",
]

HOUR_SECONDS = 3600.0
SKETCH_ROWS = 8192


@dataclass(frozen=True, slots=True, eq=False)
class OpenHour:
    """Sums of the hour that is under way.

    Attributes:
        hour: hours since 1970.
        rows: usable rows.
        first_batch: oldest stored batch in it.
        labels: conditional labels by logit.
        pairs: neighbouring logits.
    """

    hour: int
    rows: int
    first_batch: int
    labels: LogitSketch
    pairs: PairSketch


@dataclass(frozen=True, slots=True)
class ClosedHour:
    """An hour that is over.

    Attributes:
        hour: hours since 1970.
        rows: usable rows.
        first_batch: oldest stored batch in it.
        labels: bytes of its :class:`LogitSketch`.
        pairs: bytes of its :class:`PairSketch`.
    """

    hour: int
    rows: int
    first_batch: int
    labels: bytes
    pairs: bytes


@dataclass(frozen=True, slots=True, eq=False)
class HourSketches:
    """Sketches of the newest hours.

    Attributes:
        closed: oldest first.
        open: the hour under way; None before its first sketch.
        pending: rows of the hour under way that are not in its sketch yet.
        pending_batch: oldest stored batch among them.
        pending_hour: their hour since 1970.
    """

    closed: tuple[ClosedHour, ...] = ()
    open: OpenHour | None = None
    pending: tuple[AcceptanceRecords, ...] = ()
    pending_batch: int = 0
    pending_hour: int = 0

    def add(
        self, records: AcceptanceRecords, *, batch: int, now: float, hours: int
    ) -> HourSketches:
        """With more usable rows; hours beyond ``hours`` are dropped.

        Rows are sketched some thousand at a time: adding to a sketch costs nearly the same for one
        row as for thousands.

        Args:
            records: usable rows.
            batch: oldest stored batch among them.
            now: seconds since the epoch.
            hours: hours to keep, the open one included.
        """
        if not len(records):
            return self
        hour = int(now // HOUR_SECONDS)
        before = self
        if before.pending and before.pending_hour != hour:
            before = before.settled(hours=hours)
        first = before.pending_batch if before.pending else batch
        pending = (*before.pending, records.restricted_to(()))
        merged = replace(before, pending=pending, pending_batch=first, pending_hour=hour)
        rows = sum(len(part) for part in pending)
        return merged.settled(hours=hours) if rows >= SKETCH_ROWS else merged

    def joined(self) -> HourSketches:
        """The same with its pending rows in one piece."""
        if len(self.pending) < 2:
            return self
        return replace(self, pending=(AcceptanceRecords.concatenate(self.pending),))

    def settled(self, *, hours: int) -> HourSketches:
        """The same with every pending row in its sketch."""
        if not self.pending:
            return self
        records = AcceptanceRecords.concatenate(self.pending)
        labels = LogitSketch.from_records(records)
        pairs = PairSketch.from_records(records)
        under_way, closed, hour = self.open, self.closed, self.pending_hour
        fresh = OpenHour(hour, len(records), self.pending_batch, labels, pairs)
        if under_way is not None and under_way.hour == hour:
            fresh = OpenHour(
                hour,
                under_way.rows + len(records),
                under_way.first_batch,
                under_way.labels + labels,
                under_way.pairs + pairs,
            )
        elif under_way is not None:
            closed = (*closed, _closed(under_way))[-max(hours - 1, 1) :]
        return HourSketches(closed, fresh)

    def newest(self, hours: int | None = None, *, from_batch: int = 0) -> tuple[OpenHour, ...]:
        """Whole hours with rows, oldest first, pending rows included.

        Args:
            hours: hours of the clock back from that of the newest row, it included; all when None.
            from_batch: leave out hours that began with an older stored batch.
        """
        whole = self.settled(hours=len(self.closed) + 2)
        last = whole.closed[-1].hour if whole.open is None and whole.closed else 0
        last = whole.open.hour if whole.open is not None else last
        first = last - hours + 1 if hours is not None else 0
        closed = [
            unpack_open(each)
            for each in whole.closed
            if each.hour >= first and each.first_batch >= from_batch
        ]
        under_way = () if whole.open is None else (whole.open,)
        return (*closed, *(each for each in under_way if each.first_batch >= from_batch))


def _closed(hour: OpenHour) -> ClosedHour:
    return ClosedHour(
        hour.hour, hour.rows, hour.first_batch, hour.labels.to_bytes(), hour.pairs.to_bytes()
    )


@lru_cache(maxsize=4)  # by identity: most folds leave the open hour as it is
def pack_open(hour: OpenHour) -> ClosedHour:
    """The open hour as it is stored."""
    return _closed(hour)


def unpack_open(hour: ClosedHour) -> OpenHour:
    """The open hour as it was stored."""
    return OpenHour(
        hour.hour,
        hour.rows,
        hour.first_batch,
        LogitSketch.from_bytes(hour.labels),
        PairSketch.from_bytes(hour.pairs),
    )
