"""Where the mirror writes: the SQLite store beside the service's database, or a server by URL.

No MLflow here: settings are checked and addresses printed by processes that never load it.
"""

from __future__ import annotations

import os
import shlex
import sqlite3
from collections.abc import Callable, MutableMapping
from contextlib import closing, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Self

from calib.errors import ConfigurationError

__all__ = ["OFF", "URI_VARIABLE", "TrackingPlace", "bound_calls", "checked_uri", "is_installed"]

OFF: Final = "off"
URI_VARIABLE: Final = "MLFLOW_TRACKING_URI"

_DATABASES: Final = ("sqlite:///", "postgresql", "mysql", "mssql")
_SCHEMES: Final = ("http://", "https://", "databricks", *_DATABASES)
_STORE_FILE: Final = "mlflow.db"
_ARTIFACT_FOLDER: Final = "mlflow-artifacts"


def checked_uri(uri: str) -> str:
    """``uri`` when the mirror can write there: empty, ``off``, a server or a database.

    Raises:
        ConfigurationError: a folder, which MLflow only reads any more, or nothing it knows.
    """
    if uri in ("", OFF) or uri.startswith(_SCHEMES):
        return uri
    remedy = "give http(s)://…, sqlite:///path, 'off', or nothing for the store beside the database"
    if uri.startswith("file:") or "://" not in uri:
        remedy = f"MLflow no longer writes stores of plain files; {remedy}"
    raise ConfigurationError("tracking_uri", uri.rpartition("@")[2], remedy)


def is_installed() -> bool:
    """Whether MLflow could be imported; it is not."""
    return find_spec("mlflow") is not None


@dataclass(frozen=True, slots=True)
class TrackingPlace:
    """Where runs and models are kept.

    Attributes:
        uri: for MLflow.
        folder: of the local store, which the mirror makes itself; None for a server or database
            that somebody else looks after.
    """

    uri: str
    folder: Path | None = None

    @classmethod
    def choose(
        cls, setting: str, database_url: str, data_home: Path, environment: str | None = None
    ) -> Self | None:
        """The place in force; None where mirroring is switched off.

        Args:
            setting: ``tracking_uri``; wins over the environment.
            database_url: of the service; a SQLite file has the tracking store beside it.
            data_home: folder of the local store of a service on PostgreSQL.
            environment: value of ``MLFLOW_TRACKING_URI``, if set.

        Raises:
            ConfigurationError: no place that the mirror can write to.
        """
        uri = checked_uri(setting or environment or "")
        if uri == OFF:
            return None
        if uri:
            return cls(uri)
        folder = data_home
        if database_url.startswith("sqlite:///"):
            folder = Path(database_url.removeprefix("sqlite:///")).expanduser().absolute().parent
        return cls(f"sqlite:///{folder / _STORE_FILE}", folder)

    @property
    def artifacts(self) -> Path | None:
        """Folder of the local store's artifacts."""
        return None if self.folder is None else self.folder / _ARTIFACT_FOLDER

    @property
    def is_made(self) -> bool:
        """False where the local store has not been made yet; a server is asked by others."""
        return self.folder is None or (self.folder / _STORE_FILE).exists()

    @property
    def shown(self) -> str:
        """The address without a password."""
        scheme, mark, rest = self.uri.partition("://")
        return f"{scheme}{mark}{rest.rpartition('@')[2]}" if mark else self.uri

    @property
    def look_command(self) -> str:
        """What to type, or to open, to see the runs."""
        if self.uri.startswith(("http://", "https://")):
            return self.shown
        return f"mlflow ui --backend-store-uri {shlex.quote(self.shown)} --port 5000"

    def make_local_store(self, initialise: Callable[[str], None]) -> None:
        """Make the file of the local store, whole or not at all.

        MLflow needs many seconds for its tables and cannot go on with half of them. So they are
        made in a file of another name, which becomes the store when it is complete; of several
        processes the first one wins.

        Args:
            initialise: makes MLflow's tables at a URI.

        Raises:
            OSError: the folder cannot be written.
        """
        if self.folder is None or self.is_made:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        draft = self.folder / f".{_STORE_FILE}.{os.getpid()}.draft"
        whole = self.folder / f".{_STORE_FILE}.{os.getpid()}.whole"
        _forget(draft, whole)
        try:
            initialise(f"sqlite:///{draft}")
            with closing(sqlite3.connect(draft)) as source, closing(sqlite3.connect(whole)) as copy:
                source.backup(copy)
                # Whoever looks at the runs does not stand in the way of the mirror.
                copy.execute("PRAGMA journal_mode=WAL")
            with suppress(FileExistsError):
                os.link(whole, self.folder / _STORE_FILE)
        finally:
            _forget(draft, whole)


def bound_calls(
    seconds: float, environment: MutableMapping[str, str] | None = None
) -> MutableMapping[str, str]:
    """The environment with which no call of MLflow takes much longer than ``seconds``.

    The outbox repeats what fails, so MLflow itself need not. Its telemetry is switched off, and so
    is what it says about its progress.
    """
    variables = os.environ if environment is None else environment
    whole = str(max(1, round(seconds)))
    variables["MLFLOW_HTTP_REQUEST_TIMEOUT"] = whole
    variables["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] = "0"
    variables["MLFLOW_ARTIFACT_UPLOAD_DOWNLOAD_TIMEOUT"] = whole
    variables["MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR"] = "false"
    variables["MLFLOW_LOGGING_LEVEL"] = "WARNING"
    variables["MLFLOW_DISABLE_TELEMETRY"] = "true"
    variables["DO_NOT_TRACK"] = "true"
    return variables


def _forget(*files: Path) -> None:
    for file in files:
        for ending in ("", "-wal", "-shm", "-journal"):
            Path(f"{file}{ending}").unlink(missing_ok=True)
