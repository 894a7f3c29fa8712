"""Receivers of alerts as the configuration names them; secrets come from environment or files.

::

    [[alert_receivers]]
    name = "pager"
    kind = "webhook"                      # or slack, alertmanager
    url = "https://pager.example.org/in"  # or url_env, url_file: Slack's address is a secret
    secret_file = "/run/secrets/pager"    # or secret_env
    minimum_severity = "warning"
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from calib.errors import ConfigurationError

# The worker and its commands need it; a test keeps what it imports out of the API process small.
from monitoring.alerts.receivers import Receiver, checked_url

__all__ = ["MOST_RECEIVERS", "AlertReceiverSettings"]

MOST_RECEIVERS: Final = 20
"""Each has metrics of its own, and the number of those is bounded."""

_LONGEST_SECRET: Final = 4096

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]
Source = Annotated[str, StringConstraints(min_length=1)] | None


class AlertReceiverSettings(BaseModel):
    """One receiver, without its secrets."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Name = Field(description="unique; the label of its metrics")
    kind: Literal["webhook", "slack", "alertmanager"] = Field(
        description="which form it is told in"
    )
    url: Source = Field(None, repr=False, description="address, http or https")
    url_env: Source = Field(None, description="environment variable that holds the address")
    url_file: Source = Field(None, description="file that holds the address")
    secret_env: Source = Field(None, description="environment variable that holds the secret")
    secret_file: Source = Field(None, description="file that holds the secret")
    minimum_severity: Literal["info", "warning", "critical"] = Field(
        "warning", description="events below it are not told"
    )
    timeout_seconds: float = Field(
        10.0, gt=0, le=60, description="longest time of one attempt, answer included"
    )

    @model_validator(mode="after")
    def _one_source_each(self) -> Self:
        if sum(value is not None for value in (self.url, self.url_env, self.url_file)) != 1:
            raise ValueError("give exactly one of url, url_env and url_file")
        if self.secret_env is not None and self.secret_file is not None:
            raise ValueError("give at most one of secret_env and secret_file")
        if self.url is not None:
            try:
                checked_url(self.url)
            except ConfigurationError as error:
                raise ValueError(f"url: {error.remedy}") from error
        return self

    def receiver(self) -> Receiver:
        """The receiver, with what environment and files hold now.

        Raises:
            ConfigurationError: a variable or file is missing or empty, or the address is none.
        """
        url = self.url or self._read("url", self.url_env, self.url_file)
        return Receiver(
            name=self.name,
            kind=self.kind,
            url=url or "",
            secret=self._read("secret", self.secret_env, self.secret_file),
            minimum_severity=self.minimum_severity,
            timeout_seconds=self.timeout_seconds,
        )

    def _read(self, what: str, variable: str | None, file: str | None) -> str | None:
        """The text of a variable or file, without white space around it; None without either."""
        if variable is None and file is None:
            return None
        field = f"alert_receivers.{self.name}.{what}_{'env' if variable else 'file'}"
        if variable is not None:
            text = os.environ.get(variable, "")
            remedy = "set this environment variable"
        else:
            remedy = "make it a file that the service can read, with the text and nothing else"
            try:
                text = Path(str(file)).read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigurationError(field, file, remedy) from error
        found = text.strip()
        if not found or len(found) > _LONGEST_SECRET:
            raise ConfigurationError(field, variable or file, remedy)
        return found
