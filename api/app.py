"""The application: state, middleware, calls, description.

Importing this module loads neither torch, mlflow, netcal, pandas, scikit-learn nor matplotlib: the
process that answers polls stays small, and a test keeps it so.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

import structlog
from fastapi import FastAPI

from api.auth import Authenticator, check_start
from api.dashboard.page_route import install_missing_page
from api.documentation import install_openapi
from api.documentation_page import install_documentation_page
from api.engine_sightings import EngineSightings
from api.ingest_queue import IngestQueue
from api.poll import Poll
from api.problems import install_problem_handlers
from api.process_memory import MemoryReturn
from api.publication_feed import PublicationFeed
from api.readiness import Readiness
from api.request_context import RequestContext
from api.routes import routers
from api.routes.temperatures import PollFirst, describe_poll
from monitoring.prometheus_metrics import ServiceMetrics
from monitoring.store import tokens
from monitoring.store.database import Database
from monitoring.store.migrate import upgrade

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from api.settings import Settings

__all__ = ["create_app", "prepare"]

_TITLE = "dspark-calib"


def prepare(settings: Settings) -> Database:
    """The database, with current tables, of a service that may start.

    Raises:
        ConfigurationError: an address that is none, or others could reach a service without tokens.
        StoreError: the database cannot be used.
    """
    database = Database.open(settings.database_url)
    try:
        _check(settings, database)
    except BaseException:
        database.close()
        raise
    return database


def create_app(settings: Settings, database: Database | None = None) -> FastAPI:
    """The application.

    Args:
        settings: how it runs.
        database: used and left open when given; else ``settings.database_url`` is opened when the
            application starts and closed when it ends.
    """
    app = PollFirst(
        title=_TITLE,
        version=release(),
        lifespan=_lifespan(settings, database),
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        generate_unique_id_function=lambda route: route.name,
    )
    app.state.settings = settings
    app.state.metrics = ServiceMetrics(
        release(),
        silent_after=settings.engine_silent_seconds,
        most_drafters=settings.metrics_drafters,
        refresh_seconds=settings.metrics_seconds,
    )
    install_problem_handlers(app)
    install_missing_page(app)
    app.add_middleware(RequestContext)
    for router in routers():
        app.include_router(router)
    install_documentation_page(app)
    describe_poll(app)
    install_openapi(app)
    return app


def release() -> str:
    """Version of the installed distribution."""
    try:
        return version("dspark-calib")
    except PackageNotFoundError:  # run from a checkout that is not installed
        return "0"


def _check(settings: Settings, database: Database) -> None:
    upgrade(database)
    with database.read() as connection:
        check_start(settings, any_tokens=tokens.any_tokens(connection))


def _lifespan(
    settings: Settings, given: Database | None
) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            database = given or Database.open(settings.database_url)
            if given is None:
                stack.push_async_callback(asyncio.to_thread, database.close)
            await asyncio.to_thread(_check, settings, database)
            await _start(app, settings, database, stack)
            structlog.get_logger("api").info("ready", database=settings.database_name)
            yield
            # Polls first: they may be many, and each holds a connection.
            app.state.feed.release()

    return lifespan


async def _start(
    app: FastAPI, settings: Settings, database: Database, stack: AsyncExitStack
) -> None:
    """Start what works beside requests; it ends in the opposite order."""
    feed = PublicationFeed(database, interval=settings.feed_seconds)
    await feed.start()
    stack.push_async_callback(feed.stop)
    sightings = EngineSightings(database)
    sightings.start()
    stack.push_async_callback(sightings.stop)
    ingest = IngestQueue(
        database,
        max_pending_bytes=settings.ingest_pending_bytes,
        max_wait_ms=settings.ingest_commit_milliseconds,
    )
    stack.push_async_callback(ingest.close, settings.shutdown_seconds / 3)
    memory = MemoryReturn(lambda: ingest.pending.taken)
    memory.start()
    stack.push_async_callback(memory.stop)
    auth = Authenticator(database, anonymous=settings.allow_anonymous and settings.is_loopback)
    app.state.database = database
    app.state.feed = feed
    app.state.sightings = sightings
    app.state.ingest = ingest
    app.state.auth = auth
    app.state.readiness = Readiness(database)
    metrics: ServiceMetrics = app.state.metrics
    app.state.poll = Poll(feed, auth, sightings, settings, count=metrics.count_poll)
    metrics.watch("polls_held", lambda: feed.waiting)
    metrics.watch("ingest_pending_bytes", lambda: ingest.pending.used)
    metrics.watch("ingest_pending_limit_bytes", lambda: settings.ingest_pending_bytes)
