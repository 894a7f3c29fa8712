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

from api.alert_settings import MOST_RECEIVERS, AlertReceiverSettings
from calib.errors import ConfigurationError
from monitoring.asked_exploration import asked_exploration
from monitoring.mlflow_mirror.names import DEFAULT_ALIASES, AliasNames
from monitoring.mlflow_mirror.tracking_place import URI_VARIABLE, TrackingPlace, checked_uri

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
    return f"sqlite:///{_data_home() / 'dspark-calib.db'}"


def _data_home() -> Path:
    home = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(home) / "dspark-calib"


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
        description="what a sampling temperature or acceptance rule that no row had gets, and any "
        "segment where a revision has none: numbers of its parent, flagged, or identity",
    )
    exploration_share: float = Field(
        0.0,
        ge=0,
        le=0.05,
        description="share of steps that engines which can are asked to verify in full, so that "
        "late positions are seen under load too; 0: none",
    )
    exploration_share_on_warning: float = Field(
        0.005,
        ge=0,
        le=0.005,
        description="least such share from a warning of drift until it is over or another revision "
        "is served; needs the closed loop on; 0: a warning raises nothing",
    )
    retention_days: Seconds | None = Field(
        30.0, description="age from which telemetry is removed; none keeps it"
    )
    retention_bytes: int | None = Field(
        4096 * _MIB, ge=1, description="telemetry kept at most; none keeps all"
    )
    history_days: Seconds | None = Field(
        90.0,
        description="age from which resolved events, and engines that have not polled since, are "
        "removed; none keeps them",
    )
    recalibration_rows: int = Field(
        200_000, ge=1, description="newest telemetry rows that a recalibration fits on"
    )
    closed_loop: Literal["on", "watch", "off"] = Field(
        "on",
        description="on: drift leads to refits, and the gate promotes; watch: alarms are told, "
        "nothing is fitted or promoted unasked; off: telemetry is not watched",
    )
    act_threshold: float = Field(
        1e6,
        ge=100,
        le=1e14,
        description="mean rows to a false drift alarm that acts; 1e8 or more for busy fleets",
    )
    warn_threshold: float = Field(
        1e5, ge=100, le=1e14, description="mean rows to a false warning of drift"
    )
    drift_tolerance: float = Field(
        0.01, ge=0, lt=0.2, description="miscalibration that is not acted on, as a probability"
    )
    drift_design_effect: float = Field(
        1.0,
        ge=1,
        le=100,
        description="what evidence of drift, and for or against a challenger, is divided by on the "
        "log scale, because rows of a request depend on each other; above 1 where few requests run "
        "side by side",
    )
    refit_rows: int = Field(
        20_000, ge=1, description="rows after which an unasked refit is due, drift or not"
    )
    refit_seconds: Seconds = Field(3600.0, description="least time between two unasked refits")
    refit_minimum_rows: int = Field(
        1000, ge=100, description="rows since a change that a refit after an alarm needs"
    )
    cool_down_rows: int = Field(
        4000, ge=1, description="rows after a rollback in which nothing is fitted or promoted"
    )
    telemetry_silent_seconds: Seconds = Field(
        300.0, description="time without a row, while engines poll, that is told as silence"
    )
    report_seconds: Seconds = Field(300.0, description="how often reports are made anew")
    public_url: str | None = Field(
        None,
        pattern=r"^https?://[^\s/?#@]+(/[^\s?#]*)?$",
        description="address under which people reach the service, for links in alerts; "
        "none: the one it listens on",
    )
    alert_receivers: tuple[AlertReceiverSettings, ...] = Field(
        (), max_length=MOST_RECEIVERS, description="who is told of events; see api.alert_settings"
    )
    metrics_seconds: Seconds = Field(
        5.0, description="age from which /metrics reads the database anew"
    )
    metrics_drafters: int = Field(
        100, ge=1, le=1000, description="drafters with metrics of their own at most, by name"
    )
    tracking_uri: str = Field(
        "",
        repr=False,  # it may hold a password
        description="MLflow server or database that revisions, refusals and reports are mirrored "
        "to; empty: MLFLOW_TRACKING_URI if that is set, else mlflow.db beside a SQLite database "
        "(or in the user's data directory); off: nothing is mirrored",
    )
    tracking_aliases: str = Field(
        DEFAULT_ALIASES,
        description="what champion, challenger and previous are called in MLflow's registry",
    )
    tracking_timeout_seconds: Seconds = Field(
        10.0, description="longest time for one call of the tracking server; nobody waits for it"
    )
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

    @field_validator(
        "valid_for_seconds", "retention_days", "retention_bytes", "history_days", mode="before"
    )
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

    @field_validator("tracking_uri")
    @classmethod
    def _known_tracking_place(cls, uri: str) -> str:
        return checked_uri(uri)

    @field_validator("tracking_aliases")
    @classmethod
    def _aliases_mlflow_takes(cls, names: str) -> str:
        AliasNames.from_text(names)
        return names

    @model_validator(mode="after")
    def _limits_agree(self) -> Self:
        if self.max_decompressed_bytes < self.max_body_bytes:
            raise ValueError("max_decompressed_bytes must be at least max_body_bytes")
        names = [receiver.name for receiver in self.alert_receivers]
        if len(set(names)) != len(names):
            raise ValueError("alert_receivers must have different names")
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
    def service_url(self) -> str:
        """Address for links: ``public_url``, else the one it listens on."""
        host = self.host.strip("[]")
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        return self.public_url or f"http://{f'[{host}]' if ':' in host else host}:{self.port}"

    def exploration(self, *, raised: bool) -> float:
        """Share of steps that engines are asked to verify in full.

        Args:
            raised: whether the closed loop asks for more; one that is not ``on`` cannot take that
                back, and is not heard.
        """
        heard = raised and self.closed_loop == "on"
        usual, on_warning = self.exploration_share, self.exploration_share_on_warning
        return asked_exploration(usual, on_warning, raised=heard)

    def tracking_place(self) -> TrackingPlace | None:
        """Where the mirror writes; None where it is switched off.

        Raises:
            ConfigurationError: ``MLFLOW_TRACKING_URI`` names no place that it can write to.
        """
        environment = os.environ.get(URI_VARIABLE)
        return TrackingPlace.choose(self.tracking_uri, self.database_url, _data_home(), environment)

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
        secret = field in ("settings", "database_url", "tracking_uri") or field.startswith(
            "alert_receivers"
        )
        value = None if secret else fault.get("input")
        unknown = fault["type"] == "extra_forbidden"
        remedy = "there is no such setting" if unknown else fault["msg"]
        raise ConfigurationError(field, value, remedy) from error
    except ValueError as error:  # TOML that does not parse
        raise ConfigurationError(CONFIG_VARIABLE, str(path), f"mend the file: {error}") from error
    finally:
        _config_file.reset(token)
