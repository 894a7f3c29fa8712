"""Where alerts go: an address that was written into the configuration, checked before it is used.

Receivers come from the operator's file or environment only; no call of the service names one. Even
so an address has to be plain: http or https, no credentials in it, nothing link-local (where clouds
keep theirs), and redirects are never followed.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from typing import Final, Literal, get_args
from urllib.parse import urlsplit

from calib.errors import ConfigurationError
from monitoring.store.alert_outbox import Recipient
from monitoring.store.events import SEVERITIES, Severity

__all__ = ["Receiver", "ReceiverKind", "checked_url"]

ReceiverKind = Literal["webhook", "slack", "alertmanager"]

_SCHEMES: Final = ("http", "https")
_REMEDY: Final = "give http://host:port/path or https://…, without user and password"


@dataclass(frozen=True, slots=True)
class Receiver:
    """Somebody who is told.

    Attributes:
        name: unique among receivers; the label of its metrics.
        kind: ``webhook``, ``slack`` or ``alertmanager``.
        url: where to post; may itself be a secret, as Slack's is.
        secret: signs webhooks, is the bearer token of an Alertmanager; None for neither.
        minimum_severity: events below it are not told.
        timeout_seconds: longest time of one attempt, from connecting to the answer's status.

    Raises:
        ConfigurationError: naming field, value and remedy; addresses are not repeated.
    """

    name: str
    kind: ReceiverKind
    url: str = field(repr=False)
    secret: str | None = field(default=None, repr=False)
    minimum_severity: Severity = "warning"
    timeout_seconds: float = 10.0

    def __post_init__(self) -> None:
        """Check what the type does not."""
        if self.kind not in get_args(ReceiverKind):
            raise ConfigurationError("kind", self.kind, f"give one of {get_args(ReceiverKind)}")
        if self.minimum_severity not in SEVERITIES:
            severity = self.minimum_severity
            raise ConfigurationError("minimum_severity", severity, f"give one of {SEVERITIES}")
        if not 0 < self.timeout_seconds <= 60:
            raise ConfigurationError("timeout_seconds", self.timeout_seconds, "give 0 to 60")
        checked_url(self.url)

    @property
    def recipient(self) -> Recipient:
        """The receiver as the outbox knows it."""
        return Recipient(self.name, self.minimum_severity)

    @property
    def is_local(self) -> bool:
        """Whether it is on this machine, where no proxy stands between."""
        host = urlsplit(self.url).hostname or ""
        return host == "localhost" or host == "::1" or host.startswith("127.")


def checked_url(url: str) -> str:
    """``url`` when alerts may be posted to it.

    Raises:
        ConfigurationError: another scheme, no host, credentials, or a link-local address. The
            address itself is not in the message: it may be a secret.
    """
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigurationError("url", "(not shown)", _REMEDY) from error
    if parts.scheme not in _SCHEMES or not host or parts.username or parts.password:
        raise ConfigurationError("url", "(not shown)", _REMEDY)
    if any(character.isspace() or not character.isprintable() for character in url):
        raise ConfigurationError("url", "(not shown)", _REMEDY)
    try:
        link_local = ipaddress.ip_address(host).is_link_local
    except ValueError:
        link_local = False
    if link_local:
        raise ConfigurationError("url", "(not shown)", "no receiver has a link-local address")
    return url
