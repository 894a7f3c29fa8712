"""The metrics of one position as a value: every field a number, or null with its reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from calib.reliability_bins import ReliabilityBin


@dataclass(frozen=True, kw_only=True)
class PositionMetrics:
    """Metrics of one position in one view; None stands for null and has an entry in ``reasons``.

    Attributes:
        n: rows with a usable label.
        effective_n: independent, equally weighted rows they are worth (weights and clusters).
        coverage: share of all rows that reach the position (ℓ >= k), in [0, 1].
        mean_prediction: mean p.
        mean_label: mean y.
        ece: plug-in ECE over equal-width bins, in [0, 1].
        ece_equal_mass: plug-in ECE over equal-mass bins.
        debiased_ece: debiased L2 calibration error over equal-width bins, in [0, 1].
        debiased_ece_squared: its unbiased square, possibly negative: average and compare this.
        debiased_ece_low: lower end of its 95 % interval.
        debiased_ece_high: upper end of its 95 % interval.
        debiased_ece_equal_mass: debiased L2 calibration error over equal-mass bins.
        debiased_ece_equal_mass_low: lower end of its 95 % interval.
        debiased_ece_equal_mass_high: upper end of its 95 % interval.
        worst_bin_gap: largest absolute gap of a bin.
        brier: mean squared residual.
        log_loss: mean log loss in nats.
        log_loss_calibration: part of it that recalibration would save, in nats; debiased, so
            possibly just below 0 when there is nothing to gain.
        log_loss_refinement: part of it that only a better ranking would save, in nats.
        auc: area under the ROC curve, from logits where given.
        null_level: plug-in ECE that a perfectly calibrated model would show on these rows.
        sharpness: rows per equal-width bin.
        bins: reliability diagram, None for empty bins.
        reasons: why a field is null, by field name.
    """

    n: int
    effective_n: float
    coverage: float | None = None
    mean_prediction: float | None = None
    mean_label: float | None = None
    ece: float | None = None
    ece_equal_mass: float | None = None
    debiased_ece: float | None = None
    debiased_ece_squared: float | None = None
    debiased_ece_low: float | None = None
    debiased_ece_high: float | None = None
    debiased_ece_equal_mass: float | None = None
    debiased_ece_equal_mass_low: float | None = None
    debiased_ece_equal_mass_high: float | None = None
    worst_bin_gap: float | None = None
    brier: float | None = None
    log_loss: float | None = None
    log_loss_calibration: float | None = None
    log_loss_refinement: float | None = None
    auc: float | None = None
    null_level: float | None = None
    sharpness: tuple[int, ...] = ()
    bins: tuple[ReliabilityBin | None, ...] = ()
    reasons: Mapping[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values by field name: no NaN, null where ``reasons`` says why."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        values["sharpness"] = list(self.sharpness)
        values["bins"] = [None if b is None else b.to_dict() for b in self.bins]
        values["reasons"] = dict(self.reasons)
        return values
