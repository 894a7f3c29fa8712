"""The newest report of a drafter, as JSON."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Depends, Query
from sqlalchemy import Connection
from starlette.requests import Request
from starlette.responses import Response

from api.auth import Principal, require
from api.conditional import none_match, strong_tag
from api.database_calls import change, read
from api.documentation import describe, header, outcomes
from api.json_route import JsonRoute
from api.parameters import DrafterName, IfNoneMatch
from api.problems import ProblemError
from api.routes.recalibrations import LOCATION, answer_job
from api.schemas import JobView
from monitoring.store import jobs, reports
from monitoring.store.drafter_rows import state_of

__all__ = ["router"]

router = APIRouter(prefix="/v1/drafters/{drafter}", tags=["drafters"], route_class=JsonRoute)


@router.get(
    "/report",
    name="get_report",
    responses=outcomes(
        {
            200: {
                "description": "The newest report.",
                "content": {"application/json": {"schema": {"type": "object"}}},
                "headers": {"ETag": header("SHA-256 of the report")},
            },
            202: describe(JobView, "`refresh`: a report is being made.", **LOCATION),
            304: {"description": "There is no newer one."},
        },
        "drafter-not-found",
        "report-not-found",
        "store-full",
    ),
)
async def get_report(
    request: Request,
    drafter: DrafterName,
    principal: Annotated[Principal, Depends(require("read:reports"))],
    refresh: Annotated[bool, Query(description="make a new one instead: 202 with its job")] = False,
    if_none_match: IfNoneMatch = None,
) -> Response:
    """How well the champion does on the newest rows, as the worker last computed it."""
    head = getattr(request.state, "head", False)
    if refresh and not head:
        return answer_job(await change(request, _order(request, drafter, principal)))

    def work(connection: Connection) -> bytes | None:
        state_of(connection, drafter)
        found = reports.latest_report(connection, drafter)
        return None if found is None else found.document

    document = await read(request, work)
    if document is None:
        remedy = f"Ask for one with GET /v1/drafters/{drafter}/report?refresh=true."
        raise ProblemError("report-not-found", f"The worker has made no report yet. {remedy}")
    tag = strong_tag(document)
    headers = {"ETag": tag, "Cache-Control": "no-cache"}
    if none_match(if_none_match, tag):
        return Response(document, headers=headers, media_type="application/json")
    return Response(status_code=304, headers=headers)


def _order(
    request: Request, drafter: str, principal: Principal
) -> Callable[[Connection], jobs.Job]:
    def work(connection: Connection) -> jobs.Job:
        request_id = request.state.request_id
        return jobs.enqueue(
            connection, drafter, "report", {}, actor=principal.name, request_id=request_id
        )

    return work
