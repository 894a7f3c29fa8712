"""Which SGLang the plugin knows, and what it uses of it."""

from __future__ import annotations

from dspark_calib_client.plugins.common.compatibility import Known, Reliance

__all__ = ["KNOWN", "OBSERVE", "PLANNER"]

_PARTS = "sglang.srt.speculative.dspark_components"
PLANNER = f"{_PARTS}.dspark_planner.DSparkVerifyPlanner.__init__"
OBSERVE = f"{_PARTS}.dspark_observability.DsparkStepObservers.observe_verify_step"

_RELIED_ON = (
    Reliance(
        f"{_PARTS}.dspark_planner",
        "DSparkVerifyPlanner.__init__",
        ("self", "draft_model", "gamma", "device", "tp_rank", "tp_sync"),
        ("self._confidence_head = ", "self._confidence_head.sts_temperatures = "),
    ),
    Reliance(f"{_PARTS}.dspark_planner", "DSparkVerifyPlanner.mode_value", ("self",)),
    Reliance(f"{_PARTS}.dspark_planner", "DSparkVerifyPlanner.is_verify_all", ("self",)),
    Reliance(
        f"{_PARTS}.dspark_observability",
        "DsparkStepObservers.observe_verify_step",
        (
            *("self", "forward_ct", "reqs", "bs", "verify_ids_2d", "layout", "confidence_raw"),
            *("prefix_lens", "draft_block", "correct_len", "cap_trim_lens", "bonus"),
            "verify_token_budget",
        ),
    ),
    Reliance(
        f"{_PARTS}.dspark_observability",
        "DsparkStepObservers.__init__",
        ("planner", "simulate_acc_len"),
        ("self._planner = planner", "self._simulate_acc_len = "),
    ),
    Reliance(
        "sglang.srt.models.dspark",
        "DSparkConfidenceHead.apply_sts",
        ("confidence_raw",),
        ("confidence_raw.float() / self.sts_temperatures",),
    ),
    Reliance(
        "sglang.srt.speculative.spec_tp_sync",
        "SpecTpSync.__init__",
        ("tp_group",),
        ("self._tp_group = tp_group",),
    ),
    Reliance(
        "sglang.srt.distributed.parallel_state",
        "GroupCoordinator.broadcast_object",
        ("self", "obj", "src"),
    ),
    Reliance(
        "sglang.srt.plugins.hook_registry",
        "HookRegistry.register",
        ("target", "hook", "hook_type"),
    ),
)

# The first that hands raw logits to its observers, and the last that was read; both are tested.
KNOWN = Known("SGLang", "sglang", (0, 5, 22), (0, 5, 23), _RELIED_ON)
