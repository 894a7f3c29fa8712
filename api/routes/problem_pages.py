"""A page for every problem type: what it means and what to do."""

from __future__ import annotations

from html import escape
from typing import Annotated

from fastapi import APIRouter, Path
from starlette.responses import HTMLResponse

from api.documentation import outcomes
from api.problem_catalogue import CATALOGUE, ProblemType
from api.problems import ProblemError

__all__ = ["router"]

router = APIRouter(prefix="/problems", tags=["service"])

_PAGE = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
    "<h1>{title}</h1>{body}</html>\n"
)
_HTML = {200: {"description": "A page.", "content": {"text/html": {"schema": {"type": "string"}}}}}


@router.get(
    "", name="list_problems", response_class=HTMLResponse, responses=outcomes(_HTML, public=True)
)
async def list_problems() -> HTMLResponse:
    """Every problem type."""
    rows = "".join(
        f'<tr><td>{kind.status}<td><a href="{kind.uri}">{escape(kind.slug)}</a>'
        f"<td>{escape(kind.title)}"
        for kind in sorted(CATALOGUE.values(), key=lambda kind: (kind.status, kind.slug))
    )
    table = f"<table><tr><th>Status<th>Type<th>Title{rows}</table>"
    return _page("Problems", table)


@router.get(
    "/{slug}",
    name="get_problem",
    response_class=HTMLResponse,
    responses=outcomes(_HTML, "not-found", "invalid-request", public=True),
)
async def get_problem(
    slug: Annotated[
        str, Path(max_length=64, description="slug of the type", examples=["invalid-request"])
    ],
) -> HTMLResponse:
    """What one problem type means and what to do."""
    kind = CATALOGUE.get(slug)
    if kind is None:
        raise ProblemError("not-found", "There is no problem type of this name.")
    return _page(kind.title, _text(kind))


def _text(kind: ProblemType) -> str:
    return (
        f"<p>Type <code>{escape(kind.uri)}</code>, HTTP status {kind.status}.</p>"
        f"<p>{escape(kind.meaning)}</p>"
        '<p><a href="/problems">All problem types</a></p>'
    )


def _page(title: str, body: str) -> HTMLResponse:
    return HTMLResponse(_PAGE.format(title=escape(title), body=body))
