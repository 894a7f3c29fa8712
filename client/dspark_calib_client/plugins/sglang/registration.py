"""From SGLang's call to an attached plugin, or one line that says why there is none."""

from __future__ import annotations

import atexit
import logging
import os
from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dspark_calib_client.broadcast import Broadcast
from dspark_calib_client.client import CalibrationClient
from dspark_calib_client.plugins.sglang.agreement import agreed
from dspark_calib_client.plugins.sglang.attachment import Attachment
from dspark_calib_client.plugins.sglang.buffer import NAME, BufferError, install_vector
from dspark_calib_client.plugins.sglang.compatibility import (
    OBSERVE,
    PLANNER,
    faults,
    version_fault,
)
from dspark_calib_client.plugins.sglang.engine import EngineFacts, facts_of
from dspark_calib_client.plugins.sglang.settings import PluginSettings, is_configured
from dspark_calib_client.plugins.sglang.status_file import StatusFile
from dspark_calib_client.telemetry_options import TelemetryOptions

__all__ = ["attach", "attachment_of", "register_hooks", "source_of"]

_LOG = logging.getLogger("dspark_calib_client")
_NAME = "_dspark_calib_attachment"
_PATIENCE = 120.0  # seconds for ranks that load weights at different speeds
_LAST_SECONDS = 2.0  # for rows that wait when the process ends
_ASIDE = "dspark-calib steps aside: %s; SGLang runs as without it"


def register_hooks(environment: Mapping[str, str] = os.environ) -> bool:
    """Register the plugin's hooks with the SGLang of this process; whether it did. Never raises."""
    if not is_configured(environment):
        return False
    try:
        reason = _reason_to_step_aside()
        if reason is None:
            hooks = import_module("sglang.srt.plugins.hook_registry")
            hooks.HookRegistry.register(PLANNER, _after_planner, hooks.HookType.AFTER)
            hooks.HookRegistry.register(OBSERVE, _after_verify_step, hooks.HookType.AFTER)
            return True
    except Exception as error:  # noqa: BLE001  (an engine without us is better than none)
        reason = f"{type(error).__name__}: {error}"
    _LOG.warning(_ASIDE, reason)
    return False


def source_of(module: str) -> str | None:
    """The source of an installed module, which is not imported; None where there is none."""
    try:
        found = find_spec(module)
    except ModuleNotFoundError:
        return None
    if found is None or found.origin is None:
        return None
    return Path(found.origin).read_text(encoding="utf-8")


def attachment_of(planner: Any) -> Attachment | None:
    """What was attached to this planner, if anything."""
    found = getattr(planner, _NAME, None)
    return found if isinstance(found, Attachment) else None


def attach(
    planner: Any,
    *,
    group: Any,
    device: Any,
    environment: Mapping[str, str] = os.environ,
    store: Any = None,
    patience: float = _PATIENCE,
) -> Attachment | None:
    """Attach to a planner that has just been built, on all ranks of its group or on none.

    Args:
        planner: SGLang's ``DSparkVerifyPlanner``; graphs have not been captured yet.
        group: its ``GroupCoordinator``.
        device: where the engine runs.
        environment: the plugin's settings.
        store: key-value store shared by the ranks; None takes that of ``torch.distributed``.
        patience: seconds that rank 0 waits for the others.

    Returns:
        None where the plugin steps aside; why is in the log, and nothing was changed.
    """
    head = planner._confidence_head
    scalar = getattr(head, NAME, None)
    attachment = client = facts = None
    terms, reason = None, "not every rank of this engine has the same settings"
    try:
        # Whatever can fail comes before the ranks agree: afterwards none may stay away.
        facts = facts_of(planner, group, environment)
        settings = PluginSettings.from_environment(environment)
        if head is None:
            raise BufferError(f"this engine runs no confidence head (mode {facts.mode})")
        numbers = install_vector(head, facts.gamma, device)
        client = _client(settings, facts, numbers) if facts.rank == 0 else None
        attachment = Attachment(settings, facts, head, numbers, _broadcast(group), client)
        terms = f"gamma {facts.gamma} every {settings.every} apply {int(settings.apply)}"
    except Exception as error:  # noqa: BLE001  (the other ranks wait for our word)
        reason = f"{type(error).__name__}: {error}"
    if not _all_agree(facts, terms, store, group, patience) or attachment is None:
        if head is not None and scalar is not None:
            setattr(head, NAME, scalar)
        _LOG.warning(_ASIDE, reason)
        return None
    setattr(planner, _NAME, attachment)
    if client is not None and facts is not None:
        _start(client, attachment, settings, facts)
    return attachment


def _reason_to_step_aside() -> str | None:
    try:
        fault = version_fault(version("sglang"))
    except PackageNotFoundError:
        return "SGLang's version cannot be found out"
    if fault is not None:
        return fault
    missing = faults(source_of)
    return f"this SGLang is not as its version says: {missing[0]}" if missing else None


def _after_planner(result: Any, planner: Any, *args: Any, **arguments: Any) -> None:
    try:
        attach(planner, group=arguments["tp_sync"]._tp_group, device=arguments["device"])
    except Exception:  # noqa: BLE001  (an engine without us is better than none)
        _LOG.exception(_ASIDE, "it could not attach")


def _after_verify_step(result: Any, observers: Any, *args: Any, **step: Any) -> None:
    try:
        attachment = getattr(observers._planner, _NAME, None)
        if attachment is not None:
            attachment.at_verify_step(observers, step)
    except Exception:  # noqa: BLE001  (called from the engine's step)
        _LOG.exception("a verify step could not be observed")


def _all_agree(
    facts: EngineFacts | None, terms: str | None, store: Any, group: Any, patience: float
) -> bool:
    if facts is None or facts.ranks == 1:
        return terms is not None
    try:
        if store is None:
            import torch.distributed.distributed_c10d as collectives

            store = collectives._get_default_store()
        return agreed(
            store,
            facts.group_name,
            rank=facts.rank,
            size=facts.ranks,
            terms=terms,
            patience=patience,
        )
    except Exception:  # noqa: BLE001  (no agreement, no plugin)
        _LOG.exception("the ranks could not agree")
        return False


def _broadcast(group: Any) -> Broadcast:
    """The engine's own broadcast between hosts, in the form that the client calls."""
    if group.world_size == 1:
        return lambda box: None

    def broadcast(box: list[Any]) -> None:
        box[0] = group.broadcast_object(box[0], src=0)

    return broadcast


def _client(
    settings: PluginSettings, facts: EngineFacts, numbers: tuple[float, ...]
) -> CalibrationClient:
    engine = settings.engine_id
    if facts.replica is not None:
        engine = f"{engine}-dp{facts.replica}"
    state_file = None
    if settings.state_dir is not None:
        state_file = Path(settings.state_dir, f"{settings.drafter}-{engine}.lkg")
    return CalibrationClient(
        settings.url,
        settings.drafter,
        facts.gamma,
        settings.key,
        token=settings.token,
        engine_id=engine,
        state_file=state_file,
        baked_in=None
        if set(numbers) == {1.0}
        else {"temperatures": numbers, "revision": facts.file_revision},
        interval=settings.interval,
        wait=settings.wait,
        anchor_included=False,
        telemetry=TelemetryOptions(share=settings.telemetry_share),
    )


def _start(
    client: CalibrationClient, attachment: Attachment, settings: PluginSettings, facts: EngineFacts
) -> None:
    client.start()
    atexit.register(client.stop, _LAST_SECONDS)
    if settings.status_file is not None:
        path = Path(settings.status_file)
        if facts.replica is not None:
            path = path.with_name(f"{path.stem}-dp{facts.replica}{path.suffix}")
        StatusFile(path, attachment.status).start()
    _LOG.info(
        "dspark-calib attached: drafter %s, gamma %d, mode %s, %d rank(s), %s",
        *(settings.drafter, facts.gamma, facts.mode, facts.ranks),
        "applying temperatures"
        if settings.apply and not facts.collecting
        else "only sending telemetry",
    )
