"""Pages to look at: the fleet, a drafter, its engines, a revision."""

from __future__ import annotations

import json
from typing import Annotated, Any, Final, get_args

from fastapi import APIRouter, Path
from sqlalchemy import Connection
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from api.dashboard import actions, sign_in, silence_actions
from api.dashboard.assets import serve_asset
from api.dashboard.drafter import DrafterPage, evidence_sentence, load_drafter
from api.dashboard.fleet import FleetQuery, load_fleet
from api.dashboard.fleet_queries import (
    ENGINE_STATUSES,
    EngineCounts,
    EngineStatus,
    engine_counts,
    engine_page,
)
from api.dashboard.formats import power_of_ten
from api.dashboard.history_charts import error_chart, evidence_chart
from api.dashboard.page_route import PageRoute
from api.dashboard.pages import answer_page
from api.dashboard.reliability_panels import Panel
from api.dashboard.report_document import View
from api.dashboard.report_shelf import shelf_of
from api.dashboard.session import visitor_of
from api.dashboard.statuses import STATUSES
from api.database_calls import read
from api.routes.reports import get_report
from api.schemas import plain
from api.views import engine_view
from monitoring.store.drafter_rows import state_of
from monitoring.store.revisions import get_revision

__all__ = ["router"]

_ENGINES_A_PAGE: Final = 100
_LONGEST_SEARCH: Final = 128

router = APIRouter(include_in_schema=False)
_pages = APIRouter(route_class=PageRoute, include_in_schema=False)

Number = Annotated[int, Path(ge=0, le=2**31 - 1)]


@_pages.get("/")
async def fleet(request: Request) -> Response:
    """Every drafter, the most urgent first."""
    visitor = await visitor_of(request)
    query = FleetQuery.of(request.query_params)
    state = request.app.state

    def work(connection: Connection) -> Any:
        return load_fleet(
            connection,
            shelf_of(request.app),
            query,
            now=state.database.clock(),
            silent_after=state.settings.engine_silent_seconds,
            stale_after=state.settings.telemetry_silent_seconds,
        )

    page = await read(request, work)
    return await answer_page(
        request,
        "fleet.html",
        visitor,
        page=page,
        statuses=STATUSES,
        message=_message(request),
        address=str(request.base_url),
    )


@_pages.get("/drafters")
async def drafters() -> Response:
    """The fleet is at the root."""
    return RedirectResponse("/", 308)


@_pages.get("/drafters/{drafter}")
async def drafter(request: Request, drafter: str) -> Response:
    """One drafter."""
    visitor = await visitor_of(request)
    state = request.app.state
    asked = request.query_params.get("view", "survival")
    view: View = "conditional" if asked == "conditional" else "survival"
    before = request.query_params.get("before", "")

    def work(connection: Connection) -> tuple[DrafterPage, list[Panel]]:
        shelf = shelf_of(request.app)
        page = load_drafter(
            connection,
            shelf,
            drafter,
            now=state.database.clock(),
            silent_after=state.settings.engine_silent_seconds,
            stale_after=state.settings.telemetry_silent_seconds,
            revisions_before=int(before) if before.isdecimal() and len(before) < 10 else None,
        )
        head = page.report_head
        return page, [] if head is None else shelf.panels(connection, head, view)

    page, panels = await read(request, work)
    return await answer_page(
        request,
        "drafter.html",
        visitor,
        page=page,
        panels=panels,
        view=view,
        error_svg=_error_svg(page),
        evidence_svg=_evidence_svg(page),
        message=_message(request),
    )


@_pages.get("/drafters/{drafter}/engines")
async def engines(request: Request, drafter: str) -> Response:
    """The engines of a drafter, a page at a time."""
    visitor = await visitor_of(request)
    now = request.app.state.database.clock()
    silent_after = request.app.state.settings.engine_silent_seconds
    asked = request.query_params.get("status", "")
    status: EngineStatus | None = next((s for s in get_args(EngineStatus) if s == asked), None)
    text = request.query_params.get("q", "")[:_LONGEST_SEARCH].strip()
    number = request.query_params.get("page", "1")
    page = max(1, int(number)) if number.isdecimal() and len(number) < 6 else 1

    def work(connection: Connection) -> dict[str, Any]:
        state = state_of(connection, drafter)
        counts = engine_counts(connection, now=now, silent_after=silent_after, drafter=drafter)
        rows = engine_page(
            connection,
            drafter,
            now=now,
            silent_after=silent_after,
            status=status,
            text=text,
            offset=(page - 1) * _ENGINES_A_PAGE,
            limit=_ENGINES_A_PAGE + 1,  # one more tells whether there is a next page
        )
        publication = state.publication
        return {
            "state": state,
            "counts": counts.get(drafter, EngineCounts()),
            "more": len(rows) > _ENGINES_A_PAGE,
            "engines": [
                engine_view(row, publication=publication, now=now, silent_after=silent_after)
                for row in rows[:_ENGINES_A_PAGE]
            ],
        }

    found = await read(request, work)
    return await answer_page(
        request,
        "engines.html",
        visitor,
        status_word=status or "",
        statuses=ENGINE_STATUSES,
        text=text,
        number=page,
        **found,
    )


@_pages.get("/drafters/{drafter}/revisions/{revision}")
async def revision(request: Request, drafter: str, revision: Number) -> Response:
    """One revision: numbers, evidence and where they come from."""
    visitor = await visitor_of(request)

    def work(connection: Connection) -> dict[str, Any]:
        state = state_of(connection, drafter)
        found = get_revision(connection, drafter, revision)
        names = ("champion", "challenger", "previous")
        return {
            "state": state,
            "revision": found,
            "aliases": [n for n in names if getattr(state.aliases, n) == found.number],
            "evidence": evidence_sentence(found),
            "provenance": json.dumps(plain(found.provenance), indent=2, ensure_ascii=False),
        }

    return await answer_page(request, "revision.html", visitor, **await read(request, work))


@_pages.get("/drafters/{drafter}/report")
async def report(request: Request, drafter: str) -> Response:
    """The report as a page to print: the API's, for a visitor whose token is in a cookie."""
    visitor = await visitor_of(request)
    known = request.headers.get("if-none-match")
    return await get_report(request, drafter, visitor.principal, "html", if_none_match=known)


@router.get("/assets/{name}")
async def asset(request: Request, name: str) -> Response:
    """Style sheet, script or icon; they say nothing that a token would guard."""
    return await serve_asset(request, name)


router.include_router(sign_in.router)
router.include_router(actions.router)
router.include_router(silence_actions.router)
router.include_router(_pages)


def _message(request: Request) -> str | None:
    return actions.MESSAGES.get(request.query_params.get("done", ""))


def _error_svg(page: DrafterPage) -> Any:
    if len(page.errors) < 2:
        return None
    last = page.errors[-1]
    label = (
        f"Calibration error over {len(page.errors)} moments; the newest is "
        f"{100 * last.value:.1f} points. The table below has the numbers."
    )
    return error_chart(page.errors, label=label)


def _evidence_svg(page: DrafterPage) -> Any:
    if page.drift is None or len(page.evidence) < 2:
        return None
    warn, act = page.drift.threshold_log10("warn"), page.drift.threshold_log10("act")
    last = page.evidence[-1]
    label = (
        f"Strongest drift evidence over {last.rows:,} rows, logarithmic scale; now "
        f"{power_of_ten(last.log10)}."
    )
    for name, level in (("warn", warn), ("act", act)):
        label += "" if level is None else f" The {name} level is {power_of_ten(level)}."
    return evidence_chart(page.evidence, warn=warn, act=act, label=label)
