"""Sign in with a token, and out again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from api.auth import authenticated, check_scopes
from api.dashboard.page_route import PageRoute
from api.dashboard.pages import answer_page
from api.dashboard.session import as_token, forget, read_form, remember, visitor_of
from api.problems import ProblemError

if TYPE_CHECKING:
    from api.dashboard.session import Visitor

__all__ = ["local_target", "router"]

router = APIRouter(route_class=PageRoute, include_in_schema=False)


@router.get("/sign-in")
async def sign_in_page(request: Request) -> Response:
    """Ask for a token, unless the visitor needs none."""
    target = local_target(request.query_params.get("next", "/"))
    try:
        await visitor_of(request)
    except ProblemError as problem:
        if problem.kind.slug not in ("unauthenticated", "missing-scope"):
            raise
        return await _page(request, target, None)
    return RedirectResponse(target, 303, headers={"Cache-Control": "no-store"})


@router.post("/sign-in")
async def sign_in(request: Request) -> Response:
    """Start a session with a token that may read reports."""
    form = await read_form(request)
    target = local_target(form.get("next", "/"))
    secret = form.get("token", "").strip()
    if not secret:
        return await _page(request, target, "Paste a token.")
    try:
        principal = await authenticated(as_token(request, secret))
        check_scopes(principal, ("read:reports",))
    except ProblemError as problem:
        if problem.kind.slug not in ("unauthenticated", "missing-scope"):
            raise
        return await _page(request, target, problem.detail, problem.kind.status)
    answer = RedirectResponse(target, 303, headers={"Cache-Control": "no-store"})
    remember(answer, request, secret)
    return answer


@router.post("/sign-out")
async def sign_out(request: Request) -> Response:
    """End the session in this browser; the token stays valid elsewhere."""
    await read_form(request)
    answer = RedirectResponse("/sign-in", 303, headers={"Cache-Control": "no-store"})
    forget(answer, request)
    return answer


def local_target(given: str) -> str:
    """``given`` when it is a path of this site, else the fleet.

    Examples:
        >>> local_target("/drafters/a?view=conditional"), local_target("//elsewhere.example")
        ('/drafters/a?view=conditional', '/')
    """
    is_path = given.startswith("/") and not given.startswith(("//", "/\\"))
    return given if is_path and given.isprintable() and "\\" not in given else "/"


async def _page(
    request: Request, target: str, fault: str | None, status: int | None = None
) -> Response:
    nobody: Visitor | None = None
    return await answer_page(
        request,
        "sign_in.html",
        nobody,
        status=status or (200 if fault is None else 422),
        target=target,
        fault=fault,
    )
