"""Order a recalibration, and see how a job goes."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Path
from starlette.requests import Request
from starlette.responses import Response

from api.auth import Principal, require
from api.database_calls import change, read
from api.documentation import describe, header, outcomes
from api.json_route import JsonRoute
from api.parameters import DrafterName
from api.schemas import JobView, RecalibrationRequest
from api.views import job_view, json_answer
from monitoring.recalibration_options import RecalibrationOptions
from monitoring.store import jobs

__all__ = ["answer_job", "router"]

router = APIRouter(prefix="/v1", tags=["jobs"], route_class=JsonRoute)

LOCATION = {"Location": header("the job"), "Retry-After": header("when to look", kind="integer")}


def answer_job(job: jobs.Job) -> Response:
    """202 with where to look."""
    headers = {"Location": f"/v1/jobs/{job.id}", "Retry-After": "1"}
    return json_answer(job_view(job), 202, headers)


@router.post(
    "/drafters/{drafter}/recalibrations",
    name="create_recalibration",
    status_code=202,
    responses=outcomes(
        {202: describe(JobView, "Queued; one that waits already is not doubled.", **LOCATION)},
        "drafter-not-found",
        "store-full",
        body=True,
    ),
)
async def create_recalibration(
    request: Request,
    drafter: DrafterName,
    principal: Annotated[Principal, Depends(require("operate"))],
    options: RecalibrationRequest | None = None,
) -> Response:
    """Fit on the newest telemetry and make the result the challenger, or say why not."""
    asked = options or RecalibrationRequest()
    wanted = RecalibrationOptions.from_mapping(asked.model_dump()).to_mapping()
    job = await change(
        request,
        lambda connection: jobs.enqueue(
            connection,
            drafter,
            "recalibration",
            wanted,
            actor=principal.name,
            request_id=request.state.request_id,
        ),
    )
    return answer_job(job)


@router.get(
    "/jobs/{job}",
    name="get_job",
    responses=outcomes({200: describe(JobView, "The job as it is.")}, "job-not-found"),
)
async def get_job(
    request: Request,
    job: Annotated[str, Path(pattern="^[0-9a-f]{32}$", description="id of the job")],
    _: Annotated[Principal, Depends(require("read:reports"))],
) -> Response:
    """A job, and what came of it: `refused` is a result too, with its reason."""
    return json_answer(
        job_view(await read(request, lambda connection: jobs.get_job(connection, job)))
    )
