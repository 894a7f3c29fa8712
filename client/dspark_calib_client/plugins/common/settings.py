"""The plugin's settings: environment variables, because an engine has no other place for them.

``DSPARK_CALIB_URL``              address of the service; without it the plugin does nothing
``DSPARK_CALIB_DRAFTER``          name under which the drafter is registered
``DSPARK_CALIB_KEY``              digest of the calibration key, from ``GET /v1/drafters/{drafter}``
``DSPARK_CALIB_KEY_FILE``         or a JSON file with the key's fields
``DSPARK_CALIB_TOKEN``            bearer token
``DSPARK_CALIB_TOKEN_FILE``       or a file with it, read again at every call
``DSPARK_CALIB_ENGINE_ID``        unique in the fleet, stable over restarts (host name)
``DSPARK_CALIB_STATE_DIR``        folder for the last-known-good file; without it there is none
``DSPARK_CALIB_STATUS_FILE``      JSON file that says what the plugin does; without it there is none
``DSPARK_CALIB_FORM``             ``affine`` (slopes and intercepts where an answer has them) or
                                  ``temperatures``; an engine that can do one of them only says so
``DSPARK_CALIB_APPLY``            0: only send telemetry, never change temperatures (1)
``DSPARK_CALIB_TELEMETRY_SHARE``  share of requests that send rows, 0 to 1 (1)
``DSPARK_CALIB_BROADCAST_STEPS``  decode steps between two looks for news, equal on all ranks (32)
``DSPARK_CALIB_INTERVAL``         seconds between polls (30)
``DSPARK_CALIB_WAIT``             seconds for which the service may hold a poll, at most 60 (30)
``DSPARK_CALIB_DOMAIN_KEY``       key that holds a request's domain (``dspark_domain``), in
                                  ``custom_params`` of SGLang and ``vllm_xargs`` of vLLM
``DSPARK_CALIB_TENANT_KEY``       the same for its tenant (``dspark_tenant``)
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dspark_calib_client.errors import ClientConfigurationError

if TYPE_CHECKING:
    from typing import Union

    Key = Union[str, Mapping[str, Any], None]
    TokenSource = Union[str, Callable[[], "str | None"], None]

__all__ = ["FORMS", "PREFIX", "PluginSettings", "is_configured"]

PREFIX = "DSPARK_CALIB_"
FORMS = ("affine", "temperatures")
_MOST_STEPS = 100_000


def is_configured(environment: Mapping[str, str]) -> bool:
    """Whether the environment names a service."""
    return bool(environment.get(f"{PREFIX}URL", "").strip())


@dataclass(frozen=True)
class PluginSettings:
    """Settings of one process, read once.

    Attributes are the variables in the module's documentation, in their order; ``every`` is
    ``DSPARK_CALIB_BROADCAST_STEPS``, and ``form`` is None where none is asked for. A token is never
    shown.

    Raises:
        ClientConfigurationError: naming the variable, its value and the remedy.
    """

    url: str
    drafter: str
    key: Key
    token: TokenSource
    engine_id: str
    state_dir: str | None
    status_file: str | None
    form: str | None
    apply: bool
    telemetry_share: float
    every: int
    interval: float
    wait: int
    domain_key: str
    tenant_key: str

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> PluginSettings:
        """Settings in these variables.

        Raises:
            ClientConfigurationError: naming the variable, its value and the remedy.
        """

        def text(name: str, absent: str | None = None) -> str | None:
            return environment.get(PREFIX + name, "").strip() or absent

        def needed(name: str) -> str:
            found = text(name)
            if found is None:
                raise ClientConfigurationError(PREFIX + name, None, "set it")
            return found

        return cls(
            url=needed("URL"),
            drafter=needed("DRAFTER"),
            key=_key(text("KEY"), text("KEY_FILE")),
            token=_token(text("TOKEN"), text("TOKEN_FILE")),
            engine_id=text("ENGINE_ID") or socket.gethostname() or "engine",
            state_dir=text("STATE_DIR"),
            status_file=text("STATUS_FILE"),
            form=_form(text("FORM")),
            apply=_number("APPLY", text("APPLY", "1"), 0, 1, whole=True) == 1,
            telemetry_share=_number("TELEMETRY_SHARE", text("TELEMETRY_SHARE", "1"), 0, 1),
            every=int(
                _number(
                    "BROADCAST_STEPS", text("BROADCAST_STEPS", "32"), 1, _MOST_STEPS, whole=True
                )
            ),
            interval=_number("INTERVAL", text("INTERVAL", "30"), 0.001, 86_400),
            wait=int(_number("WAIT", text("WAIT", "30"), 0, 60, whole=True)),
            domain_key=text("DOMAIN_KEY") or "dspark_domain",
            tenant_key=text("TENANT_KEY") or "dspark_tenant",
        )

    def __repr__(self) -> str:
        return f"PluginSettings(url={self.url!r}, drafter={self.drafter!r})"


def _number(
    name: str, text: str | None, least: float, most: float, *, whole: bool = False
) -> float:
    try:
        value = float(int(text or "") if whole else text or "")
    except ValueError:
        value = float("nan")
    if not least <= value <= most:
        kind = "a whole number" if whole else "a number"
        remedy = f"give {kind} from {least:g} to {most:g}"
        raise ClientConfigurationError(PREFIX + name, text, remedy)
    return value


def _form(word: str | None) -> str | None:
    if word is not None and word not in FORMS:
        raise ClientConfigurationError(f"{PREFIX}FORM", word, f"give one of {', '.join(FORMS)}")
    return word


def _key(digest: str | None, file: str | None) -> Key:
    if file is None:
        return digest
    if digest is not None:
        raise ClientConfigurationError(f"{PREFIX}KEY_FILE", file, f"leave out {PREFIX}KEY then")
    try:
        found = json.loads(Path(file).read_bytes())
    except (OSError, ValueError) as error:
        raise ClientConfigurationError(f"{PREFIX}KEY_FILE", file, str(error)) from error
    if isinstance(found, dict) and isinstance(found.get("key"), dict):
        found = found["key"]  # a drafter as the service shows it
    if not isinstance(found, dict):
        raise ClientConfigurationError(f"{PREFIX}KEY_FILE", file, "give a JSON object")
    return found


def _token(token: str | None, file: str | None) -> TokenSource:
    if file is None or token is not None:
        return token
    return lambda: Path(file).read_text(encoding="utf-8").strip() or None
