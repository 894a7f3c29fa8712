"""The last-known-good file: what an engine starts from while the service cannot be reached.

One line with the SHA-256 of the rest, then one JSON object that holds the service's body as it was,
its ETag, and whose it is. It is replaced in one step, and what is read back passes the very checks
of an answer from the network. No file, however broken, does more than be ignored and counted.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import secrets
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from dspark_calib_client.errors import InvalidAnswerError, InvalidFileError
from dspark_calib_client.validation import Expected, Publication, read_publication

__all__ = ["LastKnownGood", "LastKnownGoodFile"]

_FORMAT = "dspark-calib-client/last-known-good/1"
_LARGEST_FILE = 4 * 2**20  # four times the largest body that is accepted


@dataclass(frozen=True)
class LastKnownGood:
    """What a file held.

    Attributes:
        publication: validated like an answer.
        received_at: seconds since the epoch at which the service sent it.
    """

    publication: Publication
    received_at: float


class LastKnownGoodFile:
    """The file of one drafter, gamma and segment.

    Args:
        path: where it lies; its directory must exist.
        segment: tags the engine asks for; a file of another segment is foreign.
    """

    def __init__(self, path: str | os.PathLike[str], segment: Mapping[str, str]) -> None:
        self._path = os.fspath(path)
        self._segment = dict(segment)

    def load(self, expected: Expected) -> LastKnownGood | None:
        """What the file holds; None where there is no file.

        Raises:
            InvalidFileError: ``file_corrupt``, ``file_foreign`` or ``file_unreadable``.
        """
        data = self._read()
        if data is None:
            return None
        fields = _checked(data)
        owner = [fields.get(name) for name in ("drafter", "gamma", "segment")]
        if owner != [expected.drafter, expected.gamma, self._segment]:
            raise InvalidFileError("file_foreign", f"belongs to {owner!r:.90}")
        if expected.key is not None and fields.get("key") != expected.key:
            raise InvalidFileError("file_foreign", "belongs to another calibration key")
        try:
            body = fields["body"].encode("utf-8")
            publication = read_publication(body, fields["etag"], expected)
            received_at = float(fields["received_at"])
        except (InvalidAnswerError, AttributeError, KeyError, TypeError, ValueError) as error:
            raise InvalidFileError("file_corrupt", f"{error!s:.90}") from error
        if not math.isfinite(received_at):
            raise InvalidFileError("file_corrupt", f"received at {received_at}")
        return LastKnownGood(publication, received_at)

    def save(
        self, body: bytes, publication: Publication, expected: Expected, received_at: float
    ) -> None:
        """Replace the file by this answer, in one step.

        Raises:
            OSError: the directory does not exist, is full or cannot be written.
        """
        fields = {
            "format": _FORMAT,
            "drafter": expected.drafter,
            "gamma": expected.gamma,
            "segment": self._segment,
            "key": publication.key,
            "etag": publication.etag,
            "received_at": received_at,
            "body": body.decode("utf-8"),
        }
        rest = json.dumps(fields, sort_keys=True).encode()
        _replace(self._path, hashlib.sha256(rest).hexdigest().encode() + b"\n" + rest)

    def remove(self) -> None:
        """Withdraw it: a restart must not bring its numbers back.

        Raises:
            OSError: it exists and cannot be removed.
        """
        with suppress(FileNotFoundError):
            os.remove(os.path.realpath(self._path))

    def _read(self) -> bytes | None:
        try:
            # Not blocking: the path may be a pipe.
            descriptor = os.open(self._path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise InvalidFileError("file_unreadable", f"{error!s:.90}") from error
        try:
            with os.fdopen(descriptor, "rb") as file:
                facts = os.fstat(descriptor)
                if not stat.S_ISREG(facts.st_mode) or facts.st_size > _LARGEST_FILE:
                    raise InvalidFileError("file_corrupt", "no regular file of a likely size")
                return file.read(_LARGEST_FILE + 1)
        except OSError as error:
            raise InvalidFileError("file_unreadable", f"{error!s:.90}") from error


def _checked(data: bytes) -> dict[str, Any]:
    checksum, _, rest = data.partition(b"\n")
    if checksum != hashlib.sha256(rest).hexdigest().encode():
        raise InvalidFileError("file_corrupt", "the checksum does not match")
    try:
        fields = json.loads(rest)
    except (ValueError, RecursionError) as error:
        raise InvalidFileError("file_corrupt", f"{error!s:.90}") from error
    if not isinstance(fields, dict) or fields.get("format") != _FORMAT:
        raise InvalidFileError("file_foreign", "of another format")
    return fields


def _replace(path: str, data: bytes) -> None:
    """The file under its name is the old one or the new one, never something in between."""
    target = os.path.realpath(path)
    directory, name = os.path.split(target)
    # Random, because containers that share a volume also share process numbers.
    temporary = os.path.join(directory, f".{name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        with suppress(OSError):
            os.remove(temporary)
        raise
    with suppress(OSError):  # make the new name itself durable, where that is possible
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
