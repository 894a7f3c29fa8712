"""A file that says what the plugin does on this engine, for people and for ``dspark-calib doctor``.

It is replaced in one step every few seconds by a thread of its own; its age tells whether the
process lives.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

__all__ = ["StatusFile", "status_path"]

_LOG = logging.getLogger("dspark_calib_client")


def status_path(named: str, replica: int | None) -> Path:
    """The file of a data-parallel replica, beside the one that is named; that one for None."""
    path = Path(named)
    return path if replica is None else path.with_name(f"{path.stem}-dp{replica}{path.suffix}")


class StatusFile:
    """Writes a status now and again.

    Args:
        path: file to replace.
        status: plain values by name.
        seconds: between two writes.
    """

    def __init__(
        self, path: Path, status: Callable[[], Mapping[str, Any]], seconds: float = 10.0
    ) -> None:
        self._path = path
        self._status = status
        self._seconds = seconds
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dspark-calib-status", daemon=True)
        self._complained = False

    def start(self) -> None:
        """Write at once, and from then on in the background."""
        self.write()
        self._thread.start()

    def stop(self, timeout: float = 5.0) -> None:
        """Write no more."""
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join(timeout)

    def write(self) -> bool:
        """Replace the file; whether that worked. Never raises."""
        temporary = self._path.with_name(f".{self._path.name}.{secrets.token_hex(4)}.tmp")
        try:
            document = {"written_at": time.time(), "pid": os.getpid(), **self._status()}
            temporary.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
            os.replace(temporary, self._path)
            return True
        except Exception as error:  # noqa: BLE001  (a disk that refuses must not end the thread)
            if not self._complained:
                _LOG.warning("the status file could not be written: %s", error)
            self._complained = True
            return False

    def _run(self) -> None:
        while not self._over.wait(self._seconds):
            self.write()
