"""The poll: an ASGI application of its own, because engines send nothing else as often.

Everything it needs is in memory: the token, the publication, the bytes and headers of the answer.
The database is asked only for a token or a drafter that this process has not met.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.types import Receive, Scope, Send

from api.auth import ANONYMOUS, Authenticator, Principal, check_browser, check_scopes
from api.conditional import none_match
from api.negotiation import chosen_media
from api.poll_query import PollQuery, parse_poll_query
from api.problems import ProblemError
from api.publication_variants import MEDIA_TYPES, Published, Variant
from calib.statuses import ServingStatus
from monitoring.published_document import Media
from monitoring.store.errors import StoreError
from monitoring.store.fields import is_slug

if TYPE_CHECKING:
    from api.engine_sightings import EngineSightings
    from api.publication_feed import PublicationFeed
    from api.settings import Settings
    from monitoring.store.publications import Edition

__all__ = ["POLL_SCOPES", "Poll"]

POLL_SCOPES = ("read:temperatures",)

# Held polls end a little apart, so that a fleet woken at once does not come back at once.
_JITTER_SHARE = 1 / 16
_LONGEST_JITTER_SECONDS = 1.0

_AWAY = (b"warning", b'110 dspark-calib "the database is away; this is the last known publication"')


@dataclass(slots=True)
class _Headers:
    """The request headers that a poll looks at."""

    authorization: bytes | None = None
    accept: str | None = None
    if_none_match: str | None = None


class Poll:
    """``GET /v1/drafters/{drafter}/temperatures``.

    Args:
        feed: publications in memory.
        auth: who asks.
        sightings: where engines are noted.
        settings: longest wait, most held polls, what unmatched segments get, what is explored.
        count: told the HTTP status of every answer, refusals included.
    """

    def __init__(
        self,
        feed: PublicationFeed,
        auth: Authenticator,
        sightings: EngineSightings,
        settings: Settings,
        *,
        count: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._feed = feed
        self._auth = auth
        self._sightings = sightings
        self._longest_wait = settings.max_wait_seconds
        self._most_waiting = settings.max_waiting
        self._unmatched = settings.unmatched_segment
        self._exploration = {more: settings.exploration(raised=more) for more in (False, True)}
        self._count = count
        self._held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one poll.

        Raises:
            ProblemError: for everything but 200 and 304.
            StoreError: the database is away, and this token or drafter is not known.
        """
        try:
            await self._poll(scope, receive, send)
        except ProblemError as problem:
            self._count(problem.kind.status)
            raise
        except StoreError:
            self._count(503)
            raise

    async def _poll(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = _read(scope["headers"])
        await self._authenticated(scope, headers)
        query = parse_poll_query(scope["query_string"])
        media = _acceptable(headers.accept)
        drafter = scope["path_params"]["drafter"]
        published = await self._published(drafter)
        _check(published, query)
        self._sightings.note(drafter, query)
        variant = self._variant(published, query, media)
        changed = none_match(headers.if_none_match, variant.tag)
        if not changed and query.wait and not self._feed.releasing:
            if not await self._held_until(drafter, published.edition, query.wait, receive):
                return
            await self._authenticated(scope, headers)  # it may have been revoked meanwhile
            variant = self._variant(await self._published(drafter), query, media)
            changed = none_match(headers.if_none_match, variant.tag)
        scope["state"]["quiet"] = True  # a fleet that is woken would fill the log
        await self._answer(send, variant, changed=changed)

    async def _authenticated(self, scope: Scope, headers: _Headers) -> Principal:
        found = self._auth.remembered(headers.authorization)
        if found is None:
            found = await self._auth.principal(headers.authorization)
        if found is ANONYMOUS:
            check_browser(scope["headers"], "GET")
        check_scopes(found, POLL_SCOPES)
        scope["state"]["actor"] = found.name
        return found

    async def _published(self, drafter: str) -> Published:
        found = self._feed.current(drafter)
        if found is None and is_slug(drafter):
            found = await self._feed.find(drafter)
        if found is None:
            raise ProblemError("drafter-not-found", f"No drafter {drafter[:128]!r} is registered.")
        return found

    def _variant(self, published: Published, query: PollQuery, media: Media) -> Variant:
        return published.variant(
            gamma=query.gamma,
            segment=query.segment,
            media=media,
            unmatched=self._unmatched,
            exploration=self._exploration[published.drafter.explores_more],
        )

    async def _held_until(self, drafter: str, after: Edition, wait: int, receive: Receive) -> bool:
        """Hold the request; whether its client is still there afterwards."""
        if self._held >= self._most_waiting:
            raise ProblemError(
                "overloaded", "Too many polls are held.", headers={"Retry-After": str(wait)}
            )
        whole = min(wait, self._longest_wait)
        jitter = min(_LONGEST_JITTER_SECONDS, _JITTER_SHARE * whole)
        seconds = whole + random.uniform(0.0, jitter)
        gone = asyncio.ensure_future(_disconnected(receive))
        self._held += 1
        try:
            await self._feed.wait(drafter, after, seconds, until=gone)
            return not gone.done()
        finally:
            self._held -= 1
            gone.cancel()

    async def _answer(self, send: Send, variant: Variant, *, changed: bool) -> None:
        self._count(200 if changed else 304)
        known = variant.headers if changed else variant.unchanged_headers
        headers = list(known) if self._feed.reachable else [*known, _AWAY]
        await send(
            {"type": "http.response.start", "status": 200 if changed else 304, "headers": headers}
        )
        await send({"type": "http.response.body", "body": variant.body if changed else b""})


def _read(headers: list[tuple[bytes, bytes]]) -> _Headers:
    """One pass over the headers; repeated ones are joined, as RFC 9110 allows."""
    found = _Headers()
    for name, value in headers:
        if name == b"if-none-match":
            text = value.decode("latin-1")
            before = found.if_none_match
            found.if_none_match = text if before is None else f"{before}, {text}"
        elif name == b"accept":
            text = value.decode("latin-1")
            found.accept = text if found.accept is None else f"{found.accept}, {text}"
        elif name == b"authorization":
            found.authorization = value
    return found


def _acceptable(accept: str | None) -> Media:
    media = chosen_media(accept)
    if media is None:
        available = list(MEDIA_TYPES.values())
        detail = f"The answer comes as {' or '.join(available)}."
        raise ProblemError("not-acceptable", detail, available=available)
    return media


def _check(published: Published, query: PollQuery) -> None:
    """Refuse engines that the numbers are not for."""
    if query.gamma > published.gamma:
        raise ProblemError(
            "gamma-too-long",
            f"{published.gamma} positions are published, {query.gamma} were asked for.",
            published_gamma=published.gamma,
        )
    if query.key is not None and query.key not in published.accepted_digests(query.gamma):
        raise ProblemError(
            "calibration-key-mismatch",
            "The engine's calibration key is not the drafter's; run on identity.",
            serving_status=str(ServingStatus.UNCALIBRATED),
            expected_key=published.drafter.key.digest,
            given_key=query.key,
        )


async def _disconnected(receive: Receive) -> None:
    """Return when the client has gone; a body, which a poll has no use for, is skipped."""
    while (await receive())["type"] != "http.disconnect":
        pass
