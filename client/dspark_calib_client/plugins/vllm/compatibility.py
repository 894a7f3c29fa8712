"""Which vLLM the plugin knows, and what it uses of it."""

from __future__ import annotations

from dspark_calib_client.plugins.common.compatibility import Known, Reliance

__all__ = ["ESTIMATOR", "HEAD", "KNOWN", "MANAGER", "RUNNER", "SPECULATOR"]

_GPU = "vllm.v1.worker.gpu"
HEAD = "vllm.model_executor.models.qwen3_dspark"
SPECULATOR = f"{_GPU}.spec_decode.speculator"
ESTIMATOR = f"{_GPU}.spec_decode.acceptance_estimator"
MANAGER = f"{_GPU}.spec_decode.adaptive_verification"
RUNNER = f"{_GPU}.model_runner"

_RELIED_ON = (
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

# The release that this was read from, and is tested against.
KNOWN = Known("vLLM", "vllm", (0, 33, 0), (0, 33, 0), _RELIED_ON)
