"""Who runs what: on the champion, behind, silent."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

from fastapi import APIRouter, Depends
from sqlalchemy import Connection
from starlette.requests import Request
from starlette.responses import Response

from api.auth import Principal, require
from api.database_calls import read
from api.documentation import describe, outcomes
from api.json_route import JsonRoute
from api.parameters import DrafterName
from api.schemas import EngineList
from api.views import engine_view, json_answer
from monitoring.store.drafter_rows import state_of
from monitoring.store.engines import list_engines

__all__ = ["router"]

router = APIRouter(prefix="/v1/drafters/{drafter}", tags=["fleet"], route_class=JsonRoute)


@router.get(
    "/engines",
    name="list_engines",
    responses=outcomes(
        {200: describe(EngineList, "Engines by id, and how many are where.")}, "drafter-not-found"
    ),
)
async def engines(
    request: Request,
    drafter: DrafterName,
    _: Annotated[Principal, Depends(require("read:reports"))],
) -> Response:
    """Every engine that has polled, with what it said it runs on."""
    silent_after = request.app.state.settings.engine_silent_seconds
    now = request.app.state.database.clock()
    await request.app.state.sightings.flush()

    def work(connection: Connection) -> EngineList:
        state = state_of(connection, drafter)
        seen = [
            engine_view(row, publication=state.publication, now=now, silent_after=silent_after)
            for row in list_engines(connection, drafter)
        ]
        counts = Counter(engine.status for engine in seen)
        return EngineList(
            drafter=drafter,
            publication=state.publication,
            revision=state.aliases.champion,
            on_champion=counts["on_champion"],
            behind=counts["behind"],
            silent=counts["silent"],
            unreported=counts["unreported"],
            engines=seen,
        )

    return json_answer(await read(request, work))
