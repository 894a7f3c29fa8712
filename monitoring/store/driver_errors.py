"""What the drivers raise, in the words of :mod:`monitoring.store.errors`."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from sqlalchemy.exc import DataError, DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from calib.errors import CalibrationError, InvalidInputError
from monitoring.store.errors import (
    ConflictError,
    StoreBusyError,
    StoreError,
    StoreFullError,
    StoreUnavailableError,
)

__all__ = ["translated"]

_MIGRATE = "run the migrations, as every start of the service does"

# Primary result codes of SQLite: the low byte of an extended one.
_BUSY_CODES = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_UNUSABLE_CODES = {
    sqlite3.SQLITE_CANTOPEN: "the database file cannot be opened",
    sqlite3.SQLITE_CORRUPT: "the database file is damaged",
    sqlite3.SQLITE_IOERR: "the disk of the database failed",
    sqlite3.SQLITE_NOTADB: "the file is no SQLite database",
    sqlite3.SQLITE_PERM: "the database file must not be accessed",
    sqlite3.SQLITE_PROTOCOL: "the locks of the database file do not work on this file system",
    sqlite3.SQLITE_READONLY: "the database file is read-only",
}
# Codes with which SQLite may report a disk that has no room for its log or its shared memory.
_PERHAPS_FULL_CODES = {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR}
_SMALLEST_FREE_BYTES = 256 * 1024

# SQLSTATE codes of PostgreSQL, or the classes they begin with.
_BUSY_STATES = ("40", "55P03", "57014")  # rolled back, lock not available, query cancelled
_FULL_STATES = ("53100",)
_MISSING_STATES = ("42P01", "42703")
_LOST_STATES = ("08", "57P")  # connection failed, shutting down or starting up
_UNUSABLE_STATES = ("25006", "28", "3D", "53", "58", "XX")  # read-only, not let in, out of means


def translated(
    error: SQLAlchemyError | sqlite3.Error,
    *,
    committing: bool = False,
    file: Path | None = None,
) -> CalibrationError:
    """The typed error for ``error``.

    Args:
        error: what SQLAlchemy or the driver raised.
        committing: whether the commit was under way.
        file: the database file, where there is one.
    """
    if isinstance(error, sqlite3.Error):
        return _from_sqlite(error, file)
    if isinstance(error, PoolTimeoutError):
        return StoreBusyError("all connections to the database are in use")
    if isinstance(error, DataError):
        return InvalidInputError("value", _first_line(error.orig), "give what its column can hold")
    if not isinstance(error, DBAPIError):
        return StoreError(f"{type(error).__name__}: {error}")
    original = error.orig
    if isinstance(original, sqlite3.Error):
        return _from_sqlite(original, file)
    return _from_postgresql(error, committing=committing)


def _first_line(error: object) -> str:
    return str(error).strip().partition("\n")[0]


def _from_sqlite(error: sqlite3.Error, file: Path | None) -> StoreError:
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    message = _first_line(error)
    if code in _BUSY_CODES:
        return StoreBusyError(f"another process holds the database ({message})")
    if code == sqlite3.SQLITE_FULL or (code in _PERHAPS_FULL_CODES and _no_room(file)):
        return StoreFullError(f"no room in the database ({message})")
    if code in _UNUSABLE_CODES:
        return StoreUnavailableError(f"{_UNUSABLE_CODES[code]} ({message})")
    if code == sqlite3.SQLITE_CONSTRAINT:
        return ConflictError("row", message, "a constraint of the database refuses it")
    if "no such table" in message or "no such column" in message:
        return StoreUnavailableError(message, _MIGRATE)
    return StoreError(message)


def _no_room(file: Path | None) -> bool:
    if file is None:
        return False
    try:
        disk = os.statvfs(file.parent)
    except OSError:
        return False
    return disk.f_bavail * disk.f_frsize < _SMALLEST_FREE_BYTES or disk.f_favail == 0 < disk.f_files


def _from_postgresql(error: DBAPIError, *, committing: bool) -> StoreError:
    state = getattr(error.orig, "sqlstate", None) or ""
    message = _first_line(error.orig)
    if state.startswith(_BUSY_STATES):
        return StoreBusyError(f"the database gave up this transaction ({message})")
    if state.startswith(_FULL_STATES):
        return StoreFullError(f"no room in the database ({message})")
    if state.startswith(_MISSING_STATES):
        return StoreUnavailableError(message, _MIGRATE)
    if state.startswith("23"):
        return ConflictError("row", message, "a constraint of the database refuses it")
    # A lost connection tells nothing about a commit under way; every other refusal is one.
    if error.connection_invalidated or not state or state.startswith(_LOST_STATES):
        return StoreUnavailableError(
            f"the database cannot be reached ({message})", outcome_unknown=committing
        )
    if state.startswith(_UNUSABLE_STATES):
        return StoreUnavailableError(f"the database cannot be used ({message})")
    return StoreError(message)
