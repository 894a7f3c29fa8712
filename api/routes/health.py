"""Probes: ``/healthz`` says that the process answers, ``/readyz`` that it can do its work."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from api.documentation import describe, outcomes
from api.problems import ProblemError
from api.readiness import readiness
from api.schemas import Health, Readiness
from api.views import json_answer

__all__ = ["router"]

router = APIRouter(tags=["service"])


@router.get(
    "/healthz",
    name="get_health",
    responses=outcomes({200: describe(Health, "The process answers.")}, public=True),
)
async def get_health(request: Request) -> Response:
    """Restart the process when this fails."""
    request.state.quiet = True
    return json_answer(Health(status="ok"))


@router.get(
    "/readyz",
    name="get_readiness",
    responses=outcomes({200: describe(Readiness, "Send requests here.")}, "not-ready", public=True),
)
async def get_readiness(request: Request) -> Response:
    """The database answers, its tables are current, and publications are followed."""
    checks = await readiness(request.app.state)
    request.state.quiet = True
    if all(check.ok for check in checks.values()):
        return json_answer(Readiness(status="ready", checks=checks))
    failed = ", ".join(name for name, check in checks.items() if not check.ok)
    raise ProblemError(
        "not-ready",
        f"Not ready: {failed}.",
        headers={"Retry-After": "1"},
        checks={name: check.model_dump() for name, check in checks.items()},
    )
