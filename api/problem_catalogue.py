"""Every problem type that the service answers with, in one table (RFC 9457).

``type`` of a problem is ``/problems/{slug}``, which is also the address of its page.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CATALOGUE", "ProblemType", "problem_type", "slug_of_status"]


@dataclass(frozen=True, slots=True)
class ProblemType:
    """One kind of problem.

    Attributes:
        slug: last part of its address; stable, programs may switch on it.
        title: what it is, the same for every occurrence.
        status: HTTP status it comes with.
        meaning: when it happens and what to do, for the page.
    """

    slug: str
    title: str
    status: int
    meaning: str

    @property
    def uri(self) -> str:
        """``type`` of the problem: a reference relative to the service."""
        return f"/problems/{self.slug}"


_TYPES = (
    ProblemType(
        "unreadable-request",
        "The request cannot be read",
        400,
        "The body is no JSON, is cut short, or does not decompress. Send one complete document.",
    ),
    ProblemType(
        "unauthenticated",
        "A token is needed",
        401,
        "Send `Authorization: Bearer <token>` with a token that exists, is not revoked and has "
        "not run out. `dspark-calib token create` makes one.",
    ),
    ProblemType(
        "missing-scope",
        "The token may not do this",
        403,
        "The token is valid but lacks the scope named in `required_scope`. Create one with it.",
    ),
    ProblemType(
        "host-not-allowed",
        "The request came through a foreign name",
        403,
        "Without tokens the service answers only under a loopback name and to pages of its own, so "
        "that a web page cannot reach it through a browser. Create tokens to use it otherwise.",
    ),
    ProblemType("not-found", "There is nothing here", 404, "No call of the service has this path."),
    ProblemType(
        "drafter-not-found",
        "No such drafter",
        404,
        "Register the drafter with PUT /v1/drafters/{drafter}; clients run on identity meanwhile.",
    ),
    ProblemType(
        "revision-not-found",
        "No such revision",
        404,
        "List what exists with GET /v1/drafters/{drafter}/revisions.",
    ),
    ProblemType(
        "job-not-found",
        "No such job",
        404,
        "Finished jobs are removed after a while; the revisions they made stay.",
    ),
    ProblemType("event-not-found", "No such event", 404, "List what exists with GET /v1/events."),
    ProblemType(
        "silence-not-found", "No such silence", 404, "List what exists with GET /v1/silences."
    ),
    ProblemType(
        "report-not-found",
        "No report yet",
        404,
        "Reports are made by the worker. Ask for one with GET …/report?refresh=true and poll the "
        "job named in Location.",
    ),
    ProblemType(
        "cost-table-not-found",
        "No cost table yet",
        404,
        "Send the engine's step curve with PUT /v1/drafters/{drafter}/cost-table.",
    ),
    ProblemType(
        "method-not-allowed",
        "This path does not take this method",
        405,
        "The methods it takes are in the Allow header.",
    ),
    ProblemType(
        "not-acceptable",
        "No such representation",
        406,
        "The Accept header allows none of the media types named in `available`.",
    ),
    ProblemType(
        "conflict",
        "The state does not allow this",
        409,
        "What is stored stands in the way. Read it again, then decide anew.",
    ),
    ProblemType(
        "drafter-key-conflict",
        "The drafter has another calibration key",
        409,
        "A drafter keeps its calibration key for life, because numbers for one model are wrong for "
        "another. Register the changed model under a new name; it starts at identity.",
    ),
    ProblemType(
        "calibration-key-mismatch",
        "The engine runs something else than was calibrated",
        409,
        "The key that the engine sent is not the drafter's, so the numbers are not served and its "
        "telemetry is not stored: use identity (status `uncalibrated`), and poll and feed the "
        "drafter that was registered with this key.",
    ),
    ProblemType(
        "gamma-too-long",
        "The engine runs more positions than were calibrated",
        409,
        "A longer block has positions without numbers. Use identity, and register a drafter of "
        "this gamma.",
    ),
    ProblemType(
        "request-in-progress",
        "The same request is still running",
        409,
        "Another request with this Idempotency-Key has not ended. Repeat after Retry-After.",
    ),
    ProblemType(
        "precondition-failed",
        "The resource has changed",
        412,
        "If-Match names an older state. Read the drafter again, decide anew, send its new ETag.",
    ),
    ProblemType(
        "content-too-large",
        "The body is too large",
        413,
        "The limit is in `limit_bytes` and holds for the decompressed body too. Send smaller "
        "batches.",
    ),
    ProblemType(
        "uri-too-long", "The address is too long", 414, "Leave out parameters that nobody reads."
    ),
    ProblemType(
        "unsupported-media-type",
        "The body is in a form that is not read here",
        415,
        "The forms that are read are in `supported`.",
    ),
    ProblemType(
        "invalid-request",
        "The request is not valid",
        422,
        "`errors` names each fault with a JSON pointer, or the parameter, and what to do.",
    ),
    ProblemType(
        "no-valid-rows",
        "No row could be taken",
        422,
        "Every row of the batch was refused; nothing was stored. `rejected` names row, field and "
        "reason.",
    ),
    ProblemType(
        "idempotency-key-reused",
        "The Idempotency-Key was used for another body",
        422,
        "Use a new key for every batch, and repeat a batch with its own.",
    ),
    ProblemType(
        "precondition-required",
        "If-Match is needed",
        428,
        "Changes are compare-and-set: read GET /v1/drafters/{drafter} and send its ETag in "
        "If-Match.",
    ),
    ProblemType(
        "too-many-requests",
        "The service is behind",
        429,
        "More waits to be stored than memory may hold. Repeat after Retry-After.",
    ),
    ProblemType(
        "headers-too-large", "The headers are too large", 431, "Send fewer or shorter headers."
    ),
    ProblemType(
        "internal-error",
        "A fault of the service",
        500,
        "This is a bug. The log holds the details under the request id.",
    ),
    ProblemType(
        "store-busy",
        "The database is busy",
        503,
        "Nothing was changed. Repeat after Retry-After.",
    ),
    ProblemType(
        "store-unavailable",
        "The database cannot be reached",
        503,
        "Nothing was acknowledged. Polls go on with the last publication. Repeat after "
        "Retry-After.",
    ),
    ProblemType(
        "not-ready",
        "The service is not ready",
        503,
        "`checks` says what is missing; repeat after Retry-After.",
    ),
    ProblemType(
        "overloaded",
        "Too many requests wait",
        503,
        "More long-polls are held than the service is set up for. Poll again after Retry-After.",
    ),
    ProblemType(
        "shutting-down",
        "The service is shutting down",
        503,
        "Repeat after Retry-After; another replica or the restarted service answers.",
    ),
    ProblemType(
        "store-full",
        "The database is full",
        507,
        "Nothing was changed, and reading still works. Free space or lower the retention.",
    ),
)

CATALOGUE = {kind.slug: kind for kind in _TYPES}
"""Problem types by slug."""

_BY_STATUS = {
    400: "unreadable-request",
    401: "unauthenticated",
    403: "missing-scope",
    404: "not-found",
    405: "method-not-allowed",
    406: "not-acceptable",
    409: "conflict",
    412: "precondition-failed",
    413: "content-too-large",
    414: "uri-too-long",
    415: "unsupported-media-type",
    422: "invalid-request",
    428: "precondition-required",
    429: "too-many-requests",
    431: "headers-too-large",
    503: "store-unavailable",
    507: "store-full",
}


def problem_type(slug: str) -> ProblemType:
    """The problem type with this slug.

    Raises:
        KeyError: there is none; a fault of the caller's code.
    """
    return CATALOGUE[slug]


def slug_of_status(status: int) -> str:
    """The most general problem type of an HTTP status; ``internal-error`` for unknown ones."""
    return _BY_STATUS.get(status, "unreadable-request" if status < 500 else "internal-error")
