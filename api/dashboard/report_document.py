"""What the pages need of a report, read out of its JSON without building the rest."""

from __future__ import annotations

from typing import Literal

import msgspec

from calib.segment_tags import segment_name
from monitoring.reports.reliability_chart import Bin, StoredBin, filled_bins

__all__ = [
    "Block",
    "Evaluation",
    "PositionErrors",
    "ReportDocument",
    "Segment",
    "Side",
    "View",
    "read_report",
]

View = Literal["survival", "conditional"]


class _StoredBin(msgspec.Struct, frozen=True):
    count: int = 0
    mean_prediction: float | None = None
    mean_label: float | None = None
    mean_label_low: float | None = None
    mean_label_high: float | None = None

    @property
    def cells(self) -> StoredBin:
        ends = (self.mean_label_low, self.mean_label_high)
        return (self.count, self.mean_prediction, self.mean_label, *ends)


class PositionErrors(msgspec.Struct, frozen=True):
    """Metrics of one position in one view; None where rows are missing."""

    n: int = 0
    effective_n: float | None = None
    coverage: float | None = None
    mean_prediction: float | None = None
    mean_label: float | None = None
    ece: float | None = None
    debiased_ece: float | None = None
    debiased_ece_low: float | None = None
    debiased_ece_high: float | None = None
    worst_bin_gap: float | None = None
    auc: float | None = None
    null_level: float | None = None
    stored_bins: list[_StoredBin | None] = msgspec.field(default_factory=list, name="bins")

    @property
    def bins(self) -> list[Bin]:
        """The bins with rows, in order of prediction."""
        return filled_bins(
            [
                (None, None, None, None, None) if each is None else each.cells
                for each in self.stored_bins
            ]
        )

    @property
    def gap(self) -> float | None:
        """Mean prediction minus mean label: positive is overconfident."""
        if self.mean_prediction is None or self.mean_label is None:
            return None
        return self.mean_prediction - self.mean_label


class _Mean(msgspec.Struct, frozen=True):
    ece: float | None = None
    null_level: float | None = None


class _ViewMetrics(msgspec.Struct, frozen=True):
    positions: list[PositionErrors] = []
    weighted_mean: _Mean = _Mean()


class Block(msgspec.Struct, frozen=True):
    """Debiased error over all positions with its 95 % interval."""

    value: float | None = None
    low: float | None = None
    high: float | None = None


class _Blocks(msgspec.Struct, frozen=True):
    conditional: Block = Block()
    survival: Block = Block()


class Side(msgspec.Struct, frozen=True):
    """Raw or calibrated confidence on the judged rows."""

    n_rows: int = 0
    conditional: _ViewMetrics = _ViewMetrics()
    survival: _ViewMetrics = _ViewMetrics()
    block: _Blocks = _Blocks()

    def positions(self, view: View) -> list[PositionErrors]:
        """Metrics by position."""
        metrics: _ViewMetrics = getattr(self, view)
        return metrics.positions

    def mean(self, view: View) -> _Mean:
        """Mean over positions, weighted by their rows."""
        metrics: _ViewMetrics = getattr(self, view)
        return metrics.weighted_mean


class _Comparison(msgspec.Struct, frozen=True):
    raw: Side = Side()
    calibrated: Side = Side()


class Segment(msgspec.Struct, frozen=True):
    """One slice of traffic; without a comparison it has too few rows."""

    tags: dict[str, str | int | float | bool | None] = {}
    rows: int = 0
    comparison: _Comparison | None = None

    @property
    def name(self) -> str:
        """Its tags, such as ``domain=chat``."""
        return segment_name(self.tags)


class Evaluation(msgspec.Struct, frozen=True):
    """Raw against calibrated, over all judged rows and by segment."""

    gamma: int = 0
    rows: int = 0
    clusters: int | None = None
    cluster_column: str | None = None
    excluded: dict[str, int] = {}
    overall: _Comparison = _Comparison()
    segments: list[Segment] = []
    minimum_segment_rows: int | None = None


class _Judged(msgspec.Struct, frozen=True):
    rows: str = "all"
    note: str = ""


class ReportDocument(msgspec.Struct, frozen=True):
    """A report of :mod:`monitoring.telemetry_report`; members that pages do not show are left."""

    revision: int
    created_at: str
    judged: _Judged = _Judged()
    reason: str | None = None
    sentences: list[str] = []
    evaluation: Evaluation | None = None


_decoder = msgspec.json.Decoder(ReportDocument, strict=False)


def read_report(document: bytes) -> ReportDocument | None:
    """The report, or None where this release cannot read it."""
    try:
        return _decoder.decode(document)
    except msgspec.DecodeError:  # also where it is no JSON
        return None
