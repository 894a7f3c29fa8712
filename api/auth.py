"""Bearer tokens with scopes; without tokens only this machine is answered.

Tokens are compared with the database's rows, hashed and in constant time, and remembered by their
hash for less than two seconds, so a revoked one stops working within two. While the database is
away the last answers hold: engines go on polling, and nobody new gets in.

``operate`` includes reading: who may roll back must be able to look.
"""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated

from fastapi import Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from api.problems import ProblemError
from calib.errors import ConfigurationError
from monitoring.store import tokens
from monitoring.store.errors import StoreError

if TYPE_CHECKING:
    from api.settings import Settings
    from monitoring.store.clock import Clock
    from monitoring.store.database import Database

__all__ = [
    "ANONYMOUS",
    "SCOPES",
    "Authenticator",
    "Principal",
    "authenticated",
    "bearer_scheme",
    "check_browser",
    "check_scopes",
    "check_start",
    "require",
]

SCOPES = ("read:temperatures", "read:reports", "write:telemetry", "operate")

# A revocation takes effect within two seconds: what is older is asked anew before it is used, and
# what is older than the first of these in the background, so that polls rarely wait for it.
_FRESH_SECONDS = 1.0
_USABLE_SECONDS = 1.9
_MOST_REMEMBERED = 10_000
_LONGEST_SECRET = 512

bearer_scheme = HTTPBearer(
    auto_error=False,
    scheme_name="token",
    description="A token of `dspark-calib token create`, with the scope that the call names. "
    "Without tokens the service listens on loopback only and needs none.",
)


@dataclass(frozen=True, slots=True)
class Principal:
    """Who asks.

    Attributes:
        name: the token's name, or ``anonymous``; the actor of audit rows.
        token_id: id of the token, the scope of idempotency keys; ``anonymous`` without one.
        scopes: what it may do, implied scopes included.
    """

    name: str
    token_id: str
    scopes: frozenset[str]


ANONYMOUS = Principal("anonymous", "anonymous", frozenset(SCOPES))


@dataclass(frozen=True, slots=True)
class _Answer:
    """What the database said about one secret (or about none), and when."""

    principal: Principal | None
    expires_at: float | None
    read_at: float


class Authenticator:
    """Finds out who asks, from memory where it can.

    Args:
        database: where tokens are.
        anonymous: whether requests without a token are answered while no token exists.
        monotonic: seconds for the age of what is remembered.
    """

    def __init__(
        self, database: Database, *, anonymous: bool, monotonic: Clock = time.monotonic
    ) -> None:
        self._database = database
        self._anonymous = anonymous
        self._monotonic = monotonic
        self._answers: dict[bytes, _Answer] = {}
        self._asking: dict[bytes, asyncio.Task[_Answer]] = {}

    def remembered(self, authorization: bytes | None) -> Principal | None:
        """Who sends this ``Authorization`` header, if that was read within the last two seconds.

        Call it on the event loop, where it may begin to read again.
        """
        digest = _digest(authorization)
        answer = self._answers.get(digest)
        age = float("inf") if answer is None else self._monotonic() - answer.read_at
        if answer is None or age > _USABLE_SECONDS:
            return None
        if age > _FRESH_SECONDS and digest not in self._asking:
            self._ask(digest, _secret(authorization))
        return self._valid(answer)

    async def principal(self, authorization: bytes | None) -> Principal:
        """Who sends this ``Authorization`` header.

        Raises:
            ProblemError: 401 for no, a wrong, a revoked or an outdated token.
            StoreError: the database cannot be asked, and this token was not seen before.
        """
        found = self.remembered(authorization)
        if found is None:
            secret = _secret(authorization)
            digest = _digest(authorization)
            try:
                answer = await self._asked(digest, secret)
            except StoreError:
                last = self._answers.get(digest)
                if last is None:
                    raise
                answer = last
            found = self._valid(answer)
        if found is None:
            raise _unauthenticated(authorization)
        return found

    async def _asked(self, digest: bytes, secret: str | None) -> _Answer:
        """Ask the database, once for all requests that wait for the same answer."""
        task = self._asking.get(digest) or self._ask(digest, secret)
        return await asyncio.shield(task)

    def _ask(self, digest: bytes, secret: str | None) -> asyncio.Task[_Answer]:
        task = asyncio.ensure_future(asyncio.to_thread(self._read, secret))
        self._asking[digest] = task
        task.add_done_callback(lambda done: self._asked_done(digest, done))
        return task

    def _asked_done(self, digest: bytes, task: asyncio.Task[_Answer]) -> None:
        self._asking.pop(digest, None)
        if not task.cancelled() and task.exception() is None:
            self._answers.pop(digest, None)  # to the end: the oldest go first
            self._answers[digest] = task.result()
            while len(self._answers) > _MOST_REMEMBERED:
                del self._answers[next(iter(self._answers))]

    def _read(self, secret: str | None) -> _Answer:
        read_at = self._monotonic()
        with self._database.read() as connection:
            if secret is None:
                open_door = self._anonymous and not tokens.any_tokens(connection)
                return _Answer(ANONYMOUS if open_door else None, None, read_at)
            token = tokens.authenticate(connection, secret)
        if token is None:
            return _Answer(None, None, read_at)
        principal = Principal(token.name, str(token.id), _with_implied(token.scopes))
        return _Answer(principal, token.expires_at, read_at)

    def _valid(self, answer: _Answer) -> Principal | None:
        if answer.expires_at is not None and self._database.clock() >= answer.expires_at:
            return None
        return answer.principal


def require(*scopes: str) -> Callable[..., Awaitable[Principal]]:
    """A dependency that gives the :class:`Principal` when it has one of ``scopes``.

    Raises:
        ProblemError: 401 without a valid token, 403 naming the missing scope.
    """

    async def principal(
        request: Request,
        _scheme: Annotated[HTTPAuthorizationCredentials | None, Security(bearer_scheme)],
    ) -> Principal:
        found: Principal = await authenticated(request)
        check_scopes(found, scopes)
        return found

    return principal


async def authenticated(request: Request) -> Principal:
    """Who asks, whatever the scopes; also noted for the log.

    Raises:
        ProblemError: 401 without a valid token, 403 for a foreign host in anonymous mode.
    """
    authenticator: Authenticator = request.app.state.auth
    header = authorization_of(request.scope["headers"])
    found = await authenticator.principal(header)
    if found is ANONYMOUS:
        check_browser(request.scope["headers"], request.method)
    request.scope.setdefault("state", {})["actor"] = found.name
    return found


def authorization_of(headers: list[tuple[bytes, bytes]]) -> bytes | None:
    """The ``Authorization`` header of an ASGI scope."""
    for name, value in headers:
        if name == b"authorization":
            return value
    return None


def check_scopes(principal: Principal, scopes: tuple[str, ...]) -> None:
    """Return when ``principal`` has one of ``scopes``.

    Raises:
        ProblemError: 403 naming the missing scope.
    """
    if principal.scopes.isdisjoint(scopes):
        wanted = " or ".join(scopes)
        challenge = f'Bearer error="insufficient_scope", scope="{" ".join(scopes)}"'
        raise ProblemError(
            "missing-scope",
            f"The token {principal.name!r} lacks the scope {wanted}.",
            headers={"WWW-Authenticate": challenge},
            required_scope=list(scopes),
        )


def check_browser(headers: list[tuple[bytes, bytes]], method: str) -> None:
    """Return unless a web page tries to reach an open service on its visitor's machine.

    A page can point a name of its own at a loopback address, and can send simple requests without
    asking; both show in headers that it cannot forge.

    Raises:
        ProblemError: 403 for a foreign name, and for a change that another site asks for.
    """
    for name, value in headers:
        if name == b"host" and not _is_local_name(value.decode("latin-1")):
            raise ProblemError("host-not-allowed", "Without tokens, use a loopback address.")
        foreign = name == b"sec-fetch-site" and value not in (b"same-origin", b"none")
        if foreign and method not in ("GET", "HEAD"):
            raise ProblemError("host-not-allowed", "Another site may not change anything here.")


def check_start(settings: Settings, *, any_tokens: bool) -> None:
    """Return when the service may start like this.

    Raises:
        ConfigurationError: there are no tokens, and others than this machine could reach it or
            anonymous access is off.
    """
    if any_tokens:
        return
    remedy = "create a token first (dspark-calib token create), or listen on 127.0.0.1"
    if not settings.is_loopback:
        raise ConfigurationError("host", settings.host, f"is no loopback address: {remedy}")
    if not settings.allow_anonymous:
        raise ConfigurationError(
            "allow_anonymous", False, "there is no token: create one (dspark-calib token create)"
        )


def _digest(authorization: bytes | None) -> bytes:
    return hashlib.sha256(authorization or b"").digest()


def _secret(authorization: bytes | None) -> str | None:
    """The secret of a bearer header; None without a header.

    Raises:
        ProblemError: 401 for another scheme.
    """
    if authorization is None:
        return None
    scheme, _, secret = authorization.partition(b" ")
    text = secret.strip().decode("latin-1")
    if scheme.lower() != b"bearer" or not text.isascii() or not 0 < len(text) <= _LONGEST_SECRET:
        raise _unauthenticated(authorization)
    return text


def _unauthenticated(authorization: bytes | None) -> ProblemError:
    given = authorization is not None
    detail = "The token is not valid." if given else "The call needs a token."
    challenge = 'Bearer realm="dspark-calib"' + (', error="invalid_token"' if given else "")
    return ProblemError("unauthenticated", detail, headers={"WWW-Authenticate": challenge})


def _with_implied(scopes: Iterable[str]) -> frozenset[str]:
    held = frozenset(scopes)
    return held | {"read:temperatures", "read:reports"} if "operate" in held else held


@lru_cache(maxsize=256)
def _is_local_name(host: str) -> bool:
    """A loopback address, or a name without a dot, which nobody can register."""
    name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
    name = name.strip("[]").rstrip(".")
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return "." not in name or name.endswith(".localhost")
