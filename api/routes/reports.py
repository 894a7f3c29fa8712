"""The newest report of a drafter: JSON, a page to read or print, or a picture."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Final, Literal

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
from monitoring.reports.page_policy import PAGE_POLICY
from monitoring.store import jobs, reports
from monitoring.store.drafter_rows import state_of

__all__ = ["router"]

Format = Literal["json", "html", "png"]

# What the worker stored, and as what it is sent.
_STORED: Final[dict[Format, tuple[str, str]]] = {
    "json": ("evaluation", "application/json"),
    "html": (reports.PAGE_KIND, "text/html; charset=utf-8"),
    "png": (reports.PICTURE_KIND, "image/png"),
}

router = APIRouter(prefix="/v1/drafters/{drafter}", tags=["drafters"], route_class=JsonRoute)


@router.get(
    "/report",
    name="get_report",
    responses=outcomes(
        {
            200: {
                "description": "The newest report.",
                "content": {
                    "application/json": {"schema": {"type": "object"}},
                    "text/html": {"schema": {"type": "string"}},
                    "image/png": {"schema": {"type": "string", "format": "binary"}},
                },
                "headers": {"ETag": header("SHA-256 of the body")},
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
    form: Annotated[
        Format, Query(alias="format", description="JSON, a page in one file, or a picture")
    ] = "json",
    refresh: Annotated[bool, Query(description="make a new one instead: 202 with its job")] = False,
    if_none_match: IfNoneMatch = None,
) -> Response:
    """How well the champion does on the newest rows, as the worker last computed it."""
    head = getattr(request.state, "head", False)
    if refresh and not head:
        return answer_job(await change(request, _order(request, drafter, principal)))

    kind, media_type = _STORED[form]

    def work(connection: Connection) -> bytes | None:
        state_of(connection, drafter)
        found = reports.latest_report(connection, drafter, kind)
        return None if found is None else found.document

    document = await read(request, work)
    if document is None:
        remedy = f"Ask for one with GET /v1/drafters/{drafter}/report?refresh=true."
        said = f"The worker has made no report{'' if form == 'json' else f' as {form}'} yet."
        raise ProblemError("report-not-found", f"{said} {remedy}")
    tag = strong_tag(document)
    headers = {"ETag": tag, "Cache-Control": "no-cache"}
    if form == "html":
        headers["Content-Security-Policy"] = PAGE_POLICY
    if none_match(if_none_match, tag):
        return Response(document, headers=headers, media_type=media_type)
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
