"""What an evaluation says: both views, every position, means over positions; JSON without NaN."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from calib.labels import LabelKind
from calib.position_metrics import PositionMetrics
from calib.reliability import Binning


@dataclass(frozen=True, slots=True)
class MetricMeans:
    """Means of one view over the positions where a metric is not null; None if it always is."""

    ece: float | None
    ece_equal_mass: float | None
    debiased_ece: float | None
    debiased_ece_squared: float | None
    debiased_ece_equal_mass: float | None
    worst_bin_gap: float | None
    brier: float | None
    log_loss: float | None
    log_loss_calibration: float | None
    log_loss_refinement: float | None
    auc: float | None
    null_level: float | None

    @classmethod
    def over(cls, positions: Sequence[PositionMetrics], *, weighted: bool) -> MetricMeans:
        """Average positions, equally or by their number of rows."""

        def mean(name: str) -> float | None:
            values = [(getattr(m, name), m.n if weighted else 1) for m in positions]
            known = [(value, weight) for value, weight in values if value is not None]
            total = sum(weight for _, weight in known)
            return sum(value * weight for value, weight in known) / total if total else None

        return cls(**{f.name: mean(f.name) for f in fields(cls)})


@dataclass(frozen=True, slots=True)
class ViewReport:
    """One view: metrics per position (index 0 is k = 1) and their means.

    Attributes:
        positions: metrics of position 1 … γ.
        mean: unweighted means over positions.
        weighted_mean: means over positions weighted by their rows.
    """

    positions: tuple[PositionMetrics, ...]
    mean: MetricMeans
    weighted_mean: MetricMeans

    @classmethod
    def of(cls, positions: Sequence[PositionMetrics]) -> ViewReport:
        """Average what was measured per position."""
        return cls(
            tuple(positions),
            MetricMeans.over(positions, weighted=False),
            MetricMeans.over(positions, weighted=True),
        )

    def __getitem__(self, index: int) -> PositionMetrics:
        return self.positions[index]

    def __iter__(self) -> Iterator[PositionMetrics]:
        return iter(self.positions)

    def __len__(self) -> int:
        return len(self.positions)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "positions": [metrics.to_dict() for metrics in self.positions],
            "mean": asdict(self.mean),
            "weighted_mean": asdict(self.weighted_mean),
        }


@dataclass(frozen=True, slots=True)
class CalibrationReport:
    """Evaluation of one calibration on one set of rows.

    Attributes:
        gamma: number of positions.
        n_rows: rows that took part.
        excluded: rows left out, by reason.
        n_bins: bins of every histogram and ECE.
        label_kind: labels of the conditional view; the survival view always uses hard labels.
        cluster_column: column whose equal values count as one piece of luck, or None.
        n_clusters: clusters among the rows; equal to ``n_rows`` without a column.
        observed: [γ] share of rows with k <= min(n + 1, ℓ), None without rows.
        conditional: conditional view.
        survival: survival view.
    """

    gamma: int
    n_rows: int
    excluded: Mapping[str, int]
    n_bins: int
    label_kind: LabelKind
    cluster_column: str | None
    n_clusters: int
    observed: tuple[float | None, ...]
    conditional: ViewReport
    survival: ViewReport

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values: no NaN, nulls with reasons, and the bin rule by name."""
        return {
            "gamma": self.gamma,
            "n_rows": self.n_rows,
            "excluded": dict(self.excluded),
            "n_bins": self.n_bins,
            "bin_rule": f"{Binning.EQUAL_WIDTH}: min(floor(p * n_bins), n_bins - 1) in fp32",
            "label_kind": str(self.label_kind),
            "cluster_column": self.cluster_column,
            "n_clusters": self.n_clusters,
            "observed": list(self.observed),
            "conditional": self.conditional.to_dict(),
            "survival": self.survival.to_dict(),
        }
