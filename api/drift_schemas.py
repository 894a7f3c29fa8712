"""The drift document of a drafter as OpenAPI describes it.

It is written by the worker and served byte for byte, so these models describe and do not filter:
later members may be added.
"""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from calib.canonical_json import canonical_json
from monitoring.published_document import iso_time

__all__ = [
    "ChangePoint",
    "DriftChallenger",
    "DriftDocument",
    "DriftLevel",
    "DriftTest",
    "collecting_document",
]

_MILLION: Final = 1e6
# Levels of the shipped settings; a test holds them against the detectors, which this process does
# not load. Once the loop has folded a row its own stand in the document.
_THRESHOLDS: Final = {"warn": 1e5, "act": 1e6}


class _Shown(BaseModel):
    model_config = ConfigDict(extra="allow")


class DriftLevel(_Shown):
    """A level of alarm."""

    threshold: float = Field(description="A: the mean number of rows to a false alarm, at least")
    false_alarms_per_million_rows: float


class Thresholds(_Shown):
    """Decimal logarithms of what evidence is compared with."""

    warn: float
    act: float


class ChangePoint(_Shown):
    """Where a change began, by estimate."""

    row: int = Field(description="rows ago")
    since: str | None = Field(description="ISO 8601 in UTC; null where unknown")


class DriftTest(_Shown):
    """One detector: its evidence that the champion is out of calibration, against thresholds."""

    scope: Literal["pooled", "position", "segment"]
    position: int | None = Field(description="from 1; null for all")
    segment: dict[str, str] | None = Field(description="tags; null for all traffic")
    detector: Literal["likelihood_ratio", "betting"]
    quantity: Literal["conditional", "survival"]
    evidence: float = Field(description="e-value; capped, see evidence_log10")
    evidence_log10: float
    threshold_log10: Thresholds
    status: Literal["calm", "warning", "alarm"]
    rows: int
    tolerance: float = Field(description="miscalibration that is no drift, in probability")
    mean_residual: float | None = Field(
        description="mean of outcome less confidence over the newest rows"
    )
    change_point: ChangePoint | None


class RequestDependence(_Shown):
    """How much the rows of one request depend on each other, by the rows since the champion."""

    intraclass: float | None = Field(description="correlation of two rows; null: too few requests")
    design_effect: float | None = Field(
        description="variance of a request's sum of residuals over that of independent rows"
    )
    requests: int
    rows: int
    setting: float = Field(description="design effect that evidence allows for")


class Exploration(_Shown):
    """What engines that can are asked to explore."""

    share: float = Field(description="share of steps that are verified in full")
    raised: bool = Field(description="whether it is more than always, because drift is suspected")


class HistoryPoint(_Shown):
    """Evidence and error over time."""

    at: str
    rows: int
    evidence_log10_max: float
    ece: float | None
    ece_low: float | None
    ece_high: float | None


class QualityMonitor(_Shown):
    """A monitor of the telemetry itself; one that holds stops recalibration."""

    monitor: str
    status: Literal["calm", "held"]
    value: float | None
    limit: float | None
    message: str
    engine: str | None


class DriftChallenger(_Shown):
    """The challenger before the gate."""

    revision: int
    status: Literal["collecting", "promoted", "refused"]
    wealth_log10: float
    threshold_log10: float
    rows: int
    reason: str | None


class RollbackWatch(_Shown):
    """The watch over the last promotion."""

    revision: int
    previous: int
    evidence_log10: float
    threshold_log10: float
    rows: int
    until: str | None


class LastDecision(_Shown):
    """What the loop decided last."""

    kind: str
    at: str
    reason: str


class DriftDocument(_Shown):
    """Whether the champion is still calibrated, and what the loop does about it."""

    drafter: str
    revision: int = Field(description="champion that is watched")
    publication: int
    status: Literal["collecting", "calibrated", "warning", "drift", "held"] = Field(
        description="`held`: telemetry cannot be trusted, nothing is fitted or promoted"
    )
    updated_at: str
    consumed_through: int = Field(description="newest telemetry batch that entered")
    rows: int = Field(description="since the champion was published")
    rows_total: int
    levels: dict[str, DriftLevel] = Field(description="`warn` and `act`")
    dependence: RequestDependence | None
    exploration: Exploration | None = Field(description="null before the loop has read a row")
    tests: list[DriftTest]
    history: list[HistoryPoint]
    data_quality: list[QualityMonitor]
    explanations: dict[str, Any] = Field(
        description="what changed in the traffic (psi, ks, acceptance, verified_length, mix): "
        "shown, never a trigger"
    )
    challenger: DriftChallenger | None
    watch: RollbackWatch | None
    cool_down_until: str | None
    last_decision: LastDecision | None


def collecting_document(
    drafter: str, *, revision: int, publication: int, published_at: float
) -> bytes:
    """The document before the worker has read a row: canonical JSON, nothing known yet.

    Args:
        drafter: its name.
        revision: number of the champion.
        publication: number of its publication.
        published_at: seconds since the epoch: nothing has changed since.
    """
    return canonical_json(
        {
            "drafter": drafter,
            "revision": revision,
            "publication": publication,
            "status": "collecting",
            "updated_at": iso_time(published_at),
            "consumed_through": 0,
            "rows": 0,
            "rows_total": 0,
            "levels": {
                name: {"threshold": value, "false_alarms_per_million_rows": _MILLION / value}
                for name, value in _THRESHOLDS.items()
            },
            "tests": [],
            "history": [],
            "data_quality": [],
            "dependence": None,
            "exploration": None,
            "explanations": {
                "psi": [],
                "ks": [],
                "acceptance": {},
                "verified_length": {},
                "mix": {},
            },
            "challenger": None,
            "watch": None,
            "cool_down_until": None,
            "last_decision": None,
        }
    )
