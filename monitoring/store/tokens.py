"""Bearer tokens: the secret is shown once, its SHA-256 is kept.

A secret holds 256 random bits, so a plain hash is enough: nothing shorter than the secret itself
can be guessed. It carries the token's id in front, by which the row is found; the comparison of the
hashes then takes the same time whatever differs.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, Row, insert, select, update

from calib.errors import InvalidInputError
from monitoring.store import tables
from monitoring.store.database import current_time
from monitoring.store.errors import ConflictError, NotFoundError
from monitoring.store.fields import checked_slug, is_slug

__all__ = [
    "SCOPES",
    "Token",
    "any_tokens",
    "authenticate",
    "create_token",
    "list_tokens",
    "revoke_token",
]

SCOPES: Final = frozenset({"read:temperatures", "read:reports", "write:telemetry", "operate"})
_PREFIX: Final = "dspark"
_SECRET: Final = re.compile(rf"{_PREFIX}_([0-9a-f]{{16}})_[\w-]{{43}}", re.ASCII)
_NOBODY: Final = "0" * 64  # compared with when there is no such token, so that time tells nothing


@dataclass(frozen=True)
class Token:
    """A token without its secret.

    Attributes:
        id: 16 hexadecimal digits.
        name: slug; who or what uses it.
        scopes: what it may do.
        created_at: seconds since the epoch.
        expires_at: from when on it is refused, or None.
        revoked_at: since when it is refused, or None.
    """

    id: str
    name: str
    scopes: frozenset[str]
    created_at: float
    expires_at: float | None
    revoked_at: float | None


def create_token(
    connection: Connection,
    name: str,
    scopes: Iterable[str],
    *,
    expires_at: float | None = None,
) -> tuple[Token, str]:
    """A new token and its secret, which nobody can read again.

    Raises:
        InvalidInputError: no slug as name, or an unknown or no scope.
        ConflictError: a token that is not revoked has this name.
    """
    given = frozenset(scopes)
    if not given or not given <= SCOPES:
        raise InvalidInputError("scopes", sorted(given), f"give some of {sorted(SCOPES)}")
    columns = tables.tokens.c
    taken = select(columns.id).where(
        columns.name == checked_slug("name", name), columns.revoked_at.is_(None)
    )
    if connection.execute(taken).first() is not None:
        raise ConflictError("token", name, "the name is taken; revoke that one or choose another")
    identifier = secrets.token_hex(8)
    secret = f"{_PREFIX}_{identifier}_{secrets.token_urlsafe(32)}"
    values = {
        "id": identifier,
        "name": name,
        "scopes": " ".join(sorted(given)),
        "secret_sha256": _hash(secret),
        "created_at": current_time(connection),
        "expires_at": expires_at,
    }
    connection.execute(insert(tables.tokens).values(values))
    row = connection.execute(select(tables.tokens).where(columns.id == identifier)).one()
    return _read(row), secret


def authenticate(connection: Connection, secret: str) -> Token | None:
    """The token of this secret; None when it is unknown, revoked or expired."""
    match = _SECRET.fullmatch(secret)
    identifier = match.group(1) if match else ""
    query = select(tables.tokens).where(tables.tokens.c.id == identifier)
    row = connection.execute(query).one_or_none()
    stored = _NOBODY if row is None else row.secret_sha256
    if not hmac.compare_digest(stored, _hash(secret)) or row is None:
        return None
    token = _read(row)
    now = current_time(connection)
    expired = token.expires_at is not None and token.expires_at <= now
    return None if expired or token.revoked_at is not None else token


def list_tokens(connection: Connection) -> list[Token]:
    """Every token ever made, oldest first."""
    columns = tables.tokens.c
    rows = connection.execute(select(tables.tokens).order_by(columns.created_at, columns.id))
    return [_read(row) for row in rows]


def revoke_token(connection: Connection, name_or_id: str) -> Token:
    """The token with this id, or the unrevoked one with this name, refused from now on.

    Raises:
        NotFoundError: no such token.
    """
    if not is_slug(name_or_id):
        raise NotFoundError("token", name_or_id)
    columns = tables.tokens.c
    query = select(tables.tokens).where(
        (columns.id == name_or_id) | ((columns.name == name_or_id) & columns.revoked_at.is_(None))
    )
    rows = connection.execute(query).all()
    row = next((row for row in rows if row.id == name_or_id), rows[0] if rows else None)
    if row is None:
        raise NotFoundError("token", name_or_id)
    if row.revoked_at is None:
        revoked = update(tables.tokens).where(columns.id == row.id)
        connection.execute(revoked.values(revoked_at=current_time(connection)))
    return _read(connection.execute(select(tables.tokens).where(columns.id == row.id)).one())


def any_tokens(connection: Connection) -> bool:
    """Whether a token was ever made.

    Revoked ones count: revoking the last must not open the service to everybody.
    """
    return connection.execute(select(tables.tokens.c.id).limit(1)).first() is not None


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def _read(row: Row[Any]) -> Token:
    return Token(
        id=row.id,
        name=row.name,
        scopes=frozenset(row.scopes.split()),
        created_at=row.created_at,
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
    )
