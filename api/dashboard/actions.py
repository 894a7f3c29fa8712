"""Changes that a page offers: first a page that says what will happen, then the API's own call.

A form carries the ETag of the drafter as its page showed it; the change is refused when anything
was changed since. Scopes, compare-and-set, audit rows and the news to engines are those of the API,
because its functions do the work.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Final

from fastapi import APIRouter, Path
from sqlalchemy import Connection
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from api.dashboard.drafter import evidence_sentence
from api.dashboard.formats import plural
from api.dashboard.page_route import PageRoute
from api.dashboard.pages import answer_page
from api.dashboard.session import Visitor, checked_form, visitor_of
from api.database_calls import read
from api.problems import ProblemError
from api.routes.events import acknowledge_event
from api.routes.recalibrations import create_recalibration
from api.routes.reports import get_report
from api.routes.revisions import promote_revision, rollback
from api.schemas import Reason
from api.views import drafter_body
from monitoring.store.drafter_rows import DrafterState, state_of
from monitoring.store.events import get_event
from monitoring.store.revisions import Revision, get_revision

__all__ = ["MESSAGES", "Choice", "Question", "answer_question", "done", "router"]

router = APIRouter(route_class=PageRoute, include_in_schema=False)

Number = Annotated[int, Path(ge=0, le=2**31 - 1)]

MESSAGES: Final = {
    "promoted": "Published: engines get it with their next poll.",
    "rolled-back": "Rolled back: engines get the previous numbers with their next poll.",
    "acknowledged": "Noted: you look after this event.",
    "silenced": "Silenced: nobody is told until it ends. Events are recorded and shown as ever.",
    "unsilenced": "The silence has ended: what still holds is told now.",
    "recalibration": "A recalibration is queued. Its result appears under Jobs.",
    "report": "A report is queued. It appears here when the worker has made it.",
    "signed-in": "Signed in.",
}
"""What a page says after a change, by the word in its address."""

_LONGEST_REASON: Final = 500


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several, with a question.

    Attributes:
        name: of the form's field.
        label: for people.
        options: values with what they are called, the usual one first.
    """

    name: str
    label: str
    options: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Question:
    """What a visitor is asked before something changes.

    Attributes:
        title: the question.
        said: what will happen, a sentence each.
        button: the answer that makes it happen.
        back: where the other answer leads.
        etag: the drafter as it is now; empty where it does not matter.
        compared: rows of old and new numbers: position, before, after.
        asks_reason: whether a reason can be given.
        needs_reason: whether it must be.
        choices: what else there is to choose.
    """

    title: str
    said: list[str]
    button: str
    back: str
    etag: str = ""
    compared: list[tuple[int, float, float]] = field(default_factory=list)
    asks_reason: bool = True
    needs_reason: bool = False
    choices: tuple[Choice, ...] = ()


@router.get("/drafters/{drafter}/revisions/{revision}/promote")
async def ask_promote(request: Request, drafter: str, revision: Number) -> Response:
    """Whether to serve a revision."""
    visitor = await visitor_of(request, "operate")

    def work(connection: Connection) -> Question:
        state = state_of(connection, drafter)
        chosen = get_revision(connection, drafter, revision)
        evidence = evidence_sentence(chosen)
        said = [
            f"Revision {revision} becomes the champion of {drafter}, in place of revision "
            f"{state.aliases.champion}.",
            f"{evidence}." if evidence else "This revision carries no held-out evidence.",
            "Every engine applies it with its next poll, within seconds.",
        ]
        title = f"Promote revision {revision}?"
        return _published(connection, state, chosen, title, said, f"Promote revision {revision}")

    return await answer_question(request, visitor, await read(request, work))


@router.post("/drafters/{drafter}/revisions/{revision}/promote")
async def promote(request: Request, drafter: str, revision: Number) -> Response:
    """Serve a revision."""
    visitor = await visitor_of(request, "operate")
    form = await checked_form(request, visitor)
    asked = _matching(request, form)
    await promote_revision(asked, drafter, revision, visitor.principal, _reason(form))
    return done(f"/drafters/{drafter}", "promoted")


@router.get("/drafters/{drafter}/rollback")
async def ask_rollback(request: Request, drafter: str) -> Response:
    """Whether to serve the previous champion again."""
    visitor = await visitor_of(request, "operate")

    def work(connection: Connection) -> Question:
        state = state_of(connection, drafter)
        previous = state.aliases.previous
        if previous is None:
            raise ProblemError("conflict", "There is no previous champion to roll back to.")
        said = [
            f"Revision {previous} is served again in place of revision {state.aliases.champion}.",
            "The publication number grows all the same, so no engine takes it for old news.",
        ]
        chosen = get_revision(connection, drafter, previous)
        title = f"Roll back {drafter}?"
        return _published(connection, state, chosen, title, said, f"Roll back to {previous}")

    return await answer_question(request, visitor, await read(request, work))


@router.post("/drafters/{drafter}/rollback")
async def roll_back(request: Request, drafter: str) -> Response:
    """Serve the previous champion again."""
    visitor = await visitor_of(request, "operate")
    form = await checked_form(request, visitor)
    await rollback(_matching(request, form), drafter, visitor.principal, _reason(form))
    return done(f"/drafters/{drafter}", "rolled-back")


@router.get("/drafters/{drafter}/recalibrate")
async def ask_recalibrate(request: Request, drafter: str) -> Response:
    """Whether to fit anew."""
    visitor = await visitor_of(request, "operate")
    await read(request, lambda connection: state_of(connection, drafter))
    rows = request.app.state.settings.recalibration_rows
    question = Question(
        title=f"Recalibrate {drafter}?",
        said=[
            f"The worker fits on the newest rows ({plural(rows, 'row')} at most) and judges on "
            "rows it did not fit on.",
            "The result is a challenger, or a refusal with its reason. Nothing is served "
            "differently until a revision is promoted.",
        ],
        button="Recalibrate",
        back=f"/drafters/{drafter}",
        asks_reason=False,
    )
    return await answer_question(request, visitor, question)


@router.post("/drafters/{drafter}/recalibrate")
async def recalibrate(request: Request, drafter: str) -> Response:
    """Fit anew."""
    visitor = await visitor_of(request, "operate")
    await checked_form(request, visitor)
    await create_recalibration(request, drafter, visitor.principal)
    return done(f"/drafters/{drafter}", "recalibration")


@router.post("/drafters/{drafter}/refresh-report")
async def refresh_report(request: Request, drafter: str) -> Response:
    """Make a report now; it changes nothing, so nobody is asked twice."""
    visitor = await visitor_of(request)
    await checked_form(request, visitor)
    await get_report(request, drafter, visitor.principal, refresh=True)
    return done(f"/drafters/{drafter}", "report")


@router.get("/events/{event}/acknowledge")
async def ask_acknowledge(request: Request, event: Number) -> Response:
    """Whether to look after an event."""
    visitor = await visitor_of(request, "operate")
    found = await read(request, lambda connection: get_event(connection, event))
    if found.state != "open":
        by = f" by {found.acknowledged_by}" if found.acknowledged_by else ""
        raise ProblemError("conflict", f"The event is {found.state}{by} already.")
    question = Question(
        title="Acknowledge this event?",
        said=[
            f"{found.title}.",
            f"It is recorded that {visitor.principal.name} looks after it. It stays listed until "
            "its cause is gone.",
        ],
        button="Acknowledge",
        back=f"/drafters/{found.drafter}#events" if found.drafter else "/",
        asks_reason=False,
    )
    return await answer_question(request, visitor, question)


@router.post("/events/{event}/acknowledge")
async def acknowledge(request: Request, event: Number) -> Response:
    """Look after an event."""
    visitor = await visitor_of(request, "operate")
    await checked_form(request, visitor)
    await acknowledge_event(request, event, visitor.principal)
    found = await read(request, lambda connection: get_event(connection, event))
    return done(f"/drafters/{found.drafter}" if found.drafter else "/", "acknowledged")


def _published(
    connection: Connection,
    state: DrafterState,
    chosen: Revision,
    title: str,
    said: list[str],
    button: str,
) -> Question:
    """The question about serving other numbers, which it shows beside the present ones."""
    name = state.drafter.name
    champion = get_revision(connection, name, state.aliases.champion)
    pairs = zip(champion.calibration.temperatures, chosen.calibration.temperatures, strict=True)
    return Question(
        title=title,
        said=said,
        button=button,
        back=f"/drafters/{name}",
        etag=drafter_body(state)[1],
        compared=[(index + 1, before, after) for index, (before, after) in enumerate(pairs)],
    )


async def answer_question(request: Request, visitor: Visitor, question: Question) -> Response:
    """The page that asks."""
    return await answer_page(request, "confirm.html", visitor, question=question)


def _matching(request: Request, form: dict[str, str]) -> Request:
    """The request with the form's ETag as its If-Match."""
    headers: list[Any] = [*request.scope["headers"]]
    if form.get("etag"):
        headers.append((b"if-match", form["etag"].encode("latin-1", "replace")))
    return Request({**request.scope, "headers": headers}, request.receive)


def _reason(form: dict[str, str]) -> Reason:
    given = "".join(c for c in form.get("reason", "") if c.isprintable()).strip()
    return Reason(reason=given[:_LONGEST_REASON] or None)


def done(path: str, word: str) -> Response:
    """Back to a page, which says what was done; loading it again does nothing twice."""
    return RedirectResponse(f"{path}?done={word}", 303, headers={"Cache-Control": "no-store"})
