"""Settings of the service: flag, then environment, then file, then default.

Each is one typed field with a description. The environment names them ``DSPARK_CALIB_<FIELD>``;
the file is TOML, named by ``DSPARK_CALIB_CONFIG`` or given by the caller.
"""

from __future__ import annotations

import ipaddress
import os
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from calib.errors import ConfigurationError

__all__ = ["CONFIG_VARIABLE", "ENVIRONMENT_PREFIX", "Role", "Settings", "load_settings"]

ENVIRONMENT_PREFIX = "DSPARK_CALIB_"
CONFIG_VARIABLE = "DSPARK_CALIB_CONFIG"

Role = Literal["all", "api", "worker"]

_MIB = 2**20
# The file of the settings being made: sources know the class, not the call.
_config_file: ContextVar[Path | None] = ContextVar("config_file", default=None)
_DATABASES = ("sqlite:///", "postgresql://", "postgresql+psycopg://")

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


def default_database_url() -> str:
    """A SQLite file in the user's data directory (``XDG_DATA_HOME``)."""
    home = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return f"sqlite:///{Path(home) / 'dspark-calib' / 'dspark-calib.db'}"


class Settings(BaseSettings):
    """Everything that can be set, with its default. See :func:`load_settings` for the errors."""

    model_config = SettingsConfigDict(
        env_prefix=ENVIRONMENT_PREFIX, extra="forbid", frozen=True, validate_default=True
    )

    database_url: str = Field(
        default_factory=default_database_url,
        repr=False,  # it may hold a password
        description="sqlite:///path, or postgresql://user@host/name for several replicas",
    )
    host: str = Field(
        "127.0.0.1",
        min_length=1,
        description="address to listen on; other than loopback needs tokens",
    )
    port: int = Field(8765, ge=0, le=65535, description="port to listen on; 0 takes a free one")
    role: Role = Field("all", description="api, worker, or all: the API with a worker process")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="least severity that is logged; polls that succeed are debug"
    )
    log_format: Literal["json", "console"] = Field(
        "console", description="json for collectors, console for people"
    )
    allow_anonymous: bool = Field(
        True,
        description="answer without tokens while none exists and the host is loopback; "
        "false refuses to start without tokens",
    )
    max_body_bytes: int = Field(
        64 * _MIB, ge=1024, description="largest telemetry body as it is sent"
    )
    max_decompressed_bytes: int = Field(
        256 * _MIB, ge=1024, description="largest telemetry body after decompression"
    )
    max_json_bytes: int = Field(
        1 * _MIB, ge=1024, description="largest JSON body of every other call"
    )
    max_batch_rows: int = Field(1_000_000, ge=1, description="most rows of one telemetry batch")
    ingest_pending_bytes: int = Field(
        256 * _MIB, ge=1, description="bytes that may wait to be stored before 429"
    )
    ingest_commit_milliseconds: float = Field(
        5.0, ge=0, le=1000, description="longest wait for more batches before a commit"
    )
    max_wait_seconds: int = Field(
        60, ge=0, le=60, description="longest time a poll may be held; longer requests are cut"
    )
    max_waiting: int = Field(20_000, ge=1, description="most polls held at a time before 503")
    feed_seconds: Seconds = Field(
        0.05, description="how often the database is asked for new publications (SQLite)"
    )
    engine_silent_seconds: Seconds = Field(
        180.0, description="age of the last poll from which an engine counts as silent"
    )
    valid_for_seconds: Seconds | None = Field(
        None, description="after this time clients call a publication stale; none: never"
    )
    unmatched_segment: Literal["pooled", "identity"] = Field(
        "pooled",
        description="what a segment without numbers of its own gets: the pooled ones, flagged, "
        "or identity",
    )
    retention_days: Seconds | None = Field(
        30.0, description="age from which telemetry is removed; none keeps it"
    )
    retention_bytes: int | None = Field(
        4096 * _MIB, ge=1, description="telemetry kept at most; none keeps all"
    )
    recalibration_rows: int = Field(
        200_000, ge=1, description="newest telemetry rows that a recalibration fits on"
    )
    report_seconds: Seconds = Field(300.0, description="how often reports are made anew")
    shutdown_seconds: Seconds = Field(
        10.0, description="time to finish commits and release polls after SIGTERM"
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags, then environment, then the TOML file of :func:`load_settings`."""
        path = _config_file.get()
        if path is None:
            return init_settings, env_settings
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls, path)

    @field_validator("valid_for_seconds", "retention_days", "retention_bytes", mode="before")
    @classmethod
    def _none_by_name(cls, value: object) -> object:
        # Neither the environment nor TOML has a null.
        return None if value == "none" else value

    @field_validator("database_url")
    @classmethod
    def _known_database(cls, url: str) -> str:
        if not url.startswith(_DATABASES):
            raise ValueError("give sqlite:///path or postgresql://…")
        return url

    @model_validator(mode="after")
    def _limits_agree(self) -> Self:
        if self.max_decompressed_bytes < self.max_body_bytes:
            raise ValueError("max_decompressed_bytes must be at least max_body_bytes")
        return self

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach ``host``."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host.strip("[]")).is_loopback
        except ValueError:
            return False

    @property
    def database_name(self) -> str:
        """The database's address without user and password, for logs."""
        if self.database_url.startswith("sqlite"):
            return self.database_url
        parts = urlsplit(self.database_url)
        port = f":{parts.port}" if parts.port else ""
        return f"{parts.scheme}://{parts.hostname or ''}{port}{parts.path}"


def load_settings(*, config: str | os.PathLike[str] | None = None, **flags: Any) -> Settings:
    """The settings in force.

    Args:
        config: TOML file; None takes the one that ``DSPARK_CALIB_CONFIG`` names, if any.
        **flags: settings by name, before every other source; None counts as not given.

    Raises:
        ConfigurationError: naming the setting, its value and what is allowed, whichever source it
            came from.
    """
    path = config or os.environ.get(CONFIG_VARIABLE) or None
    if path and not Path(path).is_file():
        raise ConfigurationError(CONFIG_VARIABLE, str(path), "name a TOML file that exists")
    given = {name: value for name, value in flags.items() if value is not None}
    token = _config_file.set(Path(path) if path else None)
    try:
        return Settings(**given)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        field = ".".join(map(str, fault["loc"])) or "settings"
        # Addresses hold passwords, and a fault between settings has all of them as its input.
        value = None if field in ("settings", "database_url") else fault.get("input")
        raise ConfigurationError(field, value, fault["msg"]) from error
    except ValueError as error:  # TOML that does not parse
        raise ConfigurationError(CONFIG_VARIABLE, str(path), f"mend the file: {error}") from error
    finally:
        _config_file.reset(token)
