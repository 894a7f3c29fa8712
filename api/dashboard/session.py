"""Who looks at the dashboard: a bearer token in a cookie that only these pages read.

The API takes no cookie, so no other site can make a browser call it. The pages themselves are
guarded three times: the cookie is ``SameSite=Strict``, a request that says it comes from another
site is refused, and each form carries a value that only pages of the same visitor hold. Scopes are
checked by the code that checks them for the API.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl

from starlette.requests import ClientDisconnect, Request

from api.auth import ANONYMOUS, Principal, authenticated, authorization_of, check_scopes
from api.problems import ProblemError

if TYPE_CHECKING:
    from starlette.responses import Response

__all__ = [
    "COOKIE",
    "SESSION_SECONDS",
    "Visitor",
    "as_token",
    "checked_form",
    "forget",
    "read_form",
    "remember",
    "visitor_of",
]

COOKIE: Final = "dspark_calib_session"
SESSION_SECONDS: Final = 12 * 3600

FORM_TOKEN: Final = "form_token"
_LONGEST_FORM: Final = 16 * 1024
# Of this process: without tokens there is nothing else that another site could not know.
_PROCESS_SECRET: Final = secrets.token_bytes(32)


@dataclass(frozen=True, slots=True)
class Visitor:
    """Who looks.

    Attributes:
        principal: as the API would see them.
        form_token: what forms of their pages carry.
        has_session: whether a cookie says who they are.
    """

    principal: Principal
    form_token: str
    has_session: bool

    @property
    def may_operate(self) -> bool:
        """Whether changes are open to them."""
        return "operate" in self.principal.scopes

    @property
    def is_anonymous(self) -> bool:
        """Whether the service asks for no token."""
        return self.principal is ANONYMOUS


async def visitor_of(request: Request, *scopes: str) -> Visitor:
    """Who asks, with one of these scopes.

    Args:
        request: with a session cookie or an ``Authorization`` header.
        *scopes: ``read:reports`` where none is named.

    Raises:
        ProblemError: 401 without a valid token, 403 without a scope or from a foreign page.
    """
    header = authorization_of(request.scope["headers"])
    secret = None if header is not None else _cookie(request)
    asker = request if secret is None else as_token(request, secret)
    principal = await authenticated(asker)
    check_scopes(principal, scopes or ("read:reports",))
    return Visitor(principal, _form_token(header, secret), secret is not None)


def as_token(request: Request, secret: str) -> Request:
    """The request as if it carried this bearer token."""
    kept = [item for item in request.scope["headers"] if item[0] != b"authorization"]
    header = (b"authorization", b"Bearer " + secret.encode("latin-1", "replace"))
    return Request({**request.scope, "headers": [*kept, header]}, request.receive)


def remember(response: Response, request: Request, secret: str) -> None:
    """Start a session with this token."""
    response.set_cookie(
        COOKIE,
        secret,
        max_age=SESSION_SECONDS,
        path="/",
        secure=_is_encrypted(request),
        httponly=True,
        samesite="strict",
    )


def forget(response: Response, request: Request) -> None:
    """End the session in this browser."""
    response.delete_cookie(
        COOKIE,
        path="/",
        secure=_is_encrypted(request),
        httponly=True,
        samesite="strict",
    )


async def read_form(request: Request) -> dict[str, str]:
    """The fields of a form; of several with one name the last.

    Raises:
        ProblemError: another site sent it, or it is too long, cut short, or no form.
    """
    site = request.headers.get("sec-fetch-site", "same-origin")
    if site not in ("same-origin", "none"):
        raise ProblemError("host-not-allowed", "Another site may not send this form.")
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != "application/x-www-form-urlencoded":
        supported = ["application/x-www-form-urlencoded"]
        raise ProblemError("unsupported-media-type", "Send the form.", supported=supported)
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > _LONGEST_FORM:
                headers = {"Connection": "close"}
                detail = f"At most {_LONGEST_FORM} bytes of a form are read."
                raise ProblemError(
                    "content-too-large", detail, headers=headers, limit_bytes=_LONGEST_FORM
                )
    except ClientDisconnect as error:
        raise ProblemError("unreadable-request", "The form was cut short.") from error
    text = body.decode("utf-8", "replace")
    try:
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=50))
    except ValueError as error:
        raise ProblemError("unreadable-request", "The form has too many fields.") from error


async def checked_form(request: Request, visitor: Visitor) -> dict[str, str]:
    """The fields of a form that a page of this visitor sent.

    Raises:
        ProblemError: as :func:`read_form`; 403 when the form's token is not the visitor's.
    """
    form = await read_form(request)
    if not hmac.compare_digest(form.get(FORM_TOKEN, "").encode(), visitor.form_token.encode()):
        raise ProblemError(
            "host-not-allowed",
            "The form is not from a page of this session, or is older than the last restart. "
            "Load the page again and repeat.",
        )
    return form


def _is_encrypted(request: Request) -> bool:
    """Whether the browser speaks TLS, with us or with the proxy in front of us."""
    # Nobody gains by a false claim: it only keeps the cookie from being sent in the clear.
    schemes = (request.url.scheme, request.headers.get("x-forwarded-proto"))
    return "https" in schemes


def _cookie(request: Request) -> str | None:
    try:
        morsel = SimpleCookie(request.headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return None
    return morsel.value if morsel is not None and morsel.value else None


def _form_token(header: bytes | None, secret: str | None) -> str:
    held = header if header is not None else (secret or "").encode()
    key = hashlib.sha256(held).digest() if held else _PROCESS_SECRET
    return hmac.new(key, b"dspark-calib form", hashlib.sha256).hexdigest()
