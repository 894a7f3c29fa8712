"""From an engine that is starting to an attached plugin: what is the same for all engines."""

from __future__ import annotations

import atexit
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dspark_calib_client.broadcast import Broadcast
from dspark_calib_client.client import CalibrationClient
from dspark_calib_client.plugins.common.agreement import agreed
from dspark_calib_client.plugins.common.attachment import RankAttachment
from dspark_calib_client.plugins.common.settings import PluginSettings
from dspark_calib_client.plugins.common.status_file import StatusFile
from dspark_calib_client.telemetry_options import TelemetryOptions

__all__ = ["PATIENCE", "Place", "all_agree", "broadcast_of", "client_of", "start", "tell_aside"]

_LOG = logging.getLogger("dspark_calib_client")
PATIENCE = 120.0  # seconds for ranks that load weights at different speeds
_LAST_SECONDS = 4.0  # for rows that wait when the process ends
Place = Any
"""An engine's facts, as far as they say where in it a rank stands: ``gamma``, ``rank``, ``ranks``,
``group_name`` and ``replica`` (data-parallel rank; None where there is one replica)."""


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


def start(
    attachment: RankAttachment, settings: PluginSettings, place: Place, *shown: object
) -> None:
    """Begin to poll, to send and to say so; on rank 0.

    Args:
        attachment: the plugin on that rank.
        settings: of this process.
        place: of this rank.
        *shown: facts for the line in the log.
    """
    attachment.start()
    atexit.register(attachment.stop, _LAST_SECONDS)
    file = _status_file(settings, place, attachment.status)
    if file is not None:
        file.start()
    _LOG.info(
        "dspark-calib attached: drafter %s, gamma %d, %s, %d rank(s), %s",
        *(settings.drafter, place.gamma, ", ".join(map(str, shown)), place.ranks),
        "applying numbers" if attachment.applies else "only sending telemetry",
    )


def tell_aside(
    engine: str, settings: PluginSettings | None, place: Place | None, reason: str
) -> None:
    """Leave word for ``dspark-calib doctor``, which otherwise finds nothing; never raises."""
    if settings is None or place is None or place.rank != 0:
        return
    told = {"engine": engine, "attached": False, "reason": reason, "gamma": place.gamma}
    file = _status_file(settings, place, lambda: told)
    if file is not None:
        file.write()


def _status_file(
    settings: PluginSettings, place: Place, status: Callable[[], Mapping[str, Any]]
) -> StatusFile | None:
    if settings.status_file is None:
        return None
    path = Path(settings.status_file)
    if place.replica is not None:
        path = path.with_name(f"{path.stem}-dp{place.replica}{path.suffix}")
    return StatusFile(path, status)
