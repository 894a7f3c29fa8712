"""From SGLang's call to an attached plugin, or one line that says why there is none."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from dspark_calib_client.plugins.common import joining
from dspark_calib_client.plugins.common.compatibility import reason_to_step_aside
from dspark_calib_client.plugins.common.settings import PREFIX, PluginSettings, is_configured
from dspark_calib_client.plugins.sglang.attachment import Attachment
from dspark_calib_client.plugins.sglang.buffer import NAME, BufferError, install_vector
from dspark_calib_client.plugins.sglang.compatibility import KNOWN, OBSERVE, PLANNER
from dspark_calib_client.plugins.sglang.engine import facts_of

__all__ = ["attach", "attachment_of", "register_hooks"]

_LOG = logging.getLogger("dspark_calib_client")
_NAME = "_dspark_calib_attachment"
_ASIDE = "dspark-calib steps aside: %s; SGLang runs as without it"
_NO_AFFINE = (
    f"{PREFIX}FORM=affine has no effect on SGLang, whose head divides logits and adds nothing: "
    "temperatures are applied"
)


def register_hooks(environment: Mapping[str, str] = os.environ) -> bool:
    """Register the plugin's hooks with the SGLang of this process; whether it did. Never raises."""
    if not is_configured(environment):
        return False
    try:
        reason = reason_to_step_aside(KNOWN)
        if reason is None:
            hooks = import_module("sglang.srt.plugins.hook_registry")
            hooks.HookRegistry.register(PLANNER, _after_planner, hooks.HookType.AFTER)
            hooks.HookRegistry.register(OBSERVE, _after_verify_step, hooks.HookType.AFTER)
            return True
    except Exception as error:  # noqa: BLE001  (an engine without us is better than none)
        reason = f"{type(error).__name__}: {error}"
    _LOG.warning(_ASIDE, reason)
    return False


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
    attachment = facts = settings = None
    terms, reason = None, "not every rank of this engine has the same settings"
    try:
        # Whatever can fail comes before the ranks agree: afterwards none may stay away.
        facts = facts_of(planner, group, environment)
        settings = PluginSettings.from_environment(environment)
        if head is None:
            raise BufferError(f"this engine runs no confidence head (mode {facts.mode})")
        numbers = install_vector(head, facts.gamma, device)
        own = None
        if set(numbers) != {1.0}:
            own = {"temperatures": numbers, "revision": facts.file_revision}
        client = joining.client_of(settings, facts, own) if facts.rank == 0 else None
        broadcast = joining.broadcast_of(group)
        attachment = Attachment(settings, facts, head, numbers, broadcast, client)
        terms = f"gamma {facts.gamma} every {settings.every} apply {int(settings.apply)}"
    except Exception as error:  # noqa: BLE001  (the other ranks wait for our word)
        reason = f"{type(error).__name__}: {error}"
    agreed = joining.all_agree(facts, terms, store=store, patience=patience)
    if not agreed or attachment is None or facts is None or settings is None:
        if head is not None and scalar is not None:
            setattr(head, NAME, scalar)
        _LOG.warning(_ASIDE, reason)
        joining.tell_aside("sglang", settings, facts, reason)
        return None
    setattr(planner, _NAME, attachment)
    if facts.rank == 0:
        if settings.form == "affine":
            _LOG.warning(_NO_AFFINE)
        joining.start(attachment, settings, facts, f"mode {facts.mode}")
    return attachment


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
