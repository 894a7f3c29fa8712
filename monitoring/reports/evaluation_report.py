"""Raw confidence and one calibration, judged on the same rows: overall and slice by slice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from calib.acceptance_summary import AcceptanceSummary
from calib.calibration import Calibration, Form
from calib.calibration_report import CalibrationReport
from calib.data_quality import quality_flags
from calib.evaluation import ConfidenceModel, evaluate
from calib.label_consistency import LabelConsistency, check_label_consistency
from calib.records import AcceptanceRecords
from calib.reliability import DEFAULT_BINS
from calib.survival_leak import SurvivalLeak, measure_leak
from monitoring.reports.block_error import BlockError, block_errors
from monitoring.reports.length_forecast import LengthForecast, length_forecast
from monitoring.reports.segments import segment_rows
from monitoring.served_numbers import ServedNumbers

__all__ = [
    "MINIMUM_SEGMENT_ROWS",
    "Comparison",
    "EvaluationReport",
    "Judgement",
    "Segment",
    "evaluation_report",
    "judge",
]

# With fewer rows the ECE of a perfect model is above .04, larger than most of what it would show.
MINIMUM_SEGMENT_ROWS = 1000

_MOST_TENANTS = 5


@dataclass(frozen=True, slots=True)
class Judgement:
    """One set of confidences on one set of rows.

    Attributes:
        report: metrics per position, conditional and survival view.
        block: error over all positions with its interval, by view.
    """

    report: CalibrationReport
    block: Mapping[str, BlockError]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        block = {view: error.to_dict() for view, error in self.block.items()}
        return {**self.report.to_dict(), "block": block}


@dataclass(frozen=True, slots=True)
class Comparison:
    """Raw and calibrated confidence on the same rows.

    Attributes:
        raw: σ(z), the head as it is.
        calibrated: what the calibration makes of it.
        acceptance: lengths and rates of these rows.
        lengths: predicted against realised accepted length.
    """

    raw: Judgement
    calibrated: Judgement
    acceptance: AcceptanceSummary
    lengths: LengthForecast

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "raw": self.raw.to_dict(),
            "calibrated": self.calibrated.to_dict(),
            "acceptance": self.acceptance.to_dict(),
            "lengths": self.lengths.to_dict(),
        }


@dataclass(frozen=True, slots=True)
class Segment:
    """A slice of the rows.

    Attributes:
        tags: column and value, one or two.
        name: the tags in words.
        rows: usable rows of the slice.
        comparison: its own numbers, or None where it has too few rows.
        pooled: why there are none, and where its rows are counted instead.
    """

    tags: Mapping[str, str]
    name: str
    rows: int
    comparison: Comparison | None
    pooled: str | None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "tags": dict(self.tags),
            "rows": self.rows,
            "pooled": self.pooled,
            "comparison": None if self.comparison is None else self.comparison.to_dict(),
        }


@dataclass(frozen=True, slots=True)
class EvaluationReport:
    """Everything that one set of rows says about one calibration.

    Attributes:
        gamma: block size.
        rows: usable rows.
        clusters: prompts (or requests) among them.
        cluster_column: column that names them, or None.
        excluded: rows left out, by reason.
        warnings: suspicions about the data, in status words.
        digest: the calibration's digest.
        overall: all rows.
        segments: slices by domain, by sampling temperature, and by both.
        minimum_segment_rows: rows a slice needs for numbers of its own.
        leak: what the next logit knows about an outcome.
        leak_model: whose conditional confidences it was measured with.
        soft_labels: mean c* against observed acceptance, or None without soft labels.
        tenant_shares: share of the rows that each tenant sent, largest first and unnamed; empty
            where tenants are unknown.
        form: what was judged: ``"temperatures"``, or ``"affine"`` where they are all 1 and slopes
            and intercepts stand beside them.
    """

    gamma: int
    rows: int
    clusters: int
    cluster_column: str | None
    excluded: Mapping[str, int]
    warnings: tuple[str, ...]
    digest: str
    overall: Comparison
    segments: tuple[Segment, ...]
    minimum_segment_rows: int
    leak: SurvivalLeak
    leak_model: str
    soft_labels: LabelConsistency | None
    tenant_shares: tuple[float, ...] = ()
    form: Form = "temperatures"

    def segments_by(self, *columns: str) -> tuple[Segment, ...]:
        """The slices that are tagged by exactly these columns, in order."""
        return tuple(part for part in self.segments if tuple(part.tags) == columns)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; nulls carry reasons, nothing is NaN."""
        return {
            "gamma": self.gamma,
            "rows": self.rows,
            "clusters": self.clusters,
            "cluster_column": self.cluster_column,
            "excluded": dict(self.excluded),
            "warnings": list(self.warnings),
            "digest": self.digest,
            "form": self.form,
            "overall": self.overall.to_dict(),
            "segments": [part.to_dict() for part in self.segments],
            "minimum_segment_rows": self.minimum_segment_rows,
            "leak": {"model": self.leak_model, **self.leak.to_dict()},
            "soft_labels": None if self.soft_labels is None else self.soft_labels.to_dict(),
            "tenant_shares": list(self.tenant_shares),
        }


def evaluation_report(
    records: AcceptanceRecords,
    calibration: Calibration,
    *,
    n_bins: int = DEFAULT_BINS,
    minimum_segment_rows: int = MINIMUM_SEGMENT_ROWS,
    conditional_model: Calibration | None = None,
) -> EvaluationReport:
    """Judge a calibration beside raw confidence, on rows it was not fitted on.

    Args:
        records: telemetry of the calibration's γ; unfit rows are dropped and counted.
        calibration: what to judge; identity judges raw confidence alone.
        n_bins: bins of every ECE.
        minimum_segment_rows: rows a slice needs for numbers of its own.
        conditional_model: measures the leak; ``calibration`` when None. Numbers that were fitted
            on survival hide part of it.
    """
    measured_with = conditional_model or calibration
    rows = records.fitting_rows()
    overall = _compare(rows, calibration, n_bins)
    return EvaluationReport(
        gamma=rows.gamma,
        rows=len(rows),
        clusters=overall.raw.report.n_clusters,
        cluster_column=overall.raw.report.cluster_column,
        excluded=records.exclusion_counts(),
        warnings=tuple(str(flag) for flag in quality_flags(rows)),
        digest=calibration.digest,
        overall=overall,
        segments=_segments(rows, calibration, n_bins, minimum_segment_rows),
        minimum_segment_rows=minimum_segment_rows,
        leak=measure_leak(rows, measured_with),
        leak_model=measured_with.method,
        soft_labels=None if rows.soft_labels is None else check_label_consistency(rows),
        tenant_shares=_tenant_shares(rows),
        form=_form(calibration),
    )


def _form(calibration: Calibration) -> Form:
    ones = all(temperature == 1.0 for temperature in calibration.temperatures)
    return "affine" if ones and calibration.slopes is not None else "temperatures"


def _tenant_shares(rows: AcceptanceRecords) -> tuple[float, ...]:
    if rows.tenant is None or not len(rows):
        return ()
    counts = Counter(value for value in rows.tenant.tolist() if value is not None)
    return tuple(many / len(rows) for _, many in counts.most_common(_MOST_TENANTS))


def _segments(
    rows: AcceptanceRecords, calibration: Calibration, n_bins: int, minimum: int
) -> tuple[Segment, ...]:
    segments = []
    for part in segment_rows(rows):
        count = len(part.rows)
        enough = count >= minimum
        comparison = _compare(rows.select(part.rows), calibration, n_bins) if enough else None
        pooled = None if enough else _pooled(part.tags, count, minimum)
        segments.append(Segment(dict(part.tags), part.name, count, comparison, pooled))
    return tuple(segments)


def _pooled(tags: tuple[tuple[str, str], ...], rows: int, minimum: int) -> str:
    where = "all rows" if len(tags) == 1 else f"{tags[0][0]}={tags[0][1]}"
    return f"pooled: {rows} rows, {minimum} needed; counted in {where}"


def _compare(rows: AcceptanceRecords, calibration: Calibration, n_bins: int) -> Comparison:
    identity = Calibration.identity(rows.gamma)
    raw = judge(rows, identity, n_bins)
    model: ConfidenceModel = calibration
    if _form(calibration) == "affine":
        model = ServedNumbers(calibration).on(rows, "affine")
    elif calibration.temperatures == identity.temperatures:
        model = identity
    return Comparison(
        raw=raw,
        calibrated=raw if model is identity else judge(rows, model, n_bins),
        acceptance=AcceptanceSummary.from_records(rows),
        lengths=length_forecast(rows, identity, model),
    )


def judge(rows: AcceptanceRecords, model: ConfidenceModel, n_bins: int) -> Judgement:
    """Metrics of both views and the block errors of one model on usable rows."""
    return Judgement(
        report=evaluate(rows, model, n_bins=n_bins),
        block=block_errors(rows, model, n_bins=n_bins),
    )
