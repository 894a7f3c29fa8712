"""Arguments of the client, checked once, at start-up, where an error can still be mended."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from dspark_calib_client.errors import ClientConfigurationError, InvalidAnswerError
from dspark_calib_client.keys import key_digest
from dspark_calib_client.knowledge import BakedIn
from dspark_calib_client.states import default_stale_after
from dspark_calib_client.validation import Expected, checked_scales

if TYPE_CHECKING:
    from typing import Union

    BakedInNumbers = Union[Sequence[float], Mapping[str, Any], None]
    Key = Union[str, Mapping[str, Any], None]
    TokenSource = Union[str, Callable[[], "str | None"], None]

__all__ = ["SEGMENT_TAGS", "Configuration", "checked_baked_in", "checked_key"]

SEGMENT_TAGS = (
    "sampling_temperature",
    "context_length",
    "domain",
    "adapter",
    "acceptance_rule",
    "draft_mode",
)
"""Tags of traffic that the service knows."""

_SLUG = re.compile(r"[a-z0-9][a-z0-9._-]{0,127}", re.ASCII)
_TOKEN = re.compile(r"[\x21-\x7e]+")
_LONGEST_NAME = 128
_LONGEST_WAIT = 60
_LARGEST_GAMMA = 254


@dataclass(frozen=True)
class Configuration:
    """Everything that stays the same while a client lives, checked.

    The attributes are the arguments of :class:`dspark_calib_client.CalibrationClient`, in the form
    that the parts use; ``slots`` is the width of per-position columns in telemetry.

    Raises:
        ClientConfigurationError: naming argument, value and remedy. A token is never shown.
    """

    base_url: str
    drafter: str
    gamma: int
    slots: int
    engine: str
    token: Callable[[], str | None]
    state_file: str | None
    interval: float
    wait: int
    timeout: float
    stale_after: float
    start_delay: float | None
    max_backoff: float
    segment: Mapping[str, str]
    verify: Any
    proxy: str | None

    @classmethod
    def checked(
        cls,
        *,
        base_url: str,
        drafter: str,
        gamma: int,
        key: Key,
        anchor_included: bool | None,
        engine_id: str,
        token: TokenSource,
        state_file: str | os.PathLike[str] | None,
        interval: float,
        wait: int,
        timeout: float,
        stale_after: float | None,
        start_delay: float | None,
        max_backoff: float,
        segment: Mapping[str, str] | None,
        verify: Any,
        proxy: str | None,
    ) -> Configuration:
        """The arguments of the client as a configuration.

        Raises:
            ClientConfigurationError: naming argument, value and remedy.
        """
        seconds = _seconds("interval", interval)
        holds = _whole("wait", wait, 0, _LONGEST_WAIT)
        limit = _seconds("timeout", timeout)
        given = None if stale_after is None else _seconds("stale_after", stale_after)
        return cls(
            base_url=_url("base_url", base_url),
            drafter=_drafter(drafter),
            gamma=_whole("gamma", gamma, 1, _LARGEST_GAMMA),
            slots=gamma + _has_anchor(anchor_included, key),
            engine=_name("engine_id", engine_id),
            token=_token(token),
            state_file=None if state_file is None else os.fspath(state_file),
            interval=seconds,
            wait=holds,
            timeout=limit,
            stale_after=default_stale_after(seconds, holds, limit) if given is None else given,
            start_delay=None if start_delay is None else _delay("start_delay", start_delay),
            max_backoff=_seconds("max_backoff", max_backoff),
            segment=_segment(segment),
            verify=verify,
            proxy=None if proxy is None else _url("proxy", proxy),
        )

    @property
    def drafter_url(self) -> str:
        """Address of everything about the drafter."""
        return f"{self.base_url}/v1/drafters/{self.drafter}"

    def expected(self, key: str | None) -> Expected:
        """What answers must be for, under the key with this digest."""
        return Expected(self.drafter, self.gamma, key)


def checked_key(key: Key) -> str | None:
    """The key's digest; None for no key.

    Raises:
        ClientConfigurationError: neither a digest nor the fields of a key.
    """
    return None if key is None else key_digest(key)


def checked_baked_in(baked_in: BakedInNumbers, gamma: int) -> BakedIn | None:
    """Numbers that come with the engine.

    Args:
        baked_in: temperatures, or a mapping with ``temperatures`` and optionally ``revision``, as
            in the file that SGLang loads. Longer vectors give their prefix.
        gamma: draft positions.

    Raises:
        ClientConfigurationError: fewer than gamma numbers, or one outside [0.05, 20].
    """
    if baked_in is None:
        return None
    revision = -1
    values: Any = baked_in
    if isinstance(baked_in, Mapping):
        values = baked_in.get("temperatures")
        given = baked_in.get("revision")
        if isinstance(given, int) and not isinstance(given, bool):
            revision = given
    try:
        return BakedIn(checked_scales("baked_in", list(values)[:gamma], gamma), revision)
    except (InvalidAnswerError, TypeError) as error:
        remedy = f"give {gamma} temperatures within [0.05, 20]"
        raise ClientConfigurationError("baked_in", baked_in, remedy) from error


def _url(field: str, value: Any) -> str:
    try:
        parts = urlsplit(value)
        fits = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        fits = fits and not (parts.query or parts.fragment)
    except (AttributeError, TypeError, ValueError):
        fits = False
    if not fits or not isinstance(value, str):
        raise ClientConfigurationError(field, value, "give http://host:port")
    return value.rstrip("/")


def _drafter(value: Any) -> str:
    if not isinstance(value, str) or _SLUG.fullmatch(value) is None:
        raise ClientConfigurationError("drafter", value, "give a name of [a-z0-9._-]")
    return value


def _whole(field: str, value: Any, least: int, most: int) -> int:
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole or not least <= value <= most:
        raise ClientConfigurationError(field, value, f"give a whole number, {least} to {most}")
    return int(value)


def _has_anchor(anchor_included: Any, key: Key) -> int:
    if anchor_included is None:
        named = key.get("slot_convention") if isinstance(key, Mapping) else None
        return int(named == "anchor_included")
    if not isinstance(anchor_included, bool):
        raise ClientConfigurationError("anchor_included", anchor_included, "give True or False")
    return int(anchor_included)


def _name(field: str, value: Any) -> str:
    if isinstance(value, str) and 1 <= len(value) <= _LONGEST_NAME and value.isprintable():
        return value
    remedy = f"give printable text of 1 to {_LONGEST_NAME} characters"
    raise ClientConfigurationError(field, value, remedy)


def _delay(field: str, value: Any) -> float:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or value < 0.0:
        raise ClientConfigurationError(field, value, "give a number of seconds")
    return float(value)


def _seconds(field: str, value: Any) -> float:
    if _delay(field, value) == 0.0:
        raise ClientConfigurationError(field, value, "give more than 0 seconds")
    return float(value)


def _segment(value: Any) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ClientConfigurationError("segment", value, "give tags and their values")
    for tag in value:
        if tag not in SEGMENT_TAGS:
            raise ClientConfigurationError("segment", tag, f"tags are {', '.join(SEGMENT_TAGS)}")
    return {tag: _name(f"segment.{tag}", text) for tag, text in value.items()}


def _token(value: Any) -> Callable[[], str | None]:
    if value is None:
        return lambda: None
    if callable(value):
        return value  # type: ignore[no-any-return]  # what it returns is checked with each request
    if not isinstance(value, str) or _TOKEN.fullmatch(value) is None:
        remedy = "give the token as it was printed, or a function that returns it"
        raise ClientConfigurationError("token", type(value).__name__, remedy)
    return lambda: value
