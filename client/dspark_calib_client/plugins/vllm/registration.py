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
from dspark_calib_client.plugins.common.settings import PluginSettings
from dspark_calib_client.plugins.vllm import compatibility
from dspark_calib_client.plugins.vllm.attachment import Attachment
from dspark_calib_client.plugins.vllm.engine import EngineFacts, check_calibrates, facts_of
from dspark_calib_client.plugins.vllm.patches import install, wrap

__all__ = ["attach", "attachment_of", "register_hooks"]

_LOG = logging.getLogger("dspark_calib_client")
_NAME = "_dspark_calib"
_AGREEMENTS = itertools.count(1)  # drafters loaded by this process; counted alike on every rank


def register_hooks(environment: Mapping[str, str] = os.environ) -> bool:
    """Have vLLM's modules wrapped when they are imported; whether they will be. Never raises."""
    hooks = {
        compatibility.HEAD: hook_head,
        compatibility.SPECULATOR: hook_speculator,
        compatibility.ESTIMATOR: hook_estimator,
        compatibility.MANAGER: hook_manager,
        compatibility.RUNNER: hook_runner,
    }
    return joining.registered(compatibility.KNOWN, environment, lambda: install(hooks))


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

    def make(settings: PluginSettings, facts: EngineFacts) -> Attachment:
        check_calibrates(speculator)
        return Attachment(
            settings,
            facts,
            speculator.device,
            joining.broadcast_of(group),
            joining.client_of(settings, facts) if facts.rank == 0 else None,
            getattr(speculator, "acceptance_estimator", None),
        )

    attachment = joining.attached(
        *(compatibility.KNOWN, environment, lambda: facts_of(speculator, group), make),
        name=f"-{next(_AGREEMENTS)}",
        store=store,
        patience=patience,
    )
    if attachment is None:
        return None
    _bind(speculator, attachment)
    joining.start(attachment, f"source {attachment.facts.source}")
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
    except Exception as error:  # noqa: BLE001  (an engine without us is better than none)
        joining.step_aside(compatibility.KNOWN, error)
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
