"""Files that are either the old one or the new one, never something in between.

An engine may read a file while it is being replaced, and a process may die while it writes.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


@contextmanager
def atomic_writer(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A binary file that replaces ``path`` when the block ends well, and vanishes when it raises.

    The bytes go to a hidden temporary file in the same directory, are flushed to disk, and take
    the name in one step (``os.replace``). An existing file keeps its permission bits, a new one
    gets those the umask allows; a symbolic link keeps pointing where it did.

    Raises:
        OSError: the directory does not exist or cannot be written.
    """
    target = Path(os.path.realpath(path))
    temporary = target.with_name(f".{target.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    # Not tempfile: it creates files that only their owner can read, and engines run as others.
    descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileNotFoundError):
            shutil.copymode(target, temporary)
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_directory(target.parent)


def write_bytes_atomically(path: str | os.PathLike[str], data: bytes) -> None:
    """Replace the file at ``path`` by ``data`` in one step; see :func:`atomic_writer`.

    Raises:
        OSError: the directory does not exist or cannot be written.
    """
    with atomic_writer(path) as file:
        file.write(data)


def _sync_directory(directory: Path) -> None:
    """Make the new name itself durable, where the file system allows it."""
    with suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
