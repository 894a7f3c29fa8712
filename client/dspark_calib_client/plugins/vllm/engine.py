"""What the plugin asks of the vLLM around it, in one place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dspark_calib_client.plugins.common.compatibility import AsideError

__all__ = ["EngineFacts", "check_calibrates", "facts_of"]

_RULES = {"standard": "rejection", "block": "block"}


@dataclass(frozen=True)
class EngineFacts:
    """The engine as it is when its drafter has been loaded.

    Attributes:
        gamma: draft positions it runs, never taken from the checkpoint.
        source: ``head`` or ``max_log_odds``.
        most_requests: rows of its persistent batch.
        rank: of this process among those that decide together.
        ranks: how many those are.
        group_name: the same on all of them, and different from other groups.
        replica: data-parallel rank; None where there is one replica.
        method: vLLM's name of the speculation method.
        block_rule: whether sampled requests are verified as blocks.
        greedy_draft: whether all drafts are the drafter's likeliest tokens.
        forced: whether acceptance is synthetic, or follows a rule that is none of ours.
    """

    gamma: int
    source: str
    most_requests: int
    rank: int
    ranks: int
    group_name: str
    replica: int | None
    method: str
    block_rule: bool
    greedy_draft: bool
    forced: bool


def check_calibrates(speculator: Any) -> None:
    """Pass where there is something to calibrate in this engine.

    Raises:
        AsideError: there is not.
    """
    if not getattr(speculator, "enable_adaptive_verification", False):
        reason = "adaptive verification is off, so nothing reads a confidence"
        remedy = 'set "enable_adaptive_verification": true in --speculative-config'
        raise AsideError(reason, remedy)
    head = getattr(getattr(speculator.model, "model", None), "confidence_head", None)
    used = getattr(speculator, "use_confidence_head", False) and head is not None
    if not used and getattr(speculator, "acceptance_estimator", None) is None:
        raise AsideError("this drafter has neither a confidence head nor an acceptance estimator")
    parallel = speculator.vllm_config.parallel_config
    if int(getattr(parallel, "prefill_context_parallel_size", 1)) > 1:
        reason = "prefill context parallelism is not known to this plugin"
        raise AsideError(reason, "set prefill_context_parallel_size to 1")


def facts_of(speculator: Any, group: Any) -> EngineFacts:
    """Facts from a speculator that has just loaded its model, and its tensor-parallel group."""
    spec = speculator.speculative_config
    parallel = speculator.vllm_config.parallel_config
    replicas = int(getattr(parallel, "data_parallel_size", 1))
    method = str(getattr(spec, "rejection_sample_method", "standard"))
    used_head = bool(getattr(speculator, "use_confidence_head", False))
    return EngineFacts(
        gamma=int(speculator.num_speculative_steps),
        source="head" if used_head else "max_log_odds",
        most_requests=int(speculator.max_num_reqs),
        rank=int(group.rank_in_group),
        ranks=int(group.world_size),
        group_name="vllm-" + "-".join(str(rank) for rank in getattr(group, "ranks", [0])),
        replica=int(parallel.data_parallel_rank) if replicas > 1 else None,
        method=str(getattr(spec, "method", "dspark")),
        block_rule=method == "block",
        greedy_draft=str(getattr(spec, "draft_sample_method", "greedy")) == "greedy",
        forced=method not in _RULES,
    )
