"""The application in this process, with a real database and one drafter, for tests of ingest."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import httpx

from api.app import create_app
from api.settings import Settings
from calib.records import AcceptanceRecords
from monitoring.ingest import records_of
from monitoring.store import telemetry
from monitoring.store.database import Database

T = TypeVar("T")

DRAFTER = "code"
PATH = f"/v1/drafters/{DRAFTER}/telemetry"
JSON = "application/json"
ARROW = "application/vnd.apache.arrow.stream"


def key(gamma: int, slot_convention: str = "anchor_excluded") -> dict[str, Any]:
    """A calibration key as the API takes it."""
    names = (
        "target_model",
        "target_revision",
        "target_quantization",
        "draft_model",
        "draft_revision",
        "draft_quantization",
    )
    return dict.fromkeys(names, "example") | {"gamma": gamma, "slot_convention": slot_convention}


class IngestService:
    """A running application; its event loop turns while a call of this object waits.

    Attributes:
        client: speaks to it without a socket.
        app: the application.
    """

    def __init__(self, runner: asyncio.Runner, app: Any, client: httpx.AsyncClient) -> None:
        self.app = app
        self.client = client
        self._runner = runner

    @property
    def database(self) -> Database:
        """Where everything is stored."""
        found: Database = self.app.state.database
        return found

    def run(self, work: Awaitable[T]) -> T:
        """What ``work`` returns."""

        async def awaited() -> T:
            return await work

        return self._runner.run(awaited())

    def register(self, name: str = DRAFTER, gamma: int = 3, **options: Any) -> None:
        """Register a drafter."""
        body = {"key": key(gamma, **options)}
        answer = self.run(self.client.put(f"/v1/drafters/{name}", json=body))
        answer.raise_for_status()

    def post(
        self,
        body: bytes,
        headers: dict[str, str] | list[tuple[bytes, bytes]] | None = None,
        *,
        path: str = PATH,
        media_type: str = JSON,
    ) -> httpx.Response:
        """The answer to a telemetry request; a list of headers is sent as it is."""
        sent: Any = headers
        if not isinstance(headers, list):
            sent = {"Content-Type": media_type, **(headers or {})}
        return self.run(self.client.post(path, content=body, headers=sent))

    def counters(self, name: str = DRAFTER) -> telemetry.TelemetryCounters:
        """Totals of the drafter."""
        with self.database.read() as connection:
            return telemetry.counters(connection, name)

    def batches(self, name: str = DRAFTER) -> list[telemetry.Batch]:
        """Everything stored of the drafter."""
        with self.database.read() as connection:
            return telemetry.batches_after(connection, name, 0, limit=100_000)

    def stored(self, name: str = DRAFTER) -> AcceptanceRecords:
        """All stored rows of the drafter, in order."""
        return AcceptanceRecords.concatenate([records_of(b.payload) for b in self.batches(name)])


@contextmanager
def ingest_service(database_url: str, **settings: Any) -> Iterator[IngestService]:
    """An application that runs as long as the block, with one drafter of γ = 3."""
    app = create_app(Settings(database_url=database_url, **settings))
    with asyncio.Runner() as runner:
        lifespan = app.router.lifespan_context(app)
        runner.run(_entered(lifespan))
        try:
            transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
            client = httpx.AsyncClient(transport=transport, base_url="http://localhost")
            service = IngestService(runner, app, client)
            service.register()
            yield service
            runner.run(client.aclose())
        finally:
            runner.run(_left(lifespan))


async def _entered(lifespan: Any) -> None:
    await lifespan.__aenter__()


async def _left(lifespan: Any) -> None:
    await lifespan.__aexit__(None, None, None)
