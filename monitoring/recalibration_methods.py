"""How served numbers and models are fitted, one function of the source for every method.

Whatever is served, the models are the same two: conditionals by their own likelihood (affine), and
the survival model around them. Methods differ in how temperatures (and slopes and intercepts) are
made from the rows. Positions without a number of their own keep the champion's.

Letters: N rows, γ draft positions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from calib.affine_fits import MINIMUM_AFFINE_ROWS
from calib.calibration import Calibration
from calib.calibration_key import CalibrationKey
from calib.conditional_likelihood import ConditionalLikelihood
from calib.errors import ConfigurationError, FitRefusedError
from calib.fit_status import MINIMUM_ROWS
from calib.record_schema import UNKNOWN_INTEGER
from calib.records import AcceptanceRecords
from calib.segment_fitting import fit_segments
from calib.segment_projection import project_segments
from calib.segment_rescaling import FEWEST_ROWS, rescale_segments
from calib.segment_serving import SegmentTable, Unseen
from calib.segment_sketches import SegmentSketches
from calib.segment_tags import (
    NUMERIC_TAGS,
    POOL,
    SegmentBuckets,
    SegmentLevels,
    leaf_segments,
)
from calib.sequential_temperature_scaling import SequentialTemperatureScaling
from calib.served_segment import pool_segment
from calib.sketch_cells import LogitCells
from calib.statuses import PositionStatus, ServingStatus
from calib.survival_model import SurvivalModel, fit_survival_model
from calib.survival_projection import ProjectionRules, project_survival
from monitoring.recalibration_rows import FitRows, PairParts
from monitoring.revision_model import RevisionModel

__all__ = [
    "MOST_LEAVES",
    "PROJECTION_ROWS",
    "FitSource",
    "MethodFit",
    "MethodRules",
    "PooledMethod",
    "fit_pool",
    "with_segments",
    "with_temperatures",
    "without_affine",
    "without_segments",
]

PooledMethod = Literal["temperature", "sts", "affine", "survival"]

# The target has no label noise; from here on its temperatures change in the third digit.
PROJECTION_ROWS: Final = 20_000

MOST_LEAVES: Final = 256
"""Finest segments that are sketched apart, and as many without context and adapter."""


@dataclass(frozen=True, slots=True)
class MethodRules:
    """What every method is told.

    Attributes:
        minimum_rows: rows a position needs before its number is published.
        parent: temperatures served where a position has none of its own; 1 when None.
        key: what the numbers are for.
        fitted_at: ISO 8601 time to store with them.
        unseen: what a sampling temperature or rule that no row had is served.
    """

    minimum_rows: int = MINIMUM_ROWS
    parent: tuple[float, ...] | None = None
    key: CalibrationKey | None = None
    fitted_at: str | None = None
    unseen: Unseen = "identity"


@dataclass(frozen=True, eq=False, slots=True)
class MethodFit:
    """What one method made of the rows.

    Attributes:
        method: of the pooled numbers.
        calibration: what is served to all traffic.
        model: conditional and survival model, by segment where there is a table.
        table: what is served to segments, or None.
        rows: rows that the served numbers were fitted on.
        segments: evidence of the segments' fit, plain JSON; empty without a table.
    """

    method: PooledMethod
    calibration: Calibration
    model: RevisionModel
    rows: int
    table: SegmentTable | None = None
    segments: Mapping[str, Any] = field(default_factory=dict)


class FitSource(Protocol):
    """What a fit reads: rows (:class:`FitRows`), or sketches of rows that are gone."""

    @property
    def gamma(self) -> int:
        """Draft positions."""

    def __len__(self) -> int: ...

    def cells(self) -> LogitCells:
        """Conditional labels by logit, weighted."""

    def pairs(self) -> PairParts:
        """Neighbouring logits of disjoint rows."""

    def logits(self, rows: int) -> NDArray[np.float32]:
        """Logits of about so many blocks, [N, γ], to project a survival model on."""


def fit_pool(method: PooledMethod, rows: FitSource, rules: MethodRules) -> MethodFit:
    """Numbers for all traffic, and its models.

    Args:
        method: how the served numbers are made.
        rows: what to fit on.
        rules: see :class:`MethodRules`.

    Raises:
        FitRefusedError: ``no_rows``, or ``trimmed_rows`` for ``"sts"``.
        ConfigurationError: ``"sts"`` without rows.
    """
    conditional = _conditional("affine", rows, rules)
    survival = _survival_model(conditional, rows)
    calibration, used = _SERVED[method](conditional, survival, rows, rules)
    errors = tuple(
        float(error) if np.isfinite(error) else None for error in conditional.confidence_errors_
    )
    # As it is stored: what is tested after the fit is what a later process reads.
    model = RevisionModel.from_dict(RevisionModel(survival, errors).to_dict())
    return MethodFit(method, calibration, model, used)


def with_segments(pool: MethodFit, rows: FitRows, rules: MethodRules) -> MethodFit:
    """The same with numbers and models for every segment; unchanged where no row names a tag.

    Args:
        pool: the pooled fit of the same rows.
        rows: what to fit on.
        rules: see :class:`MethodRules`.
    """
    parts = [SegmentSketches.from_records(_coarser(part)) for _, part in rows.parts]
    fitted = fit_segments(parts, weights=[weight for weight, _ in rows.parts])
    if set(fitted.segments) == {POOL}:
        return pool
    survival = pool.model.pooled
    table = project_segments(
        fitted,
        rows.thinned,
        pool.calibration,
        survival=None if survival.is_product else survival,
        unseen=rules.unseen,
    )
    table, step = _rescaled(table, rows)
    model = replace(pool.model, segments=fitted)
    evidence = MappingProxyType({"levels": fitted.to_dict()["levels"], "rescaling": step})
    return replace(
        pool, table=table, model=RevisionModel.from_dict(model.to_dict()), segments=evidence
    )


def _rescaled(table: SegmentTable, rows: FitRows) -> tuple[SegmentTable, dict[str, Any] | None]:
    """The table after the last sequential step, and how that went; None where it was not tried."""
    try:
        verified = rows.survival_rows(FEWEST_ROWS)
    except FitRefusedError:  # trimmed, and next to nothing was verified fully by load or by a coin
        return table, None
    found, step = rescale_segments(table, verified)
    return found, None if step is None else step.to_dict()


def _coarser(records: AcceptanceRecords) -> AcceptanceRecords:
    """The rows, without the finer tags of those beyond the largest finest segments.

    They count for the coarser segments alone, which is what a segment that is not kept is served.
    Words of requests know no bound, and each finest segment of theirs would take half a MiB.
    """
    levels, buckets = SegmentLevels(), SegmentBuckets()
    for most, tags in (
        (MOST_LEAVES, ("context_length", "adapter")),
        (2 * MOST_LEAVES, ("domain",)),
    ):
        codes, keys = leaf_segments(records, buckets, levels.tags)
        if len(keys) <= most:
            break
        largest_first = np.argsort(-np.bincount(codes), kind="stable")
        rare = np.isin(codes, largest_first[most:])
        columns = records.columns()
        for tag in set(tags) & columns.keys():
            unknown: Any = UNKNOWN_INTEGER if tag in NUMERIC_TAGS else None
            columns[tag] = np.where(rare, unknown, columns[tag])
        records = AcceptanceRecords.from_columns(records.gamma, columns)
    return records


def with_temperatures(
    fit: MethodFit, temperatures: Sequence[float], table: SegmentTable | None = None
) -> MethodFit | None:
    """The same slopes and intercepts beside other temperatures, of which none is the fit's own.

    None where it has no affine form, segments, or too few rows for any number.

    Args:
        fit: whose own temperatures serve no better than these.
        temperatures: the parent's; what was served before goes on.
        table: that was served before; its segments keep their temperatures, and have slopes and
            intercepts of the fit.
    """
    pooled, cannot = fit.calibration, PositionStatus.TEMPERATURE_CANNOT_FIT
    statuses = [
        cannot if status is PositionStatus.OK else status for status in pooled.position_statuses
    ]
    if pooled.slopes is None or fit.table is not None or cannot not in statuses:
        return None
    positions = [dict(position) for position in pooled.evidence["positions"]]
    for position, served in zip(positions, temperatures, strict=True):
        if position["status"] == PositionStatus.OK:
            why = (
                f"On rows held out {position['temperature']:g}, with those of the other positions, "
                f"serves no better than {served:g}; slopes do."
            )
            position |= {"status": str(cannot), "ece_after": None, "reason": why}
    slopes = tuple(
        slope if fit["status"] == PositionStatus.OK else 1.0 / temperature
        for slope, temperature, fit in zip(
            pooled.slopes, temperatures, pooled.evidence["affine"], strict=True
        )
    )
    calibration = replace(
        pooled,
        temperatures=tuple(temperatures),
        slopes=slopes,
        status=ServingStatus.PARTIAL,
        position_statuses=tuple(statuses),
        evidence={**pooled.evidence, "positions": positions},
    )
    if table is not None:
        segments = {
            key: replace(segment, slopes=slopes, intercepts=pooled.intercepts)
            for key, segment in table.segments.items()
        }
        segments[POOL] = pool_segment(calibration, segments[POOL].rows)
        table = replace(table, segments=segments)
    return replace(fit, calibration=calibration, table=table)


def without_affine(fit: MethodFit) -> MethodFit:
    """The same fit with temperatures alone, for all traffic and every segment."""
    pooled = fit.calibration
    method = "temperature" if pooled.method == "affine" else pooled.method
    table = fit.table
    if table is not None:
        plain = {
            key: replace(segment, slopes=None, intercepts=None)
            for key, segment in table.segments.items()
        }
        table = replace(table, segments=plain)
    calibration = replace(pooled, slopes=None, intercepts=None, method=method)
    return replace(fit, calibration=calibration, table=table)


def without_segments(fit: MethodFit) -> MethodFit:
    """The same fit for all traffic alone, its models as well."""
    return replace(fit, table=None, model=replace(fit.model, segments=None))


_Served = tuple[Calibration, int]


def _conditional(
    method: Literal["temperature", "affine"], rows: FitSource, rules: MethodRules
) -> ConditionalLikelihood:
    estimator = ConditionalLikelihood(
        method,
        minimum_rows=rules.minimum_rows,
        minimum_affine_rows=max(MINIMUM_AFFINE_ROWS, rules.minimum_rows),
    )
    return estimator.fit_sketch(rows.cells())


def _survival_model(conditional: ConditionalLikelihood, rows: FitSource) -> SurvivalModel:
    if rows.gamma == 1:
        return SurvivalModel(
            slopes=tuple(conditional.slopes_.tolist()),
            intercepts=tuple(conditional.intercepts_.tolist()),
            hazards=(),
            rows=tuple(fit.rows for fit in conditional.position_fits_),
        )
    sketches, weights, folds = rows.pairs()
    return fit_survival_model(conditional, sketches, weights=weights, folds=folds)


def _temperature(
    _: ConditionalLikelihood, __: SurvivalModel, rows: FitSource, rules: MethodRules
) -> _Served:
    fitted = _conditional("temperature", rows, rules)
    calibration = fitted.calibration(rules.key, fitted_at=rules.fitted_at)
    return _with_parent(calibration, rules.parent), len(rows)


def _affine(
    conditional: ConditionalLikelihood, _: SurvivalModel, rows: FitSource, rules: MethodRules
) -> _Served:
    calibration = conditional.calibration(rules.key, fitted_at=rules.fitted_at)
    own = [status is PositionStatus.OK for status in conditional.affine_statuses_]
    return _with_parent(calibration, rules.parent, own), len(rows)


def _sts(
    _: ConditionalLikelihood, __: SurvivalModel, rows: FitSource, rules: MethodRules
) -> _Served:
    if not isinstance(rows, FitRows):
        raise ConfigurationError("method", "sts", "it searches rows, and sketches hold none")
    records = rows.survival_rows(rules.minimum_rows)
    fitted = SequentialTemperatureScaling(
        minimum_rows=rules.minimum_rows, parent_temperatures=rules.parent
    ).fit_records(records)
    return fitted.calibration(rules.key, fitted_at=rules.fitted_at), len(records)


def _survival(
    conditional: ConditionalLikelihood, survival: SurvivalModel, rows: FitSource, rules: MethodRules
) -> _Served:
    logits = rows.logits(PROJECTION_ROWS)
    projection = project_survival(
        logits,
        survival.survival(logits),
        evidence_rows=survival.rows,
        one_class=[fit.status is PositionStatus.ONE_CLASS for fit in conditional.position_fits_],
        rules=ProjectionRules(minimum_rows=rules.minimum_rows, parent_temperatures=rules.parent),
    )
    # The next logit's weight is what the imputed survival rests on: shown with the numbers.
    used = {
        "survival_model": {
            "product": survival.is_product,
            "uses_next": [hazard.uses_next for hazard in survival.hazards],
            "gain_nats": [hazard.gain for hazard in survival.hazards],
        }
    }
    calibration = projection.calibration(rules.key, fitted_at=rules.fitted_at, evidence=used)
    return calibration, len(rows)


_SERVED: Final[
    Mapping[
        PooledMethod,
        Callable[[ConditionalLikelihood, SurvivalModel, FitSource, MethodRules], _Served],
    ]
] = MappingProxyType(
    {"temperature": _temperature, "affine": _affine, "sts": _sts, "survival": _survival}
)


def _with_parent(
    calibration: Calibration,
    parent: Sequence[float] | None,
    affine_own: Sequence[bool] = (),
) -> Calibration:
    """The calibration with the parent's number at positions without one of their own."""
    if parent is None:
        return calibration
    own = [status is PositionStatus.OK for status in calibration.position_statuses]
    temperatures = tuple(
        mine if fitted else inherited
        for mine, fitted, inherited in zip(calibration.temperatures, own, parent, strict=True)
    )
    if calibration.slopes is None or calibration.intercepts is None:
        return replace(calibration, temperatures=temperatures)
    slopes = tuple(
        slope if fitted else 1.0 / temperature
        for slope, fitted, temperature in zip(
            calibration.slopes, affine_own, temperatures, strict=True
        )
    )
    return replace(calibration, temperatures=temperatures, slopes=slopes)
