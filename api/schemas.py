"""What calls take and answer, as pydantic models: the answers are made from them, and OpenAPI too.

Times are ISO 8601 in UTC. Requests are strict: a text is no number, ``true`` is no number, and
NaN and infinity are refused; unknown members are refused as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    StringConstraints,
    field_validator,
)

from calib.record_schema import MAX_GAMMA
from calib.statuses import PositionStatus, ServingStatus
from monitoring.store.events import EVENT_KINDS

__all__ = [
    "Affine",
    "Aliases",
    "CalibrationKeyModel",
    "CalibrationKeyView",
    "Check",
    "CostTableView",
    "DrafterPage",
    "DrafterRegistration",
    "DrafterView",
    "EngineList",
    "EngineView",
    "EventPage",
    "EventView",
    "FieldErrorModel",
    "HandMadeRevision",
    "Health",
    "JobView",
    "Problem",
    "PublicationDocument",
    "PublicationView",
    "Readiness",
    "Reason",
    "RecalibrationRequest",
    "RecalibrationWindow",
    "RevisionPage",
    "RevisionSummary",
    "RevisionView",
    "SegmentAnswer",
    "SilenceList",
    "SilenceRequest",
    "SilenceView",
]

# Every database can hold it and every log line stays one line.
_NO_CONTROL = r"^[^\x00-\x1f\x7f]+$"

Text = Annotated[str, StringConstraints(min_length=1, max_length=512, pattern=_NO_CONTROL)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Digest = Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")]
JsonObject = dict[str, Any]

_KEY_EXAMPLE: dict[str, JsonValue] = {
    "target_model": "example-org/target-8b",
    "target_revision": "8c1f0d2",
    "target_quantization": "none",
    "draft_model": "example-org/target-8b-dspark",
    "draft_revision": "v3",
    "draft_quantization": "none",
    "gamma": 7,
    "slot_convention": "anchor_excluded",
}


class _Request(BaseModel):
    """Bodies that are taken."""

    model_config = ConfigDict(extra="forbid", strict=True)


class _Answer(BaseModel):
    """Bodies that are given."""

    model_config = ConfigDict(extra="forbid")


class CalibrationKeyModel(_Request):
    """Everything that decides which event a confidence logit predicts."""

    model_config = ConfigDict(json_schema_extra={"examples": [_KEY_EXAMPLE]})

    target_model: Text = Field(description="full name of the target")
    target_revision: Text = Field(description="commit or tag of its weights")
    target_quantization: Text = Field(description="its quantisation; `none` where there is none")
    draft_model: Text = Field(description="full name of the drafter")
    draft_revision: Text = Field(description="commit or tag of its weights")
    draft_quantization: Text = Field(description="its quantisation")
    gamma: int = Field(ge=1, le=MAX_GAMMA, description="block size")
    slot_convention: Literal["anchor_excluded", "anchor_included"]
    confidence_source: Text = Field(default="head", description="`head`, `max_log_odds`, …")
    verification_method: Text = Field(
        default="rejection", description="the engine's configured method"
    )
    draft_vocabulary_hash: Text | None = Field(
        default=None, description="hash of the mapping of a pruned draft vocabulary"
    )


class CalibrationKeyView(_Answer):
    """The calibration key of a drafter, as it was registered."""

    target_model: str
    target_revision: str
    target_quantization: str
    draft_model: str
    draft_revision: str
    draft_quantization: str
    gamma: int
    slot_convention: str
    confidence_source: str
    verification_method: str
    draft_vocabulary_hash: str | None


class DrafterRegistration(_Request):
    """What registers a drafter."""

    key: CalibrationKeyModel


class Aliases(_Answer):
    """Revisions that names point at."""

    champion: int = Field(description="served")
    challenger: int | None = Field(description="being compared with the champion")
    previous: int | None = Field(description="where a rollback leads")


class DrafterView(_Answer):
    """A registered drafter. Its ETag is what If-Match of a change must name."""

    name: str
    gamma: int
    key: CalibrationKeyView
    key_digest: Digest = Field(description="what engines send as `key` when they poll")
    version: int = Field(description="grows with every change")
    aliases: Aliases
    publication: int = Field(description="number of the newest publication")
    created_at: str


class DrafterPage(_Answer):
    """Every drafter, by name."""

    drafters: list[DrafterView]


class Affine(_Answer):
    """c = σ(s·z + b), for engines that can apply it."""

    slopes: list[float]
    intercepts: list[float]


class SegmentAnswer(_Answer):
    """What was asked for, what was found, and how close that is."""

    requested: dict[str, str]
    matched: JsonObject | None = Field(description="tags of the numbers found; null: none")
    level: Literal["segment", "pooled", "identity"]


class PublicationDocument(_Answer):
    """What engines poll: numbers, where they come from, and how good they are."""

    drafter: str
    publication: int = Field(description="only grows; order answers by it")
    revision: int
    status: ServingStatus
    gamma: int
    temperatures: list[float] = Field(description="T_k: c_k = σ(z_k / T_k)")
    affine: Affine | None
    segments: JsonObject | None
    segment: SegmentAnswer | None = Field(description="null unless `segment.*` was asked for")
    position_statuses: list[PositionStatus]
    method: str
    label_kind: str | None
    fitted_at: str | None
    published_at: str
    valid_until: str | None = Field(description="from then on clients call it stale")
    exploration: float | None = Field(
        None,
        description="share of steps to verify in full by a coin; absent: none. "
        "It may change under one publication: a warning of drift raises it",
    )
    evidence: JsonObject
    digest: Digest | None = Field(
        description="SHA-256 of key and numbers of the revision; null where no revision holds them"
    )
    key: Digest = Field(description="digest of the calibration key")
    derived_from_gamma: int | None = Field(description="block size that this prefix was cut from")


class RevisionSummary(_Answer):
    """A revision without its evidence."""

    drafter: str
    revision: int
    status: ServingStatus
    method: str
    temperatures: list[float]
    digest: Digest
    fitted_at: str | None
    created_at: str
    created_by: str
    aliases: list[Literal["champion", "challenger", "previous"]]


class RevisionView(RevisionSummary):
    """An immutable calibration with its evidence and where it comes from."""

    gamma: int
    affine: Affine | None
    position_statuses: list[PositionStatus]
    label_kind: str | None
    key: CalibrationKeyView
    segments: JsonObject | None
    evidence: JsonObject
    provenance: JsonObject


class RevisionPage(_Answer):
    """Revisions, newest first."""

    revisions: list[RevisionSummary]
    next_before: int | None = Field(description="`before` of the next page; null: this is the last")


class HandMadeRevision(_Request):
    """Temperatures made by hand or elsewhere. They are stored, not served: promote them."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"temperatures": [1.2, 1.1, 1.0, 1.0, 0.95, 0.9, 0.9], "reason": "from the lab"}
            ]
        }
    )

    temperatures: list[Number] = Field(
        min_length=1, max_length=MAX_GAMMA, description="one per position, in [0.05, 20]"
    )
    reason: Text | None = Field(default=None, description="kept with the revision")
    fitted_at: Text | None = Field(
        default=None,
        description="ISO 8601 with offset",
        json_schema_extra={"format": "date-time", "examples": ["2026-11-29T12:00:00Z"]},
    )

    @field_validator("fitted_at")
    @classmethod
    def _is_a_moment(cls, value: str | None) -> str | None:
        moment = None if value is None else value.upper()  # RFC 3339 allows t and z
        if moment is not None and datetime.fromisoformat(moment).tzinfo is None:
            raise ValueError("give a time with its offset, such as 2026-11-29T12:00:00Z")
        return moment


class Reason(_Request):
    """Why a change is made; kept in its audit row."""

    reason: Text | None = None


class PublicationView(_Answer):
    """What a promotion or rollback has published, and the drafter as it is now."""

    publication: int
    revision: int
    replaced: int = Field(description="the champion before")
    published_at: str
    drafter: DrafterView


class RecalibrationWindow(_Request):
    """Stored batches that a recalibration reads; both ends count."""

    from_batch: int | None = Field(default=None, ge=0, le=2**53, description="oldest batch")
    through_batch: int | None = Field(default=None, ge=0, le=2**53, description="newest batch")


class RecalibrationRequest(_Request):
    """Options of a recalibration; what is left out follows the settings of the service."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"method": "auto"}]})

    method: Literal["auto", "sts", "temperature", "affine", "survival", "segments"] = Field(
        default="auto",
        description="`auto`: the best of the others on held-out rows; `temperature`, `affine`: "
        "conditional likelihood, right on trimmed telemetry; `survival`: Sequential Temperature "
        "Scaling with imputed survival, right there too; `sts`: Sequential Temperature Scaling on "
        "fully verified rows; `segments`: `survival` with numbers for every slice of traffic",
    )
    rows: int | None = Field(default=None, ge=1, le=5_000_000, description="newest rows to fit on")
    window: RecalibrationWindow | None = Field(
        default=None, description="batches to read, to fit after a change or to fit again"
    )
    minimum_rows: int | None = Field(
        default=None, ge=1, le=5_000_000, description="rows a position needs to be published"
    )
    evaluation_share: float = Field(
        default=0.5, gt=0, lt=1, allow_inf_nan=False, description="share kept for judging"
    )
    largest_tenant_share: float = Field(
        default=0.5,
        gt=0,
        le=1,
        allow_inf_nan=False,
        description="most of the weight that the rows of one tenant may have",
    )
    reason: Text | None = Field(default=None, description="kept with the revision")
    promote: Literal["gate", "guard", "never"] = Field(
        default="gate",
        description="what may publish the result: the `gate` on rows after the fit, the held-out "
        "`guard` alone, or nothing but a person",
    )
    source: Literal["rows", "sketches"] = Field(
        default="rows",
        description="`rows`: stored telemetry, part of it held out; `sketches`: what the closed "
        "loop has counted by hour, whether its rows are still stored or not; nothing is held out, "
        "`auto` is `survival`, and `sts`, `segments` and the `guard` are refused",
    )
    hours: int | None = Field(
        default=None, ge=1, le=8784, description="hours of sketches, back from the newest row"
    )
    half_life_hours: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="age at which a sketched row counts half; null forgets nothing",
    )


class JobView(_Answer):
    """Work that the worker does."""

    id: str
    drafter: str
    kind: Literal["recalibration", "report"]
    status: Literal["queued", "running", "succeeded", "refused", "failed"]
    options: JsonObject
    attempts: int
    created_at: str
    started_at: str | None
    finished_at: str | None
    result: JsonObject | None
    error: JsonObject | None


class EngineView(_Answer):
    """An engine as it was last seen."""

    engine: str
    status: Literal["on_champion", "behind", "silent", "unreported"]
    client_version: str | None
    applied_publication: int | None
    applied_revision: int | None
    state: str | None
    first_seen_at: str
    seen_at: str
    silent_seconds: float = Field(description="time since its last poll")


class EngineList(_Answer):
    """Who runs what."""

    drafter: str
    publication: int
    revision: int
    on_champion: int
    behind: int
    silent: int
    unreported: int
    engines: list[EngineView]


class EventView(_Answer):
    """Something that happened, or that still holds."""

    id: int
    drafter: str | None
    kind: str
    severity: Literal["info", "warning", "critical"]
    title: str
    details: JsonObject
    state: Literal["open", "acknowledged", "resolved"]
    opened_at: str
    updated_at: str
    acknowledged_by: str | None
    resolved_at: str | None
    count: int


class EventPage(_Answer):
    """Events, newest first."""

    events: list[EventView]
    next_before: int | None = Field(description="`before` of the next page; null: this is the last")


class SilenceRequest(_Request):
    """A time in which matching events are not told. Without drafter and kind, all of them."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"duration_seconds": 7200, "reason": "weights change"}]}
    )

    drafter: Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,127}$")] | None = (
        Field(default=None, description="whose events; null: of all drafters")
    )
    # Another word is refused where silences are stored, by an error that repeats it.
    kind: Text | None = Field(
        default=None,
        description="kind of event; null: every kind",
        json_schema_extra={"enum": [*EVENT_KINDS, None]},
    )
    duration_seconds: float = Field(
        gt=0, le=90 * 86400, allow_inf_nan=False, description="length, at most 90 days"
    )
    reason: Text = Field(description="why; kept with it and in the audit log")


class SilenceView(_Answer):
    """A silence; one that was removed stays in the record."""

    id: int
    drafter: str | None
    kind: str | None
    state: Literal["active", "ended", "removed"]
    starts_at: str
    ends_at: str
    reason: str
    created_at: str
    created_by: str
    removed_at: str | None
    removed_by: str | None


class SilenceList(_Answer):
    """Silences, newest first."""

    silences: list[SilenceView]


class CostTableView(_Answer):
    """The step curve of the drafter's engines, as it was sent."""

    drafter: str
    kind: Literal["flat", "additive", "staircase", "measured"]
    table: JsonObject
    updated_at: str
    updated_by: str


class Health(_Answer):
    """The process answers."""

    status: Literal["ok"]


class Check(_Answer):
    """One part of readiness."""

    ok: bool
    detail: str


class Readiness(_Answer):
    """The service can do its work."""

    status: Literal["ready"]
    checks: dict[str, Check]


class FieldErrorModel(_Answer):
    """One fault of a request."""

    pointer: str = Field(description="JSON pointer, or place:name of a parameter")
    detail: str


class Problem(BaseModel):
    """An RFC 9457 problem; further members depend on its type."""

    model_config = ConfigDict(extra="allow")

    type: str
    title: str
    status: int
    detail: str
    instance: str | None = None
    request_id: str | None = None
    errors: list[FieldErrorModel] | None = None


def plain(value: Any) -> Any:
    """Read-only views and tuples of the core as plain JSON values."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value
