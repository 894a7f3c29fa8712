"""From SGLang's call to an attached plugin, or one line that says why there is none."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from dspark_calib_client.plugins.common import joining
from dspark_calib_client.plugins.common.compatibility import AsideError
from dspark_calib_client.plugins.common.settings import PREFIX, PluginSettings
from dspark_calib_client.plugins.sglang.attachment import Attachment
from dspark_calib_client.plugins.sglang.buffer import NAME, install_vector
from dspark_calib_client.plugins.sglang.compatibility import KNOWN, OBSERVE, PLANNER
from dspark_calib_client.plugins.sglang.engine import EngineFacts, facts_of

__all__ = ["attach", "attachment_of", "register_hooks"]

_LOG = logging.getLogger("dspark_calib_client")
_NAME = "_dspark_calib_attachment"
_MODES = "set SGLANG_RAGGED_VERIFY_MODE=compact, or cap-accept"
_NO_AFFINE = (
    f"{PREFIX}FORM=affine has no effect on SGLang, whose head divides logits and adds nothing: "
    "temperatures are applied"
)


def register_hooks(environment: Mapping[str, str] = os.environ) -> bool:
    """Register the plugin's hooks with the SGLang of this process; whether it did. Never raises."""

    def register() -> None:
        hooks = import_module("sglang.srt.plugins.hook_registry")
        hooks.HookRegistry.register(PLANNER, _after_planner, hooks.HookType.AFTER)
        hooks.HookRegistry.register(OBSERVE, _after_verify_step, hooks.HookType.AFTER)

    return joining.registered(KNOWN, environment, register)


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
    patience: float = joining.PATIENCE,
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

    def make(settings: PluginSettings, facts: EngineFacts) -> Attachment:
        if head is None:
            raise AsideError(f"this engine runs no confidence head (mode {facts.mode})", _MODES)
        numbers = install_vector(head, facts.gamma, device)
        own = None
        if set(numbers) != {1.0}:
            own = {"temperatures": numbers, "revision": facts.file_revision}
        client = joining.client_of(settings, facts, own) if facts.rank == 0 else None
        return Attachment(settings, facts, head, numbers, joining.broadcast_of(group), client)

    attachment = joining.attached(
        *(KNOWN, environment, lambda: facts_of(planner, group, environment), make),
        store=store,
        patience=patience,
    )
    if attachment is None:
        if scalar is not None:
            setattr(head, NAME, scalar)
        return None
    setattr(planner, _NAME, attachment)
    if attachment.place.rank == 0 and attachment.settings.form == "affine":
        _LOG.warning(_NO_AFFINE)
    joining.start(attachment, f"mode {attachment.place.mode}")
    return attachment


def _after_planner(result: Any, planner: Any, *args: Any, **arguments: Any) -> None:
    try:
        attach(planner, group=arguments["tp_sync"]._tp_group, device=arguments["device"])
    except Exception as error:  # noqa: BLE001  (an engine without us is better than none)
        joining.step_aside(KNOWN, error)


def _after_verify_step(result: Any, observers: Any, *args: Any, **step: Any) -> None:
    try:
        attachment = getattr(observers._planner, _NAME, None)
        if attachment is not None:
            attachment.at_verify_step(observers, step)
    except Exception:  # noqa: BLE001  (called from the engine's step)
        _LOG.exception("a verify step could not be observed")
