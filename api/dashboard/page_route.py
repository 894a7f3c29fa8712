"""A route that answers faults with a page where a browser asked, and as the API does elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Final
from urllib.parse import quote, urlencode

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from api.dashboard.pages import LIVE_HEADER, answer_page
from api.problems import ProblemError, problem_of, respond

__all__ = ["PageRoute", "install_missing_page", "wants_page"]

Handler = Callable[[Request], Coroutine[Any, Any, Response]]

_SIGN_IN: Final = "/sign-in"


class PageRoute(APIRoute):
    """FastAPI's route for pages.

    Without a valid token a browser is led to the sign-in page; any other fault is a page with the
    problem's status, its request id and what to do.
    """

    def get_route_handler(self) -> Handler:
        """The handler, with faults turned into pages."""
        handler = super().get_route_handler()

        async def page(request: Request) -> Response:
            try:
                return await handler(request)
            except Exception as error:
                if not wants_page(request):
                    raise
                return await _fault(request, error)

        return page


def install_missing_page(app: FastAPI) -> None:
    """Answer a browser with a page where no route has its address; calls get a problem as ever."""
    answer: Any = app.exception_handlers[HTTPException]

    async def missing(request: Request, error: Exception) -> Response:
        is_missing = getattr(error, "status_code", 500) == 404
        path = request.url.path
        if is_missing and wants_page(request) and not path.startswith("/v1/"):
            return await _fault(request, ProblemError("not-found", f"There is no page {path}."))
        found: Response = await answer(request, error)
        return found

    app.add_exception_handler(HTTPException, missing)


def wants_page(request: Request) -> bool:
    """Whether a person looks at the answer: a browser asks for HTML by name."""
    return "text/html" in request.headers.get("accept", "") and LIVE_HEADER not in request.headers


async def _fault(request: Request, error: Exception) -> Response:
    if isinstance(error, RequestValidationError):
        error = ProblemError("not-found", f"There is no page {request.url.path}.")
    problem = problem_of(error)
    if problem.kind.slug == "unauthenticated":
        return await _sign_in(request)
    noted = respond(request, problem, cause=error)  # logs it, and knows its headers
    kept = {
        name: value
        for name, value in noted.headers.items()
        if name in ("retry-after", "connection", "allow")
    }
    return await answer_page(
        request,
        "problem.html",
        None,
        status=problem.kind.status,
        headers=kept,
        problem=problem,
        request_id=request.scope.get("state", {}).get("request_id"),
        back=_back(request),
    )


async def _sign_in(request: Request) -> Response:
    """To the sign-in page, and from there back to where the visitor wanted to go.

    A link from a chat or a mail brings no strict cookie along: the page then loads itself again,
    which is a request of this site, and its cookie comes with it.
    """
    if request.headers.get("sec-fetch-site") == "cross-site" and request.method == "GET":
        return await answer_page(request, "bounce.html", None, target=str(_address(request)))
    query = urlencode({"next": _address(request)} if request.method == "GET" else {})
    return RedirectResponse(
        f"{_SIGN_IN}?{query}" if query else _SIGN_IN, 303, headers={"Cache-Control": "no-store"}
    )


def _back(request: Request) -> str:
    """The page that failed; for a form the page of its drafter."""
    if request.method in ("GET", "HEAD"):
        return request.url.path
    drafter = request.path_params.get("drafter")
    return f"/drafters/{quote(drafter)}" if drafter else "/"


def _address(request: Request) -> str:
    query = request.url.query
    return request.url.path + (f"?{query}" if query else "")
