"""vLLM's own code, taken from the wheel and driven on a CPU.

Its package cannot be imported without its compiled kernels, so single classes are cut out of the
source as they stand and executed beside the few names they use. ``DSPARK_VLLM_WHEEL`` names an
unpacked wheel; ``tools/vllm_wheel.sh`` prints one.
"""

from __future__ import annotations

import ast
import contextlib
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import prometheus_client
import pytest

torch = pytest.importorskip("torch")

from calib.formats.vllm_metrics import EngineSeries, parse_scrape, rates_of_scrapes  # noqa: E402
from dspark_calib_client.plugins.vllm import compatibility, registration  # noqa: E402
from dspark_calib_client.plugins.vllm.attachment import explores  # noqa: E402
from dspark_calib_client.plugins.vllm.numbers import ServedNumbers  # noqa: E402
from dspark_calib_client.plugins.vllm.sources import HeadSource  # noqa: E402
from tests.client.plugins.vllm.host import Engine, environment_of  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.parity]


def cut_out(module: str, name: str, **names: Any) -> Any:
    """One class of the wheel, executed beside ``names``."""
    named = os.environ.get("DSPARK_VLLM_WHEEL")
    if not named:
        pytest.skip("set DSPARK_VLLM_WHEEL to an unpacked wheel")
    path = Path(named).joinpath(*module.split(".")).with_suffix(".py")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name]
    future = ast.parse("from __future__ import annotations").body
    space = {"torch": torch, "np": np, "__name__": module, **names}
    code = ast.Module([*future, *found], type_ignores=[])
    exec(compile(code, str(path), "exec"), space)
    return space[name]


class Linear(torch.nn.Linear):
    """vLLM's ``ReplicatedLinear`` with its arguments."""

    def __init__(self, size: int, out: int, *, bias: bool, **_: Any) -> None:
        super().__init__(size, out, bias=bias)


def test_the_real_head_is_served_with_our_numbers() -> None:
    """sigmoid(head(h, e)) becomes sigmoid(s head(h, e) + b), position by position."""
    names = {"nn": torch.nn, "ReplicatedLinear": Linear, "maybe_prefix": lambda *_: ""}
    head_class = cut_out(compatibility.HEAD, "DSparkConfidenceHead", **names)
    head = head_class(6, "", bias=True, with_markov=True)
    hidden, embed = torch.randn(8, 4), torch.randn(8, 2)
    with torch.no_grad():
        raw = head(hidden, embed)
        registration.hook_head(SimpleNamespace(DSparkConfidenceHead=head_class))  # type: ignore[arg-type]
        assert torch.equal(head(hidden, embed), raw)  # nothing attached, nothing changed
        numbers = ServedNumbers(4, "cpu")
        source = HeadSource(4, 2, "cpu", numbers.tensor)
        head._dspark_calib = SimpleNamespace(source=source)
        assert torch.equal(head(hidden, embed), raw)  # identity is exact
        numbers.tensor[0] = torch.tensor([0.5, 2.0, 1.0, 1.25])
        numbers.tensor[1] = torch.tensor([0.25, 0.0, -1.0, 0.0])
        served = head(hidden, embed).view(2, 4)
    wanted = raw.double().view(2, 4) * numbers.tensor[0].double() + numbers.tensor[1].double()
    assert torch.allclose(served.double(), wanted, atol=1e-6)


def test_the_real_budget_explores_in_full() -> None:
    """vLLM's own search trims here; a step whose coin fell verifies everything."""
    manager_class = cut_out(
        compatibility.MANAGER, "AdaptiveVerificationManager", Iterator=Any, Iterable=Any
    )
    manager = manager_class.__new__(manager_class)
    manager.num_bonus_tokens, manager._max_total_logits = 1, 1000
    manager.num_speculative_steps, manager._stale_idx = 3, 0
    manager.cost_tables = (np.ones(9), np.linspace(1.0, 9.0, 40))
    manager._stale_confidences = [SimpleNamespace(np=np.full((4, 3), 0.1))]
    manager.req_states = SimpleNamespace(
        req_id_to_index={"a": 0, "b": 1},
        num_computed_tokens_np=np.full(4, 10),
        prefill_len=SimpleNamespace(np=np.zeros(4)),
    )
    tokens, drafts = {"a": 4, "b": 4}, {"a": [1, 2, 3], "b": [1, 2, 3]}
    assert manager.get_num_tokens(tokens, drafts) < 8
    engine = Engine(3)
    attached = engine.start(environment_of("http://127.0.0.1:9", "d", "1f" * 32))
    with contextlib.ExitStack() as stack:
        stack.callback(attached._client.stop, 5.0)
        attached._share = 0.05
        attached._steps = next(step for step in range(10_000) if explores(step, 0.05))
        chosen = manager.get_num_tokens(tokens, drafts)
        assert attached.budget(manager, chosen, drafts) == 8
    assert manager._batch_budget[2] == 6


def test_the_real_counters_are_read_back() -> None:
    """What vLLM's metrics class exposes is what the importer reads, engine by engine."""
    metrics = cut_out(
        "vllm.v1.spec_decode.metrics",
        "SpecDecodingProm",
        prometheus_client=prometheus_client,
        create_metric_per_engine=lambda metric, values: {
            place: metric.labels(*labels) for place, labels in values.items()
        },
    )
    registry = prometheus_client.CollectorRegistry()

    def counter(**options: Any) -> prometheus_client.Counter:
        return prometheus_client.Counter(**options, registry=registry)

    metrics._counter_cls = staticmethod(counter)
    config = SimpleNamespace(num_speculative_tokens=2)
    labels = {0: ["m", "0"], 1: ["m", "1"]}
    made = metrics(config, ["model_name", "engine"], labels)
    stats = SimpleNamespace(
        num_drafts=10,
        num_draft_tokens=20,
        num_accepted_tokens=9,
        num_accepted_tokens_per_pos=[6, 3],
    )
    made.observe(stats, 1)
    text = prometheus_client.generate_latest(registry).decode()
    idle, busy = rates_of_scrapes([parse_scrape(text)])
    assert (idle.series, idle.measured) == (EngineSeries("m", "0"), False)
    assert (busy.series, busy.marginal) == (EngineSeries("m", "1"), (0.6, 0.3))
    assert busy.accepted_length == pytest.approx(1.9)
