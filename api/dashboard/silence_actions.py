"""Begin and end a silence: a question first, then the API's own call."""

from __future__ import annotations

import math
from typing import Annotated, Final

from fastapi import APIRouter, Path
from starlette.requests import Request
from starlette.responses import Response

from api.dashboard.actions import Choice, Question, answer_question, done
from api.dashboard.page_route import PageRoute
from api.dashboard.session import checked_form, visitor_of
from api.dashboard.silence_queries import Silences
from api.database_calls import read
from api.problems import ProblemError
from api.routes.silences import create_silence, remove_silence
from api.schemas import SilenceRequest
from monitoring.store.drafter_rows import state_of
from monitoring.store.silences import LONGEST_SECONDS, Silence, get_silence

__all__ = ["router"]

router = APIRouter(route_class=PageRoute, include_in_schema=False)

Number = Annotated[int, Path(ge=0, le=2**31 - 1)]

_HOUR_SECONDS: Final = 3600.0
_HOURS: Final = (
    ("1", "1 hour"),
    ("2", "2 hours"),
    ("8", "8 hours"),
    ("24", "a day"),
    ("168", "a week"),
)
_KINDS: Final = (("", "every event"), ("drift", "drift"), ("data_quality", "data quality"))


@router.get("/drafters/{drafter}/silence")
async def ask_silence(request: Request, drafter: str) -> Response:
    """Whether to tell nobody of this drafter's events for a while."""
    visitor = await visitor_of(request, "operate")
    await read(request, lambda connection: state_of(connection, drafter))
    question = Question(
        title=f"Silence alerts of {drafter}?",
        said=[
            "Nobody is told of what happens meanwhile; it is recorded and shown here as ever.",
            "What still holds when the silence ends is told then.",
        ],
        button="Silence",
        back=f"/drafters/{drafter}#events",
        choices=(Choice("kind", "Which events", _KINDS), Choice("hours", "For how long", _HOURS)),
        needs_reason=True,
    )
    return await answer_question(request, visitor, question)


@router.post("/drafters/{drafter}/silence")
async def silence(request: Request, drafter: str) -> Response:
    """Tell nobody for a while."""
    visitor = await visitor_of(request, "operate")
    form = await checked_form(request, visitor)
    reason = "".join(c for c in form.get("reason", "") if c.isprintable()).strip()[:500]
    if not reason:
        raise ProblemError("invalid-request", "A silence needs a reason: others will wonder.")
    kind = form.get("kind", "")
    if kind not in dict(_KINDS):  # rather than to silence everything
        raise ProblemError("invalid-request", "Choose which events.")
    asked = SilenceRequest(
        drafter=drafter,
        kind=kind or None,
        duration_seconds=_seconds(form.get("hours", "")),
        reason=reason,
    )
    await create_silence(request, asked, visitor.principal)
    return done(f"/drafters/{drafter}", "silenced")


@router.get("/silences/{number}/end")
async def ask_end(request: Request, number: Number) -> Response:
    """Whether to end a silence early."""
    visitor = await visitor_of(request, "operate")
    found = await read(request, lambda connection: get_silence(connection, number))
    if found.removed_at is not None:
        raise ProblemError("conflict", "The silence is over already.")
    question = Question(
        title="End this silence?",
        said=[
            f"{Silences.subject(found)}, silenced by {found.created_by}: {found.reason}.",
            "What still holds is told at once.",
        ],
        button="End the silence",
        back=_page_of(found),
        asks_reason=False,
    )
    return await answer_question(request, visitor, question)


@router.post("/silences/{number}/end")
async def end(request: Request, number: Number) -> Response:
    """End a silence."""
    visitor = await visitor_of(request, "operate")
    await checked_form(request, visitor)
    found = await read(request, lambda connection: get_silence(connection, number))
    await remove_silence(request, number, visitor.principal)
    return done(_page_of(found).partition("#")[0], "unsilenced")


def _page_of(silence: Silence) -> str:
    return f"/drafters/{silence.drafter}#events" if silence.drafter else "/"


def _seconds(hours: str) -> float:
    """The chosen length; whatever else a form may hold is refused."""
    try:
        seconds = float(hours) * _HOUR_SECONDS
    except ValueError:
        seconds = math.nan
    if not 0.0 < seconds <= LONGEST_SECONDS:
        raise ProblemError("invalid-request", "Choose how long, 90 days at most.")
    return seconds
