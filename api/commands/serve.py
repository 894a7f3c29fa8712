"""``dspark-calib serve``: the service that engines send telemetry to and poll temperatures from."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.boundary import exit_codes

if TYPE_CHECKING:
    from api.settings import Settings

__all__ = ["database_address", "serve"]

DATABASE_FILE = "dspark-calib.db"
DEMO_FOLDER = Path("out/service")
_DEMO_SILENT_SECONDS = 30 * 24 * 3600.0


class Role(StrEnum):
    """What this process does."""

    ALL = "all"
    API = "api"
    WORKER = "worker"


class LogLevel(StrEnum):
    """Least severity that is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    """How log lines look."""

    JSON = "json"
    CONSOLE = "console"


def serve(
    role: Annotated[
        Role | None,
        typer.Option(help="api, worker, or all: the API with a worker process beside it."),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="TOML file with settings; DSPARK_CALIB_CONFIG names one too."),
    ] = None,
    host: Annotated[
        str | None, typer.Option(help="Address to listen on; other than loopback needs tokens.")
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")
    ] = None,
    database_url: Annotated[
        str | None, typer.Option(help="sqlite:///path, or postgresql://… for several replicas.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Folder for the SQLite database; instead of a URL.")
    ] = None,
    log_level: Annotated[
        LogLevel | None, typer.Option(help="Least severity that is logged.")
    ] = None,
    log_format: Annotated[
        LogFormat | None, typer.Option(help="json for collectors, console for people.")
    ] = None,
    retention_days: Annotated[
        str | None, typer.Option(help="Days that telemetry is kept, or none to keep it all.")
    ] = None,
    recalibration_rows: Annotated[
        int | None, typer.Option(min=1, help="Newest rows that a recalibration fits on.")
    ] = None,
    shutdown_seconds: Annotated[
        float | None, typer.Option(help="Time to finish commits and jobs after the stop.")
    ] = None,
    demo: Annotated[
        bool,
        typer.Option(
            "--demo",
            help="Also replay the shipped telemetry, recalibrate, promote and poll, and tell it.",
        ),
    ] = False,
    exit_after: Annotated[
        bool, typer.Option("--exit", help="With --demo: stop the service after the story.")
    ] = False,
) -> None:
    """Serve temperatures to engines; every setting can also come from environment or file."""
    with exit_codes():
        from api.settings import load_settings

        flags: dict[str, Any] = {
            "role": role,
            "host": host,
            "port": port,
            "database_url": _database_url(database_url, data, demo=demo),
            "log_level": log_level or (LogLevel.ERROR if demo else None),
            "log_format": log_format,
            # The story promotes by hand and says so; a loop that acts would get in its way.
            "closed_loop": "watch" if demo else None,
            # It sends once and goes on polling; that is no fault to be told.
            "telemetry_silent_seconds": _DEMO_SILENT_SECONDS if demo else None,
            "retention_days": retention_days,
            "recalibration_rows": recalibration_rows,
            "shutdown_seconds": shutdown_seconds,
        }
        settings = load_settings(
            config=config, **{name: _plain(value) for name, value in flags.items()}
        )
        code = _run(settings, demo=demo, exit_after=exit_after)
    if code:
        raise typer.Exit(code)


def _run(settings: Settings, *, demo: bool, exit_after: bool) -> int:
    from api.service_process import run_service, run_worker_alone
    from calib.errors import ConfigurationError

    if exit_after and not demo:
        raise ConfigurationError("--exit", True, "is for --demo: a service runs until stopped")
    if demo and settings.role != "all":
        raise ConfigurationError("role", settings.role, "the demo needs API and worker: role all")
    if demo and not settings.is_loopback:
        raise ConfigurationError("host", settings.host, "the demo stays on this machine: 127.0.0.1")
    for receiver in settings.alert_receivers:
        receiver.receiver()  # a secret that is missing is told now, not with the first alarm
    if settings.role == "worker":
        return run_worker_alone(settings)
    return run_service(settings, demo=demo, exit_after=exit_after)


def _database_url(url: str | None, data: Path | None, *, demo: bool) -> str | None:
    return database_address(url, DEMO_FOLDER if demo and url is None and data is None else data)


def database_address(url: str | None, data: Path | None) -> str | None:
    """The address that ``--database-url`` or ``--data`` gives; None where neither does.

    Raises:
        ConfigurationError: both were given.
    """
    from calib.errors import ConfigurationError

    if url is not None and data is not None:
        raise ConfigurationError("data", str(data), "give either --data or --database-url")
    return url if data is None else f"sqlite:///{data.absolute() / DATABASE_FILE}"


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, StrEnum) else value
