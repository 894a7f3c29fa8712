"""The service inside the test's own process: the whole application, without a socket."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
from fastapi import FastAPI
from starlette.testclient import TestClient

from api.app import create_app
from api.settings import Settings
from monitoring.store.database import Database
from monitoring.store.migrate import upgrade

__all__ = ["BASE_URL", "KEY", "Service", "empty_database", "running_service"]

BASE_URL = "http://127.0.0.1"
KEY: dict[str, Any] = {
    "target_model": "example-org/target-8b",
    "target_revision": "w1",
    "target_quantization": "none",
    "draft_model": "example-org/target-8b-dspark",
    "draft_revision": "v3",
    "draft_quantization": "none",
    "gamma": 7,
    "slot_convention": "anchor_excluded",
}


@dataclass(frozen=True)
class Service:
    """A running application and a client of it.

    Attributes:
        app: the application; ``app.state`` holds its parts.
        client: sends requests to it.
    """

    app: FastAPI
    client: TestClient

    @property
    def database(self) -> Database:
        """Where the application keeps everything."""
        found: Database = self.app.state.database
        return found

    def register(self, name: str = "drafter", **changes: Any) -> httpx.Response:
        """Register a drafter with :data:`KEY` and these changes."""
        return self.client.put(f"/v1/drafters/{name}", json={"key": {**KEY, **changes}})

    def etag(self, name: str = "drafter") -> str:
        """What If-Match of a change must name now."""
        return str(self.client.get(f"/v1/drafters/{name}").headers["ETag"])

    def create(
        self, temperatures: Sequence[float], name: str = "drafter", **more: Any
    ) -> httpx.Response:
        """Store temperatures made by hand."""
        return self.client.post(
            f"/v1/drafters/{name}/revisions",
            json={"temperatures": list(temperatures), **more},
            headers={"If-Match": self.etag(name)},
        )

    def promote(self, revision: int, name: str = "drafter") -> httpx.Response:
        """Make a revision the champion."""
        return self.client.post(
            f"/v1/drafters/{name}/revisions/{revision}/promote",
            headers={"If-Match": self.etag(name)},
        )

    def publish(self, temperatures: Sequence[float], name: str = "drafter") -> dict[str, Any]:
        """Store temperatures and promote them; what the promotion answers."""
        revision = self.create(temperatures, name).json()["revision"]
        found: dict[str, Any] = self.promote(revision, name).json()
        return found

    def poll(
        self, name: str = "drafter", *, headers: dict[str, str] | None = None, **query: Any
    ) -> httpx.Response:
        """Poll the temperatures; γ is 7 unless the query says otherwise."""
        parameters = {"gamma": 7, **query}
        return self.client.get(
            f"/v1/drafters/{name}/temperatures", params=parameters, headers=headers
        )


@contextmanager
def running_service(database_url: str, **settings: Any) -> Iterator[Service]:
    """The application on this database, started; it is ended with the block.

    Args:
        database_url: a database; its tables are made where they are missing.
        **settings: fields of :class:`api.settings.Settings`.
    """
    app = create_app(Settings(database_url=database_url, **settings))
    with TestClient(app, base_url=BASE_URL, raise_server_exceptions=False) as client:
        yield Service(app, client)


def empty_database(folder: Path) -> str:
    """The address of a SQLite database in ``folder`` with the newest tables and nothing in them."""
    path = folder / "service.db"
    path.write_bytes(_template())
    return f"sqlite:///{path}"


@cache
def _template() -> bytes:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "template.db"
        database = Database.open(f"sqlite:///{path}")
        upgrade(database)
        database.close()
        return path.read_bytes()  # closing it has moved the log into the file
