"""Which vLLM the plugin knows, and whether the one at hand is what it takes it for.

As for SGLang, the version alone is not believed: what the plugin relies on is looked up in the
source of the installed modules, without importing them.
"""

from __future__ import annotations

import re

from dspark_calib_client.plugins.sglang.compatibility import Reliance, SourceOf, faults_of

__all__ = [
    "ESTIMATOR",
    "HEAD",
    "MANAGER",
    "NEWEST",
    "OLDEST",
    "RELIED_ON",
    "RUNNER",
    "SPECULATOR",
    "faults",
    "version_fault",
]

OLDEST = NEWEST = (0, 33, 0)  # the release that this was read from, and tested against

_GPU = "vllm.v1.worker.gpu"
HEAD = "vllm.model_executor.models.qwen3_dspark"
SPECULATOR = f"{_GPU}.spec_decode.speculator"
ESTIMATOR = f"{_GPU}.spec_decode.acceptance_estimator"
MANAGER = f"{_GPU}.spec_decode.adaptive_verification"
RUNNER = f"{_GPU}.model_runner"

RELIED_ON = (
    Reliance(
        HEAD,
        "DSparkConfidenceHead.forward",
        ("self", "hidden", "markov_embed"),
        ("return self.proj(x).squeeze(-1)",),
    ),
    Reliance(
        f"{_GPU}.spec_decode.dspark.speculator",
        "DSparkSpeculator.load_draft_model",
        ("self",),
        ("self.use_confidence_head = ", "self.use_acceptance_estimator = False"),
    ),
    Reliance(
        f"{_GPU}.spec_decode.dspark.speculator",
        "DSparkSpeculator._sample_sequential",
        ("self", "num_reqs"),
        ("flatten(0, 1)", "confidence.view(num_reqs, n_spec)"),
    ),
    Reliance(
        SPECULATOR,
        "DraftModelSpeculator.load_model",
        ("self", "target_model"),
        ("self.model = ", "self.acceptance_estimator = OnlineAcceptanceEstimator("),
    ),
    Reliance(
        SPECULATOR,
        "DraftModelSpeculator.__init__",
        ("self", "vllm_config", "device"),
        (
            *("self.num_speculative_steps = ", "self.max_num_reqs = ", "self.speculative_config"),
            *("self.draft_token_confidence_probs = ", "self.enable_adaptive_verification = "),
        ),
    ),
    Reliance(
        ESTIMATOR,
        "OnlineAcceptanceEstimator.predict",
        ("self", "logits", "idx_mapping", "draft_step", "confidence_probs", "temperature"),
        ("self.features", "per_token_step=draft_step.dim() > 0"),
    ),
    Reliance(
        MANAGER,
        "AdaptiveVerificationManager.record_confidences",
        ("self", "confidence_probs", "input_batch"),
        ("self._confidence_probs[input_batch.idx_mapping] = ",),
    ),
    Reliance(
        MANAGER,
        "AdaptiveVerificationManager.get_num_tokens",
        ("self", "num_tokens_per_req", "draft_tokens"),
        ("self._batch_budget = ", "self._max_total_logits - num_reqs * self.num_bonus_tokens"),
    ),
    Reliance(
        RUNNER,
        "GPUModelRunner.sample",
        ("self", "hidden_states", "input_batch", "grammar_output"),
    ),
    Reliance(
        RUNNER,
        "GPUModelRunner.sample_tokens",
        ("self",),
        (
            "self.sample(",
            "self.speculator.propose(",
            "self.req_states.draft_tokens[input_batch.idx_mapping] = ",
            "self.adaptive_verification.record_confidences(",
        ),
    ),
    Reliance(
        RUNNER,
        "GPUModelRunner.add_requests",
        ("self", "scheduler_output"),
        ("scheduler_output.scheduled_new_reqs", "sampling_params"),
    ),
    Reliance(
        "vllm.distributed.parallel_state",
        "GroupCoordinator.broadcast_object",
        ("self", "obj", "src"),
    ),
)


def version_fault(version: str) -> str | None:
    """Why this version of vLLM is not one the plugin knows; None where it is."""
    found = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    oldest, newest = (".".join(map(str, end)) for end in (OLDEST, NEWEST))
    known = oldest if oldest == newest else f"{oldest} to {newest}"
    if found is None:
        return f"vLLM {version!r:.40} is no version this plugin can read; it knows {known}"
    if not OLDEST <= tuple(int(part) for part in found.groups()) <= NEWEST:
        return f"vLLM {version} is unknown to this plugin, which knows {known}"
    return None


def faults(source_of: SourceOf) -> list[str]:
    """What the plugin relies on and the source does not have; empty where all is well."""
    return [fault for reliance in RELIED_ON for fault in faults_of(reliance, source_of)]
