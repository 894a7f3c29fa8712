"""Telemetry in: acknowledged only once it is durable."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Final

import structlog
from fastapi import APIRouter, Depends, Header, Query
from starlette.requests import Request
from starlette.responses import Response

from api.auth import Principal, require
from api.documentation import outcomes
from api.idempotency import HEADER, LONGEST_KEY, idempotency_key
from api.parameters import DrafterName
from api.problems import FieldError, ProblemError
from api.request_bodies import BodyLimits, body_form, received
from api.telemetry_documentation import ACCEPTED, REQUEST_BODY
from api.telemetry_requests import (
    ARROW,
    JSON,
    BatchLimits,
    RefusedBatchError,
    SentBatch,
    prepare_batch,
    stored_answer,
)
from calib.cell_parsing import refused_texts
from calib.record_schema import COLUMN_BY_NAME, MAX_TEXT_LENGTH
from monitoring.store.errors import ConflictError, NotFoundError, StoreError
from monitoring.store.telemetry import StoredAnswer

if TYPE_CHECKING:
    from api.ingest_queue import IngestQueue
    from api.pending_bytes import Reservation
    from monitoring.store.database import Database

__all__ = ["router"]

router = APIRouter(prefix="/v1/drafters", tags=["engines"])

_REPEATED: Final = {"Idempotency-Replayed": "true"}
_UNFOLDS: Final = 5  # telemetry in JSON becomes about five times as large when decompressed


@router.post(
    "/{drafter}/telemetry",
    name="send_telemetry",
    status_code=202,
    responses=outcomes(
        {202: ACCEPTED},
        "drafter-not-found",
        "calibration-key-mismatch",
        "no-valid-rows",
        "idempotency-key-reused",
        "request-in-progress",
        "too-many-requests",
        "shutting-down",
        "store-full",
        body=True,
    ),
    openapi_extra={"requestBody": REQUEST_BODY},
)
async def send_telemetry(
    request: Request,
    drafter: DrafterName,
    principal: Annotated[Principal, Depends(require("write:telemetry"))],
    engine: Annotated[
        str | None,
        Query(
            min_length=1,
            max_length=MAX_TEXT_LENGTH,
            description="engine of the rows that name none",
        ),
    ] = None,
    key: Annotated[
        str | None,
        Query(
            pattern="^[0-9a-f]{64}$",
            description="digest of the calibration key that the rows were made under. Another one "
            "than the drafter's is a 409 `calibration-key-mismatch` and nothing is stored: rows of "
            "another model never mix in",
        ),
    ] = None,
    idempotency: Annotated[
        str | None,
        Header(
            alias=HEADER,
            description=f"makes the request safe to repeat for 24 hours: 1 to {LONGEST_KEY} "
            "visible ASCII characters, such as a UUID; a new one for every batch",
        ),
    ] = None,
) -> Response:
    """Store a batch of rows; good rows are kept, bad ones named.

    The answer comes once the rows are durable. Rows with the flags of warm-up, replay, forced
    acceptance or a target-only transform are accepted, stored and counted as `excluded`: no fit
    and no monitor uses them. `warnings` are suspicions about the batch as a whole.
    """
    del idempotency, key  # documented here; read below, where a second one shows
    sent = await _sent(request, drafter, principal, engine)
    queue: IngestQueue = request.app.state.ingest
    settings = request.app.state.settings
    with ExitStack() as duties:
        if sent.key is not None:
            duties.callback(queue.running.claim(sent.drafter.name, sent.token, sent.key))
        held = duties.enter_context(queue.pending.reserve())
        limits = BodyLimits(settings.max_body_bytes, settings.max_decompressed_bytes)
        body = await received(request, limits, held.grow)
        most = BatchLimits(settings.max_batch_rows, limits.decompressed)
        stored = _stored(queue, request.app.state.database, sent, body, most, held)
        del body
        # From here on it is seen through, whether or not the sender waits for it.
        return await queue.see_through(stored, duties.pop_all())


async def _sent(
    request: Request, drafter: str, principal: Principal, engine: str | None
) -> SentBatch:
    """What the request says before its body."""
    form = body_form(request.headers, (JSON, ARROW))
    key = idempotency_key(request.headers)
    if engine is not None and refused_texts([engine], ()):
        fault = FieldError("query:engine", COLUMN_BY_NAME["engine"].remedy(1))
        raise ProblemError("invalid-request", f"engine: {fault.detail}", errors=[fault])
    published = await request.app.state.feed.find(drafter)
    if published is None:
        raise NotFoundError("drafter", drafter)
    for given in request.query_params.getlist("key"):
        _check_key(published.drafter.key.digest, given)
    return SentBatch(published.drafter, form, engine, principal.token_id, key)


def _check_key(expected: str, given: str) -> None:
    """Refuse rows that were made under another key, before their body is read.

    An engine that runs a shorter block is refused too, though it may poll: its rows say nothing
    about the positions that it leaves out.
    """
    if given != expected:
        raise ProblemError(
            "calibration-key-mismatch",
            "The rows were made under another calibration key than the drafter's; none is stored.",
            expected_key=expected,
            given_key=given,
        )


async def _stored(
    queue: IngestQueue,
    database: Database,
    sent: SentBatch,
    body: bytes,
    most: BatchLimits,
    held: Reservation,
) -> Response:
    """The answer, once the rows are durable.

    Raises:
        ProblemError: no row can be stored, or there is no room.
        StoreError: the database could not store them.
    """
    try:
        size = len(body) if sent.form.coding == "identity" else _UNFOLDS * len(body)
        prepared = await queue.prepare(prepare_batch, database, sent, body, most, held, size=size)
    except RefusedBatchError as refused:
        await _count(queue, sent, refused.rejected)
        raise refused.problem from refused
    del body  # no longer reserved from here on
    if isinstance(prepared, StoredAnswer):
        return _accepted(prepared.answer, repeated=True)
    try:
        await queue.submit(
            prepared.batch,
            rejected=prepared.rejected,
            duplicates=prepared.duplicates,
            reservation=held,
        )
    except ConflictError:
        # Another replica was faster, or a commit whose outcome was unknown had gone through.
        stored = await queue.prepare(stored_answer, database, sent, prepared.digest)
        if stored is None:
            raise
        return _accepted(stored.answer, repeated=True)
    return _accepted(prepared.batch.answer, repeated=False)


async def _count(queue: IngestQueue, sent: SentBatch, rejected: int) -> None:
    if not rejected:
        return
    try:
        await queue.count_rejects(sent.drafter.name, rejected)
    except (ProblemError, StoreError) as error:
        # The rows are wrong whether or not that can be written down.
        log = structlog.get_logger("api.ingest")
        log.warning("rejected rows not counted", rows=rejected, reason=str(error))


def _accepted(answer: bytes, *, repeated: bool) -> Response:
    headers = _REPEATED if repeated else None
    return Response(answer, status_code=202, headers=headers, media_type="application/json")
