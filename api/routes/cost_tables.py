"""The step curve of a drafter's engines: what a scheduler would trade accepted tokens against."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body, Depends
from sqlalchemy import Connection
from starlette.requests import Request
from starlette.responses import Response

from api.auth import Principal, require
from api.conditional import require_match
from api.database_calls import change, read
from api.documentation import describe, outcomes
from api.json_route import JsonRoute
from api.parameters import DrafterName, IfMatch
from api.problems import ProblemError
from api.schemas import CostTableView
from api.views import drafter_body, json_answer
from calib.cost_table import AdditiveCostTable, CostTable, FlatCostTable
from calib.cost_table_files import dump_cost_table, parse_cost_table
from calib.cost_table_staircase import StaircaseCostTable
from calib.errors import FormatError
from monitoring.published_document import iso_time
from monitoring.store import cost_tables
from monitoring.store.cost_tables import StoredCostTable
from monitoring.store.drafter_rows import lock, state_of

__all__ = ["router"]

router = APIRouter(prefix="/v1/drafters/{drafter}", tags=["drafters"], route_class=JsonRoute)

Kind = Literal["flat", "additive", "staircase", "measured"]

_EXAMPLES: dict[str, Any] = {
    "flat": {
        "summary": "SGLang's flat table",
        "value": {
            "sample_batch_tokens": [1, 64, 256],
            "sample_steps_per_sec": [90.0, 70.0, 35.0],
            "max_batch_tokens": 512,
        },
    },
    "staircase": {
        "summary": "vLLM's curves, in milliseconds",
        "value": {
            "draft_curve": [[1, 1.1], [64, 1.9]],
            "verify_curve": [[8, 10.2], [64, 11.5], [256, 19.0]],
            "cudagraph_limit": 256,
        },
    },
    "measured": {
        "summary": "Step times at measured sizes",
        "value": {"batch_tokens": [1, 64, 256], "step_seconds": [0.011, 0.014, 0.028]},
    },
}


@router.put(
    "/cost-table",
    name="put_cost_table",
    responses=outcomes(
        {200: describe(CostTableView, "Stored in place of the one before.")},
        "drafter-not-found",
        "precondition-failed",
        "store-full",
        body=True,
    ),
)
async def put_cost_table(
    request: Request,
    drafter: DrafterName,
    table: Annotated[
        dict[str, Any],
        Body(
            description="flat, additive (both as SGLang writes them), staircase (vLLM) or measured",
            openapi_examples=_EXAMPLES,
        ),
    ],
    principal: Annotated[Principal, Depends(require("operate"))],
    if_match: IfMatch = None,
) -> Response:
    """Store a step curve. If-Match is optional here; when it is sent, it must match."""
    parsed = _parsed(await request.body())
    document = json.loads(dump_cost_table(parsed))

    def work(connection: Connection) -> StoredCostTable:
        state = lock(connection, drafter)
        if if_match is not None:
            require_match(if_match, drafter_body(state)[1])
        return cost_tables.put_cost_table(
            connection,
            drafter,
            document,
            actor=principal.name,
            expected_version=state.drafter.version,
            request_id=request.state.request_id,
        )

    return json_answer(_view(await change(request, work), _kind(parsed)))


@router.get(
    "/cost-table",
    name="get_cost_table",
    responses=outcomes(
        {200: describe(CostTableView, "The step curve.")},
        "drafter-not-found",
        "cost-table-not-found",
    ),
)
async def get_cost_table(
    request: Request,
    drafter: DrafterName,
    _: Annotated[Principal, Depends(require("read:temperatures", "read:reports"))],
) -> Response:
    """The step curve as it was sent."""

    def work(connection: Connection) -> StoredCostTable | None:
        state_of(connection, drafter)
        return cost_tables.get_cost_table(connection, drafter)

    found = await read(request, work)
    if found is None:
        remedy = f"Send one with PUT /v1/drafters/{drafter}/cost-table."
        raise ProblemError("cost-table-not-found", f"No cost table was sent yet. {remedy}")
    parsed = parse_cost_table(json.dumps(dict(found.document)))
    return json_answer(_view(found, _kind(parsed)))


def _parsed(body: bytes) -> CostTable:
    """The table in a body.

    Raises:
        ProblemError: 422 with what is wrong.
    """
    try:
        return parse_cost_table(body.decode("utf-8"), source="cost table")
    except (FormatError, UnicodeDecodeError) as error:
        raise ProblemError("invalid-request", str(error)) from error


def _kind(table: CostTable) -> Kind:
    if isinstance(table, FlatCostTable):
        return "flat"
    if isinstance(table, StaircaseCostTable):
        return "staircase"
    return "additive" if isinstance(table, AdditiveCostTable) else "measured"


def _view(stored: StoredCostTable, kind: Kind) -> CostTableView:
    return CostTableView(
        drafter=stored.drafter,
        kind=kind,
        table=dict(stored.document),
        updated_at=iso_time(stored.updated_at),
        updated_by=stored.updated_by,
    )
