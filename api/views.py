"""From the store's values to what calls answer, and from there to canonical bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel
from starlette.responses import Response

from api import schemas
from api.conditional import strong_tag
from calib.canonical_json import canonical_json
from monitoring.published_document import iso_time

if TYPE_CHECKING:
    from calib.calibration_key import CalibrationKey
    from monitoring.store.drafter_rows import Aliases, DrafterState
    from monitoring.store.engines import EngineRow
    from monitoring.store.events import Event
    from monitoring.store.jobs import Job
    from monitoring.store.publications import Publication
    from monitoring.store.revisions import Revision

__all__ = [
    "body_of",
    "drafter_body",
    "drafter_view",
    "engine_view",
    "event_view",
    "job_view",
    "json_answer",
    "publication_view",
    "revision_summary",
    "revision_view",
]

EngineStatus = Literal["on_champion", "behind", "silent", "unreported"]


def body_of(view: BaseModel) -> bytes:
    """Canonical JSON of an answer: equal states give equal bytes on every replica."""
    return canonical_json(view.model_dump(mode="json"))


def json_answer(
    view: BaseModel, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """An answer that nobody may keep."""
    return Response(
        body_of(view),
        status_code=status,
        headers={"Cache-Control": "no-store", **(headers or {})},
        media_type="application/json",
    )


def drafter_view(state: DrafterState) -> schemas.DrafterView:
    """A drafter with its aliases."""
    drafter = state.drafter
    return schemas.DrafterView(
        name=drafter.name,
        gamma=drafter.gamma,
        key=_key_view(drafter.key),
        key_digest=drafter.key.digest,
        version=drafter.version,
        aliases=schemas.Aliases(
            champion=state.aliases.champion,
            challenger=state.aliases.challenger,
            previous=state.aliases.previous,
        ),
        publication=state.publication,
        created_at=iso_time(drafter.created_at),
    )


def drafter_body(state: DrafterState) -> tuple[bytes, str]:
    """The drafter's representation and its strong ETag."""
    body = body_of(drafter_view(state))
    return body, strong_tag(body)


def _key_view(key: CalibrationKey) -> schemas.CalibrationKeyView:
    return schemas.CalibrationKeyView.model_validate(key.to_dict())


def publication_view(
    publication: Publication, replaced: int, state: DrafterState
) -> schemas.PublicationView:
    """What a change has published."""
    return schemas.PublicationView(
        publication=publication.number,
        revision=publication.revision,
        replaced=replaced,
        published_at=iso_time(publication.published_at),
        drafter=drafter_view(state),
    )


def _shared(revision: Revision, aliases: Aliases) -> dict[str, Any]:
    calibration = revision.calibration
    names = ("champion", "challenger", "previous")
    return {
        "drafter": revision.drafter,
        "revision": revision.number,
        "status": calibration.status,
        "method": calibration.method,
        "temperatures": list(calibration.temperatures),
        "digest": calibration.digest,
        "fitted_at": calibration.fitted_at,
        "created_at": iso_time(revision.created_at),
        "created_by": revision.created_by,
        "aliases": [name for name in names if getattr(aliases, name) == revision.number],
    }


def revision_summary(revision: Revision, aliases: Aliases) -> schemas.RevisionSummary:
    """A revision for a list."""
    return schemas.RevisionSummary(**_shared(revision, aliases))


def revision_view(
    revision: Revision, aliases: Aliases, drafter_key: CalibrationKey
) -> schemas.RevisionView:
    """A revision with everything it holds; without a key of its own it has the drafter's."""
    calibration = revision.calibration
    affine = None
    if calibration.slopes is not None and calibration.intercepts is not None:
        affine = schemas.Affine(
            slopes=list(calibration.slopes), intercepts=list(calibration.intercepts)
        )
    return schemas.RevisionView(
        **_shared(revision, aliases),
        gamma=calibration.gamma,
        affine=affine,
        position_statuses=list(calibration.position_statuses),
        label_kind=calibration.label_kind,
        key=_key_view(calibration.key or drafter_key),
        segments=schemas.plain(revision.segments),
        evidence=schemas.plain(calibration.evidence),
        provenance=schemas.plain(revision.provenance),
    )


def job_view(job: Job) -> schemas.JobView:
    """A job without its lease."""
    return schemas.JobView(
        id=job.id,
        drafter=job.drafter,
        kind=job.kind,
        status=job.status,
        options=schemas.plain(job.options),
        attempts=job.attempts,
        created_at=iso_time(job.created_at),
        started_at=_optional_time(job.started_at),
        finished_at=_optional_time(job.finished_at),
        result=schemas.plain(job.result),
        error=schemas.plain(job.error),
    )


def event_view(event: Event) -> schemas.EventView:
    """An event as people see it."""
    return schemas.EventView(
        id=event.id,
        drafter=event.drafter,
        kind=event.kind,
        severity=event.severity,
        title=event.title,
        details=schemas.plain(event.details),
        state=event.state,
        opened_at=iso_time(event.opened_at),
        updated_at=iso_time(event.updated_at),
        acknowledged_by=event.acknowledged_by,
        resolved_at=_optional_time(event.resolved_at),
        count=event.count,
    )


def engine_view(
    row: EngineRow, *, publication: int, now: float, silent_after: float
) -> schemas.EngineView:
    """An engine, and whether it runs what is published.

    Args:
        row: as it was last seen.
        publication: newest publication.
        now: seconds since the epoch.
        silent_after: age of the last poll from which it counts as silent.
    """
    age = max(0.0, now - row.seen_at)
    status: EngineStatus = "behind"
    if age > silent_after:
        status = "silent"
    elif row.applied_publication is None:
        status = "unreported"
    elif row.applied_publication >= publication:
        status = "on_champion"
    return schemas.EngineView(
        engine=row.engine,
        status=status,
        client_version=row.client_version,
        applied_publication=row.applied_publication,
        applied_revision=row.applied_revision,
        state=row.state,
        first_seen_at=iso_time(row.first_seen_at),
        seen_at=iso_time(row.seen_at),
        silent_seconds=round(age, 3),
    )


def _optional_time(seconds: float | None) -> str | None:
    return None if seconds is None else iso_time(seconds)
