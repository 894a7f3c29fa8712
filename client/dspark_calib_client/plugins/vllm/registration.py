"""From vLLM's call to an attached plugin, or one line that says why there is none."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Mapping
from importlib import import_module
from types import ModuleType
from typing import Any

from dspark_calib_client.plugins.common import joining
from dspark_calib_client.plugins.common.compatibility import reason_to_step_aside
from dspark_calib_client.plugins.common.settings import FORMS, PluginSettings, is_configured
from dspark_calib_client.plugins.vllm import compatibility
from dspark_calib_client.plugins.vllm.attachment import Attachment
from dspark_calib_client.plugins.vllm.engine import facts_of, reason_not_to_attach
from dspark_calib_client.plugins.vllm.patches import install, wrap

__all__ = ["attach", "attachment_of", "register_hooks"]

_LOG = logging.getLogger("dspark_calib_client")
_NAME = "_dspark_calib"
_ASIDE = "dspark-calib steps aside: %s; vLLM runs as without it"
_AGREEMENTS = itertools.count(1)  # drafters loaded by this process; counted alike on every rank


def register_hooks(environment: Mapping[str, str] = os.environ) -> bool:
    """Have vLLM's modules wrapped when they are imported; whether they will be. Never raises."""
    if not is_configured(environment):
        return False
    try:
        reason = reason_to_step_aside(compatibility.KNOWN)
        if reason is None:
            install(
                {
                    compatibility.HEAD: hook_head,
                    compatibility.SPECULATOR: hook_speculator,
                    compatibility.ESTIMATOR: hook_estimator,
                    compatibility.MANAGER: hook_manager,
                    compatibility.RUNNER: hook_runner,
                }
            )
            return True
    except Exception as error:  # noqa: BLE001  (an engine without us is better than none)
        reason = f"{type(error).__name__}: {error}"
    _LOG.warning(_ASIDE, reason)
    return False


def attachment_of(speculator: Any) -> Attachment | None:
    """What was attached to this speculator, if anything."""
    found = getattr(speculator, _NAME, None)
    return found if isinstance(found, Attachment) else None


def attach(
    speculator: Any,
    *,
    group: Any,
    environment: Mapping[str, str] = os.environ,
    store: Any = None,
    patience: float = joining.PATIENCE,
) -> Attachment | None:
    """Attach to a speculator that has just loaded its model, on all ranks of its group or none.

    Args:
        speculator: vLLM's; graphs have not been captured yet.
        group: its tensor-parallel ``GroupCoordinator``.
        environment: the plugin's settings.
        store: key-value store shared by the ranks; None takes that of ``torch.distributed``.
        patience: seconds that rank 0 waits for the others.

    Returns:
        None where the plugin steps aside; why is in the log, and nothing was changed.
    """
    attachment = facts = settings = None
    terms, reason = None, "not every rank of this engine has the same settings"
    try:
        # Whatever can fail comes before the ranks agree: afterwards none may stay away.
        facts = facts_of(speculator, group)
        settings = PluginSettings.from_environment(environment)
        found = reason_not_to_attach(speculator)
        if found is not None:
            raise _AsideError(found)
        attachment = Attachment(
            settings,
            facts,
            speculator.device,
            joining.broadcast_of(group),
            joining.client_of(settings, facts) if facts.rank == 0 else None,
            getattr(speculator, "acceptance_estimator", None),
        )
        terms = (
            f"gamma {facts.gamma} source {facts.source} every {settings.every} "
            f"apply {int(settings.apply)} form {settings.form or FORMS[0]}"
        )
    except _AsideError as error:
        reason = str(error)
    except Exception as error:  # noqa: BLE001  (the other ranks wait for our word)
        reason = f"{type(error).__name__}: {error}"
    name = f"-{next(_AGREEMENTS)}"
    agreed = joining.all_agree(facts, terms, name=name, store=store, patience=patience)
    if not agreed or attachment is None or facts is None or settings is None:
        _LOG.warning(_ASIDE, reason)
        joining.tell_aside("vllm", settings, facts, reason)
        return None
    _bind(speculator, attachment)
    if facts.rank == 0:
        joining.start(attachment, settings, facts, f"source {facts.source}")
    return attachment


def hook_head(module: ModuleType) -> None:
    """Wrap the confidence head of every DSpark model."""
    wrap(module.DSparkConfidenceHead, "forward", _head_forward)


def hook_speculator(module: ModuleType) -> None:
    """Attach where a drafter has been loaded."""
    wrap(module.DraftModelSpeculator, "load_model", _load_model)


def hook_estimator(module: ModuleType) -> None:
    """Wrap vLLM's own estimate of acceptance."""
    wrap(module.OnlineAcceptanceEstimator, "predict", _predict)


def hook_manager(module: ModuleType) -> None:
    """Wrap what sizes a step's verification, and what records new confidences."""
    manager = module.AdaptiveVerificationManager
    wrap(manager, "get_num_tokens", _get_num_tokens)
    wrap(manager, "record_confidences", _record_confidences)


def hook_runner(module: ModuleType) -> None:
    """Wrap the worker's verification, and its list of requests."""
    runner = module.GPUModelRunner
    wrap(runner, "sample", _sample)
    wrap(runner, "add_requests", _add_requests)


class _AsideError(Exception):
    """There is nothing to calibrate here."""


def _head_forward(original: Any, head: Any, *args: Any, **kwargs: Any) -> Any:
    logits = original(head, *args, **kwargs)
    attachment = getattr(head, _NAME, None)
    if attachment is None:
        return logits
    try:
        return attachment.source.serve(logits)
    except Exception:  # noqa: BLE001  (a draft without us is better than none)
        _LOG.exception("confidence logits could not be served; they stay raw")
        return logits


def _load_model(original: Any, speculator: Any, *args: Any, **kwargs: Any) -> Any:
    result = original(speculator, *args, **kwargs)
    try:
        state = import_module("vllm.distributed.parallel_state")
        attach(speculator, group=state.get_tp_group())
    except Exception:  # noqa: BLE001  (an engine without us is better than none)
        _LOG.exception(_ASIDE, "it could not attach")
    return result


def _predict(original: Any, estimator: Any, *args: Any, **kwargs: Any) -> Any:
    result = original(estimator, *args, **kwargs)
    attachment = getattr(estimator, _NAME, None)
    if attachment is not None:
        try:
            named = dict(zip(("logits", "idx_mapping", "draft_step", "confidence_probs"), args))
            named.update(kwargs)
            attachment.source.after_predict(
                named["idx_mapping"], named["draft_step"], named["confidence_probs"]
            )
        except Exception:  # noqa: BLE001  (a draft without us is better than none)
            _LOG.exception("served numbers could not be put over vLLM's estimate")
    return result


def _get_num_tokens(original: Any, manager: Any, tokens: Any, drafts: Any) -> Any:
    chosen = original(manager, tokens, drafts)
    attachment = getattr(manager, _NAME, None)
    try:
        return chosen if attachment is None else attachment.budget(manager, chosen, drafts)
    except Exception:  # noqa: BLE001  (called from the engine's step)
        _LOG.exception("a step could not explore")
        return chosen


def _record_confidences(original: Any, manager: Any, probabilities: Any, input_batch: Any) -> Any:
    result = original(manager, probabilities, input_batch)
    attachment = getattr(manager, _NAME, None)
    if attachment is not None:
        attachment.after_draft(input_batch)
    return result


def _sample(original: Any, runner: Any, hidden: Any, input_batch: Any, grammar: Any) -> Any:
    result = original(runner, hidden, input_batch, grammar)
    attachment = attachment_of(getattr(runner, "speculator", None))
    if attachment is not None:
        manager = runner.adaptive_verification
        if manager is not None and getattr(manager, _NAME, None) is not attachment:
            setattr(manager, _NAME, attachment)
        attachment.after_sample(runner, input_batch, result)
    return result


def _add_requests(original: Any, runner: Any, scheduler_output: Any) -> Any:
    result = original(runner, scheduler_output)
    attachment = attachment_of(getattr(runner, "speculator", None))
    if attachment is not None:
        attachment.add_requests(
            scheduler_output.scheduled_new_reqs, runner.req_states.req_id_to_index
        )
    return result


def _bind(speculator: Any, attachment: Attachment) -> None:
    setattr(speculator, _NAME, attachment)
    if attachment.facts.source == "head":
        object.__setattr__(speculator.model.model.confidence_head, _NAME, attachment)
    else:
        setattr(speculator.acceptance_estimator, _NAME, attachment)
