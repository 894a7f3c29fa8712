"""The engines' own planners, from the source in their wheels, without the engines."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Union

import numpy as np
from numpy.typing import NDArray

from calib.cost_table import AdditiveCostTable, FlatCostTable
from calib.cost_table_files import dump_cost_table
from calib.cost_table_staircase import StaircaseCostTable
from tests.calib.engine_sources import source_functions

_DSPARK = "sglang/srt/speculative/dspark_components"
_KERNELS = "sglang/kernels/ops/speculative/dspark/dspark_schedule.py"
_VLLM = "vllm/v1/worker/gpu/spec_decode/adaptive_verification.py"

_PLANNER = (
    "DSparkScheduleConfig",
    "VerifyBudgetDecision",
    "compute_verify_token_budget",
    "_lookup_sps_tensor",
    "_additive_step_time_tensor",
)
_RANKING = (
    "compute_sort_survival",
    "schedule_verify_lens_topk",
    "schedule_verify_lens_topk_from_survival",
    "_value_independent_descending_order",
)


def sglang_planner(root: str) -> SimpleNamespace:
    """SGLang's tables, budget and allocation; ``table_of`` makes its table of one of ours."""
    import torch

    file = Path(root, _DSPARK, "dspark_sps.py")
    spec = importlib.util.spec_from_file_location("parity_dspark_sps", file)
    if spec is None or spec.loader is None:
        raise LookupError(f"{file} is no module")
    sps = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = sps
    spec.loader.exec_module(sps)
    # msgspec resolves annotations in the module that a class names as its own.
    namespace = vars(sps) | {"torch": torch, "Union": Union}
    vars(sps).update(namespace)
    planner = source_functions(Path(root, _DSPARK, "dspark_planner.py"), _PLANNER, vars(sps))
    ranking = source_functions(Path(root, _KERNELS), _RANKING, {"torch": torch})

    def table_of(cost: FlatCostTable | AdditiveCostTable) -> Any:
        kind = "SpsCostTable" if isinstance(cost, FlatCostTable) else "SpsAdditiveCostTable"
        return getattr(sps, kind).from_json(dump_cost_table(cost))

    return SimpleNamespace(table_of=table_of, **planner, **ranking)


def vllm_planner(root: str) -> SimpleNamespace:
    """vLLM's cost tables and budget; ``step`` makes one call of it for a batch of drafts."""
    file = Path(root, _VLLM)
    tables = source_functions(file, ["build_cost_tables_from_curves"], {"np": np})
    manager = source_functions(
        file, ["get_num_tokens"], {"np": np}, of_class="AdaptiveVerificationManager"
    )
    build, count_tokens = tables["build_cost_tables_from_curves"], manager["get_num_tokens"]

    def step(
        confidences: NDArray[Any],  # [R, γ] two steps old
        cost: StaircaseCostTable,
        most: int,
    ) -> Callable[[], int]:
        requests, gamma = confidences.shape
        names = [f"r{row}" for row in range(requests)]
        state = SimpleNamespace(
            cost_tables=build(
                list(cost.draft_curve),
                list(cost.verify_curve),
                requests,
                requests * (gamma + 1),
                cost.graph_limit,
            ),
            num_speculative_steps=gamma,
            num_bonus_tokens=1,
            _max_total_logits=most,
            _stale_idx=0,
            _stale_confidences=[SimpleNamespace(np=confidences)],
            req_states=SimpleNamespace(
                req_id_to_index={name: row for row, name in enumerate(names)},
                num_computed_tokens_np=np.full(requests, 9),
                prefill_len=SimpleNamespace(np=np.full(requests, 5)),
            ),
        )
        scheduled = dict.fromkeys(names, gamma + 1)
        drafts = {name: [0] * gamma for name in names}
        return lambda: int(count_tokens(state, scheduled, drafts)) - requests

    return SimpleNamespace(build_cost_tables_from_curves=build, step=step)
