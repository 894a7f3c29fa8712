"""Posting to a receiver: bounded in time as a whole, no redirects, nothing of the answer is kept.

A receiver that accepts the connection and then says one byte a second would outlive any time-out
of a single read; here the whole attempt has one.
"""

from __future__ import annotations

import asyncio
import email.utils
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from monitoring.alerts.receivers import Receiver

if TYPE_CHECKING:
    import httpx

__all__ = ["AlertRequest", "Answer", "open_client", "post"]

_LONGEST_RETRY_SECONDS: Final = 3600.0
_HEADERS: Final = {"content-type": "application/json", "user-agent": "dspark-calib"}


@dataclass(frozen=True, slots=True)
class AlertRequest:
    """What is posted.

    Attributes:
        url: where; may be a secret.
        headers: besides those of the transport; may hold a secret.
        body: JSON in UTF-8.
    """

    url: str = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    body: bytes


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of one attempt.

    Attributes:
        ok: whether the receiver took it: a status of 200 to 299.
        error: why not, in words without address and secret; None when it did.
        retry_seconds: how long it asks to be left alone, at most an hour; None where it does not.
    """

    ok: bool
    error: str | None = None
    retry_seconds: float | None = None


def open_client(receiver: Receiver) -> httpx.AsyncClient:
    """A client for this receiver; the caller closes it."""
    import httpx  # here, not above: only the worker posts

    # Its log lines hold whole addresses, and some addresses are secrets.
    for name in ("httpx", "httpcore"):
        logging.getLogger(name).setLevel(logging.WARNING)
    return httpx.AsyncClient(
        follow_redirects=False,
        timeout=receiver.timeout_seconds,
        trust_env=not receiver.is_local,
        verify=receiver.url.startswith("https:"),  # reading certificates takes a while
        headers=_HEADERS,
        limits=httpx.Limits(max_connections=8, max_keepalive_connections=2, keepalive_expiry=15),
    )


async def post(
    client: httpx.AsyncClient, request: AlertRequest, *, seconds: float, now: float
) -> Answer:
    """The answer of one attempt, within ``seconds`` whatever the receiver does.

    Args:
        client: of :func:`open_client`.
        request: what to post.
        seconds: longest time from connecting to the answer's status.
        now: seconds since the epoch, for dates in ``Retry-After``.
    """
    import httpx

    try:
        async with (
            asyncio.timeout(seconds),
            client.stream(
                "POST", request.url, content=request.body, headers=dict(request.headers)
            ) as response,
        ):
            status, retry = response.status_code, response.headers.get("retry-after")
    except TimeoutError:
        return Answer(False, f"no answer within {seconds:g} s")
    except httpx.HTTPError as error:
        return Answer(False, type(error).__name__)
    except (httpx.InvalidURL, ValueError) as error:
        return Answer(False, f"the request cannot be sent ({type(error).__name__})")
    if 200 <= status < 300:
        return Answer(True)
    redirected = ": redirects are not followed" if 300 <= status < 400 else ""
    return Answer(False, f"status {status}{redirected}", _retry_seconds(retry, now))


def _retry_seconds(header: str | None, now: float) -> float | None:
    """Seconds of a ``Retry-After`` header, whole seconds or a date; None where it says neither."""
    if header is None:
        return None
    if header.strip().isdecimal():
        return min(float(header.strip()), _LONGEST_RETRY_SECONDS)
    try:
        moment = email.utils.parsedate_to_datetime(header).timestamp()
    except ValueError:
        return None
    return min(max(0.0, moment - now), _LONGEST_RETRY_SECONDS)
