"""Revisions of a drafter, and what is served: hand-made numbers, promotion, rollback."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Depends, Path
from sqlalchemy import Connection
from starlette.requests import Request
from starlette.responses import Response

from api.auth import Principal, require
from api.conditional import header_values, require_match, strong_tag
from api.database_calls import change, read
from api.documentation import describe, header, outcomes
from api.json_route import JsonRoute
from api.parameters import IF_MATCH, Before, DrafterName, Limit
from api.problems import ProblemError
from api.publication_feed import PublicationFeed
from api.publication_variants import Published
from api.schemas import HandMadeRevision, PublicationView, Reason, RevisionPage, RevisionView
from api.views import (
    body_of,
    drafter_body,
    json_answer,
    publication_view,
    revision_summary,
    revision_view,
)
from calib.calibration import Calibration
from monitoring.published_document import document_maker
from monitoring.store import publications, revisions
from monitoring.store.drafter_rows import DrafterState, lock, state_of

__all__ = ["router"]

router = APIRouter(prefix="/v1/drafters/{drafter}", tags=["revisions"], route_class=JsonRoute)

Reader = Annotated[Principal, Depends(require("read:temperatures", "read:reports"))]
Operator = Annotated[Principal, Depends(require("operate"))]
Change = Callable[[Connection], tuple[PublicationView, Published]]
Number = Annotated[int, Path(ge=0, le=2**31 - 1, description="number of the revision")]

_CHANGES = ("precondition-required", "precondition-failed", "store-full")
_ETAG = {"ETag": header("of the drafter as it is now: what the next If-Match must name")}


@router.get(
    "/revisions",
    name="list_revisions",
    responses=outcomes({200: describe(RevisionPage, "Newest first.")}, "drafter-not-found"),
)
async def list_revisions(
    request: Request,
    drafter: DrafterName,
    _: Reader,
    before: Before = None,
    limit: Limit = 50,
) -> Response:
    """Revisions without their evidence, a page at a time."""

    def work(connection: Connection) -> RevisionPage:
        aliases = revisions.aliases(connection, drafter)
        found = revisions.list_revisions(connection, drafter, before=before, limit=limit)
        more = len(found) == limit and found[-1].number > 0
        return RevisionPage(
            revisions=[revision_summary(revision, aliases) for revision in found],
            next_before=found[-1].number if more else None,
        )

    return json_answer(await read(request, work))


@router.get(
    "/revisions/{revision}",
    name="get_revision",
    responses=outcomes(
        {200: describe(RevisionView, "The revision.")}, "drafter-not-found", "revision-not-found"
    ),
)
async def get_revision(
    request: Request, drafter: DrafterName, revision: Number, _: Reader
) -> Response:
    """One revision with its evidence and where it comes from."""

    def work(connection: Connection) -> RevisionView:
        state = state_of(connection, drafter)
        found = revisions.get_revision(connection, drafter, revision)
        return revision_view(found, state.aliases, state.drafter.key)

    return json_answer(await read(request, work))


@router.post(
    "/revisions",
    name="create_revision",
    status_code=201,
    responses=outcomes(
        {
            201: describe(
                RevisionView,
                "Stored; nothing is served differently until it is promoted.",
                Location=header("the revision"),
            )
        },
        "drafter-not-found",
        *_CHANGES,
        body=True,
    ),
    openapi_extra=IF_MATCH,
)
async def create_revision(
    request: Request,
    drafter: DrafterName,
    made: HandMadeRevision,
    principal: Operator,
) -> Response:
    """Store temperatures made by hand or elsewhere."""

    def work(connection: Connection) -> RevisionView:
        state = _matched(connection, drafter, request)
        calibration = Calibration.from_temperatures(
            made.temperatures,
            gamma=state.drafter.gamma,
            key=state.drafter.key,
            fitted_at=made.fitted_at,
        )
        stored = revisions.add_revision(
            connection,
            drafter,
            calibration,
            provenance={"origin": "manual", "reason": made.reason},
            actor=principal.name,
            request_id=request.state.request_id,
        )
        return revision_view(stored, state.aliases, state.drafter.key)

    view = await change(request, work)
    location = f"/v1/drafters/{drafter}/revisions/{view.revision}"
    return json_answer(view, 201, {"Location": location})


@router.post(
    "/revisions/{revision}/promote",
    name="promote_revision",
    responses=outcomes(
        {200: describe(PublicationView, "Served from now on.", **_ETAG)},
        "drafter-not-found",
        "revision-not-found",
        *_CHANGES,
        body=True,
    ),
    openapi_extra=IF_MATCH,
)
async def promote_revision(
    request: Request,
    drafter: DrafterName,
    revision: Number,
    principal: Operator,
    reason: Reason | None = None,
) -> Response:
    """Make a revision the champion and publish it."""
    why = reason.reason if reason and reason.reason else "promoted by hand"

    def work(connection: Connection) -> tuple[PublicationView, Published]:
        state = _matched(connection, drafter, request)
        return _published(connection, request, state, revision, principal, why)

    return await _answer_change(request, work)


@router.post(
    "/rollback",
    name="rollback",
    responses=outcomes(
        {200: describe(PublicationView, "The previous champion is served again.", **_ETAG)},
        "drafter-not-found",
        "conflict",
        *_CHANGES,
        body=True,
    ),
    openapi_extra=IF_MATCH,
)
async def rollback(
    request: Request,
    drafter: DrafterName,
    principal: Operator,
    reason: Reason | None = None,
) -> Response:
    """Publish the champion before this one; the publication number grows all the same."""
    why = reason.reason if reason and reason.reason else "rolled back by hand"

    def work(connection: Connection) -> tuple[PublicationView, Published]:
        state = _matched(connection, drafter, request)
        previous = state.aliases.previous
        if previous is None:
            raise ProblemError("conflict", "There is no previous champion to roll back to.")
        return _published(connection, request, state, previous, principal, why)

    return await _answer_change(request, work)


def _matched(connection: Connection, drafter: str, request: Request) -> DrafterState:
    """The locked drafter, when If-Match names it as it is.

    Raises:
        ProblemError: 428 or 412.
    """
    state = lock(connection, drafter)
    require_match(header_values(request.scope["headers"], b"if-match"), drafter_body(state)[1])
    return state


def _published(
    connection: Connection,
    request: Request,
    state: DrafterState,
    revision: int,
    principal: Principal,
    reason: str,
) -> tuple[PublicationView, Published]:
    """Publish in the transaction that compared the state."""
    valid_for = request.app.state.settings.valid_for_seconds
    publication = publications.publish(
        connection,
        state.drafter.name,
        revision,
        expected_version=state.drafter.version,
        actor=principal.name,
        reason=reason,
        document=document_maker(valid_for),
        request_id=request.state.request_id,
        valid_for_seconds=valid_for,
    )
    now = state_of(connection, state.drafter.name)
    view = publication_view(publication, state.aliases.champion, now)
    return view, Published(now.drafter, publication)


async def _answer_change(request: Request, work: Change) -> Response:
    view, published = await change(request, work)
    # This replica answers with the new publication at once; the others learn of it.
    feed: PublicationFeed = request.app.state.feed
    feed.apply(published)
    return json_answer(view, headers={"ETag": strong_tag(body_of(view.drafter))})
