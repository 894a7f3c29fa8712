"""Run by the interpreter of SGLang's own environment: its real modules drive the plugin.

Real are the hook registry, the planner with its loader and its head, and the observers. What
stands in: torchvision, which they import and do not use here, and the runtime context, which a
server would have set up. Prints one JSON object.

Arguments: folder of the unpacked wheel, address of a service, drafter, key, γ, an STS file. The
engine is built twice: without a calibration file, and with that one.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import json
import logging
import os
import sys
import time
import types
from types import SimpleNamespace
from typing import Any

PARTS = "sglang.srt.speculative.dspark_components"
SECONDS = 60.0


class _Anything(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return name


class _StandIn(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything(name, (), {})


def stand_in(*names: str) -> None:
    for name in names:
        module = _StandIn(name)
        module.__path__ = []
        module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
        module.__version__ = "0.0"
        sys.modules[name] = module
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)


def context(planner: Any, observability: Any, sts_path: str | None) -> None:
    """What a server's start would have put in place."""
    spec = SimpleNamespace(
        speculative_dspark_align_verify_tokens_to_graph_tier=False,
        speculative_dspark_confidence_sts_path=sts_path,
        speculative_dspark_sps_table_path=None,
        speculative_use_block_verification=False,
    )
    parallel = SimpleNamespace(
        attn_tp_rank=0, attn_tp_size=1, attn_cp_size=1, pp_size=1, attn_dp_size=1, attn_dp_rank=0
    )
    parts = {
        "get_spec": spec,
        "get_parallel": parallel,
        "get_schedule": SimpleNamespace(disable_overlap_schedule=False, max_running_requests=8),
        "get_disagg": SimpleNamespace(disaggregation_mode="null"),
    }
    runtime = importlib.import_module("sglang.srt.runtime_context")
    for module in (planner, observability, runtime):
        for name, part in parts.items():
            if hasattr(module, name):
                setattr(module, name, lambda part=part: part)
    planner.is_dp_attention_enabled = lambda: False


def main() -> None:
    """Attach, step until news has arrived, and say what happened."""
    root, url, drafter, key, gamma, sts_file = sys.argv[1:]
    os.environ.update(
        SGLANG_RAGGED_VERIFY_MODE="compact",
        DSPARK_CALIB_URL=url,
        DSPARK_CALIB_DRAFTER=drafter,
        DSPARK_CALIB_KEY=key,
        DSPARK_CALIB_INTERVAL="0.02",
        DSPARK_CALIB_WAIT="0",
        DSPARK_CALIB_BROADCAST_STEPS="1",
    )
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    sys.path.insert(0, root)
    v2 = "torchvision.transforms.v2"
    stand_in("torchvision", "torchvision.io", "torchvision.ops", "torchvision.transforms", v2)
    stand_in("torchvision.transforms.functional", f"{v2}.functional")

    from dspark_calib_client.plugins.sglang import register, registration

    register()
    registry = importlib.import_module("sglang.srt.plugins.hook_registry").HookRegistry
    registry.apply_hooks()
    planner_module = importlib.import_module(f"{PARTS}.dspark_planner")
    observability = importlib.import_module(f"{PARTS}.dspark_observability")
    found: dict[str, Any] = {"patched": sorted(registry._patched)}
    for name, file in (("plain", None), ("with_file", sts_file)):
        os.environ["DSPARK_CALIB_ENGINE_ID"] = name
        found[name] = walk(planner_module, observability, int(gamma), file, registration)
    sys.stdout.write(json.dumps(found) + "\n")


def walk(
    planner_module: Any, observability: Any, gamma: int, sts_file: str | None, registration: Any
) -> dict[str, Any]:
    """Build SGLang's planner and observers, and end steps with the observers' call."""
    import torch

    context(planner_module, observability, sts_file)
    head_class = importlib.import_module("sglang.srt.models.dspark").DSparkConfidenceHead
    head = head_class(hidden_size=4, markov_rank=0, with_markov=False)
    sync = importlib.import_module("sglang.srt.speculative.spec_tp_sync").SpecTpSync
    group = SimpleNamespace(world_size=1, rank_in_group=0, ranks=[0])
    planner = planner_module.DSparkVerifyPlanner(
        draft_model=SimpleNamespace(confidence_head=head),
        gamma=gamma,
        model_runner=SimpleNamespace(),
        device="cpu",
        tp_rank=0,
        verify_num_draft_tokens=gamma + 1,
        tp_sync=sync(group),
    )
    attachment = registration.attachment_of(planner)
    observers = observability.DsparkStepObservers(
        planner=planner,
        gamma=gamma,
        verify_num_draft_tokens=gamma + 1,
        tp_rank=0,
        device="cpu",
        simulate_acc_len=0.0,
    )
    captured = head.sts_temperatures
    raw = torch.linspace(-1.0, 2.0, gamma).expand(2, gamma).clone()
    before = head.apply_sts(raw)[0].tolist()
    reqs = requests()
    ends = time.monotonic() + SECONDS
    step = 0
    while attachment is not None and time.monotonic() < ends:
        step += 1
        observers.observe_verify_step(**arguments(step, gamma, raw, reqs))
        if attachment.status()["publication"] > 1 and step > 3:
            break
        time.sleep(0.005)
    return {
        "attached": attachment is not None,
        "same_tensor": head.sts_temperatures is captured,
        "temperatures": head.sts_temperatures.tolist(),
        "raw": raw[0].tolist(),
        "confidence_before": before,
        "confidence": head.apply_sts(raw)[0].tolist(),
        "status": None if attachment is None else attachment.status(),
        "stopped": attachment is not None and attachment.stop(20.0),
    }


class Req:
    """What the observers are given; SGLang's own needs a whole scheduler."""

    def __init__(self, rid: str, parameters: Any) -> None:
        self.rid = rid
        self.sampling_params = parameters
        self.eos_token_ids = {2}
        self.tokenizer = None
        self.lora_id = None


def requests() -> list[Req]:
    """Two requests with SGLang's own sampling parameters, as it normalises them."""
    params = importlib.import_module("sglang.srt.sampling.sampling_params").SamplingParams
    made = [
        params(temperature=0.0),
        params(temperature=0.7, custom_params={"dspark_domain": "code"}),
    ]
    for parameters in made:
        parameters.normalize(None)
    return [Req(f"r{index}", parameters) for index, parameters in enumerate(made)]


def arguments(step: int, gamma: int, raw: Any, reqs: list[Req]) -> dict[str, Any]:
    """What the worker calls the observers with at the end of a step."""
    import torch

    rows = len(reqs)
    drafts = torch.arange(10, 10 + rows * gamma).view(rows, gamma)
    return {
        "forward_ct": step,
        "reqs": reqs,
        "bs": rows,
        "proposal_folded": True,
        "verify_ids_2d": torch.cat([torch.full((rows, 1), 5), drafts], dim=1),
        "target_logits": None,
        "layout": SimpleNamespace(
            verify_lens=torch.tensor([gamma, 2], dtype=torch.int32), graph_num_tokens=16
        ),
        "confidence": torch.sigmoid(raw),
        "confidence_raw": raw,
        "prefix_lens": torch.tensor([100, 200]),
        "draft_tokens": drafts,
        "draft_block": SimpleNamespace(greedy_draft=False),
        "sampling_info": None,
        "correct_len": torch.tensor([1, 1]),
        "cap_trim_lens": torch.tensor([0, 0]),
        "bonus": torch.tensor([7, 7]),
        "commit_lens": torch.tensor([2, 2]),
        "verify_token_budget": gamma,
        "req_pool_indices": torch.tensor([0, 1]),
        "verify_tier_num_tokens": 0,
        "dp_tier_num_tokens": None,
    }


if __name__ == "__main__":
    main()
