"""From an engine that is starting to an attached plugin, or to one line that says why not.

What is the same for all engines; hooks, facts and how a step is counted are theirs.
"""

from __future__ import annotations

import atexit
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from dspark_calib_client.broadcast import Broadcast
from dspark_calib_client.client import CalibrationClient
from dspark_calib_client.errors import ClientError
from dspark_calib_client.plugins.common.agreement import agreed
from dspark_calib_client.plugins.common.attachment import RankAttachment
from dspark_calib_client.plugins.common.compatibility import AsideError, Known, check_installed
from dspark_calib_client.plugins.common.settings import PREFIX, PluginSettings, is_configured
from dspark_calib_client.plugins.common.status_file import StatusFile, status_path
from dspark_calib_client.telemetry_options import TelemetryOptions

__all__ = [
    "PATIENCE",
    "Place",
    "all_agree",
    "attached",
    "broadcast_of",
    "client_of",
    "registered",
    "start",
    "step_aside",
]

_LOG = logging.getLogger("dspark_calib_client")
PATIENCE = 120.0  # seconds for ranks that load weights at different speeds
_LAST_SECONDS = 4.0  # for rows that wait when the process ends
_UNEQUAL = "not every rank of this engine has the same settings"
_ALIKE = "install the client and set the same variables on every node"
Place = Any
"""An engine's facts, as far as they say where in it a rank stands: ``gamma``, ``rank``, ``ranks``,
``group_name`` and ``replica`` (data-parallel rank; None where there is one replica)."""
Attached = TypeVar("Attached", bound=RankAttachment)


def registered(
    known: Known, environment: Mapping[str, str], register: Callable[[], object]
) -> bool:
    """Whether the plugin hooks into the engine of this process; never raises.

    Args:
        known: what it knows of that engine.
        environment: its settings; without an address of a service nothing happens.
        register: puts the hooks in.
    """
    if not is_configured(environment):
        return False
    try:
        check_installed(known)
        register()
        return True
    except Exception as error:  # noqa: BLE001  (an engine without us is better than none)
        step_aside(known, error, environment)
        return False


def attached(
    known: Known,
    environment: Mapping[str, str],
    facts_of: Callable[[], Place],
    make: Callable[[PluginSettings, Any], Attached],
    *,
    name: str = "",
    store: Any = None,
    patience: float = PATIENCE,
) -> Attached | None:
    """The plugin on this rank, if it is on every rank of the engine; None where it steps aside.

    Args:
        known: whose plugin it is.
        environment: its settings.
        facts_of: finds out where this rank stands.
        make: the attachment, from settings and facts.
        name: of the agreement, where an engine makes several.
        store: key-value store shared by the ranks; None takes that of ``torch.distributed``.
        patience: seconds that rank 0 waits for the others.
    """
    attachment = place = None
    reason: Exception = AsideError(_UNEQUAL, _ALIKE)
    try:
        # Whatever can fail comes before the ranks agree: afterwards none may stay away.
        place = facts_of()
        attachment = make(PluginSettings.from_environment(environment), place)
    except Exception as error:  # noqa: BLE001  (the other ranks wait for our word)
        reason = error
    terms = None if attachment is None else attachment.terms
    if not all_agree(place, terms, name=name, store=store, patience=patience):
        attachment = None
    if attachment is None:
        step_aside(known, reason, environment, place)
    return attachment


def all_agree(
    place: Place | None,
    terms: str | None,
    *,
    name: str = "",
    store: Any = None,
    patience: float = PATIENCE,
) -> bool:
    """Whether every rank of the engine is about to do the same; never raises.

    Args:
        place: of this rank; None where not even that could be found out.
        terms: what this rank is about to do; None where it cannot take part.
        name: of this agreement, where an engine makes several.
        store: key-value store shared by the ranks; None takes that of ``torch.distributed``.
        patience: seconds that rank 0 waits for the others.
    """
    if place is None or place.ranks == 1:
        return terms is not None
    try:
        if store is None:
            import torch.distributed.distributed_c10d as collectives

            store = collectives._get_default_store()
        return agreed(
            store,
            f"{place.group_name}{name}",
            rank=place.rank,
            size=place.ranks,
            terms=terms,
            patience=patience,
        )
    except Exception:  # noqa: BLE001  (no agreement, no plugin)
        _LOG.exception("the ranks could not agree")
        return False


def broadcast_of(group: Any) -> Broadcast:
    """An engine's own broadcast between hosts, in the form that the client calls.

    Args:
        group: its ``GroupCoordinator``, which SGLang and vLLM have alike.
    """
    if group.world_size == 1:
        return lambda box: None

    def broadcast(box: list[Any]) -> None:
        box[0] = group.broadcast_object(box[0], src=0)

    return broadcast


def client_of(
    settings: PluginSettings, place: Place, baked_in: Mapping[str, Any] | None = None
) -> CalibrationClient:
    """The client of rank 0.

    Args:
        settings: of this process.
        place: of this rank.
        baked_in: numbers that the engine started with.

    Raises:
        ClientConfigurationError: naming what cannot be used.
    """
    engine = settings.engine_id
    if place.replica is not None:
        engine = f"{engine}-dp{place.replica}"
    state_file = None
    if settings.state_dir is not None:
        state_file = Path(settings.state_dir, f"{settings.drafter}-{engine}.lkg")
    return CalibrationClient(
        settings.url,
        settings.drafter,
        place.gamma,
        settings.key,
        token=settings.token,
        engine_id=engine,
        state_file=state_file,
        baked_in=baked_in,
        interval=settings.interval,
        wait=settings.wait,
        anchor_included=False,
        telemetry=TelemetryOptions(share=settings.telemetry_share),
    )


def start(attachment: RankAttachment, *shown: object) -> None:
    """Begin to poll, to send and to say so; does nothing on other ranks than 0.

    Args:
        attachment: the plugin on this rank.
        *shown: facts for the line in the log.
    """
    settings, place = attachment.settings, attachment.place
    if place.rank != 0:
        return
    attachment.start()
    atexit.register(attachment.stop, _LAST_SECONDS)
    if settings.status_file is not None:
        path = status_path(settings.status_file, place.replica)
        StatusFile(path, attachment.status).start()
    _LOG.info(
        "dspark-calib attached: drafter %s, gamma %d, %s, %d rank(s), %s",
        *(settings.drafter, place.gamma, ", ".join(map(str, shown)), place.ranks),
        "applying numbers" if attachment.applies else "only sending telemetry",
    )


def step_aside(
    known: Known,
    error: Exception,
    environment: Mapping[str, str] = os.environ,
    place: Place | None = None,
) -> None:
    """Say why in one line, and leave word for ``dspark-calib doctor``; never raises.

    Args:
        known: whose plugin it is.
        error: why; its traceback is shown where nobody expected it.
        environment: the plugin's settings, which may be what is wrong.
        place: of this rank; None where it is not known. Rank 0 speaks for the others.
    """
    remedy = getattr(error, "remedy", None)
    expected = isinstance(error, (AsideError, ClientError))
    reason = str(error) if expected else f"{type(error).__name__}: {error}"
    reason = reason.removesuffix(f"; {remedy}")
    _LOG.warning(
        "dspark-calib steps aside: %s; %s runs as without it",
        *(reason if remedy is None else f"{reason}: {remedy}", known.engine),
        exc_info=None if expected else error,
    )
    named = environment.get(f"{PREFIX}STATUS_FILE", "").strip()
    if not named or (place is not None and place.rank != 0):
        return
    told = {"engine": known.package, "attached": False, "reason": reason, "remedy": remedy}
    StatusFile(status_path(named, None if place is None else place.replica), lambda: told).write()
