"""Draft blocks to test with: random ones, ones whose sums are exact, and their launches as jobs.

*Exact* cases hold multiples of a quarter, so that every product and every sum is a float32 number,
whatever the order of summation: implementations, tile sizes, batches and shards must then agree to
the last bit, ties included, and greedy ties are frequent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from heads.configuration import MarkovHeadType
from heads.draft_block import DraftBlockInputs, DraftBlockOutput, DraftBlockWorkspace
from heads.draft_block_weights import DraftBlockWeights
from heads.kernels.draft_block import FusedDraftBlock, KernelLaunch
from heads.kernels.draft_block_configuration import DraftBlockConfiguration
from tests.heads.kernels.compilation import Compilation

FLOAT8 = torch.float8_e4m3fn
TYPES = {
    torch.uint8: "*u8",
    torch.float32: "*fp32",
    torch.bfloat16: "*bf16",
    FLOAT8: "*fp8e4nv",
    torch.int64: "*i64",
    torch.int32: "*i32",
}


class Numbers:
    """Seeded tensors."""

    def __init__(self, seed: int, device: torch.device) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self._device = device

    def normal(self, *shape: int, scale: float = 1.0) -> Tensor:
        return (torch.randn(*shape, generator=self._generator) * scale).to(self._device)

    def quarters(self, *shape: int, largest: int = 8) -> Tensor:
        """Multiples of ¼ up to ``largest`` quarters either way; exact in bfloat16 and float8."""
        whole = torch.randint(-largest, largest + 1, shape, generator=self._generator)
        return (whole.float() / 4).to(self._device)

    def whole(self, low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=self._generator).to(self._device)


def random_weights(
    device: torch.device,
    *,
    head: MarkovHeadType = "vanilla",
    vocabulary: int = 257,
    target_vocabulary: int | None = None,
    rank: int = 20,
    hidden: int = 40,
    w2: torch.dtype = torch.float32,
    confidence: bool = True,
    with_markov: bool = True,
    seed: int = 0,
) -> DraftBlockWeights:
    """Heads with normal weights; a smaller draft vocabulary gets a mapping."""
    numbers = Numbers(seed, device)
    size = target_vocabulary or vocabulary
    mapping = None
    if size > vocabulary:
        mapping = torch.arange(vocabulary, device=device) * size // vocabulary
    outputs = {"vanilla": 0, "gated": 1, "rnn": 3}[head] * rank
    state = {
        "state_hidden": numbers.normal(outputs, hidden, scale=hidden**-0.5),
        "state_code": numbers.normal(outputs, rank, scale=rank**-0.5),
        "state_recurrent": numbers.normal(outputs, rank, scale=rank**-0.5),
        "state_bias": numbers.normal(outputs, scale=0.3),
    }
    if head != "rnn":
        del state["state_recurrent"]
    if head == "vanilla":
        state = {}
    if confidence:
        state["confidence_hidden"] = numbers.normal(hidden, scale=hidden**-0.5)
        state["confidence_bias"] = numbers.normal(1)
    if confidence and with_markov:
        state["confidence_code"] = numbers.normal(rank, scale=rank**-0.5)
    weights = DraftBlockWeights(
        head,
        numbers.normal(size, rank),
        numbers.normal(vocabulary, rank, scale=rank**-0.5),
        draft_to_target=mapping,
        **state,
    )
    return weights if w2 == torch.float32 else weights.with_w2(w2)


def exact_weights(
    device: torch.device,
    *,
    vocabulary: int = 257,
    rank: int = 20,
    hidden: int = 40,
    w2: torch.dtype = torch.float32,
    seed: int = 0,
) -> DraftBlockWeights:
    """A vanilla head of multiples of ¼."""
    numbers = Numbers(seed, device)
    scales = torch.full((vocabulary,), 0.5, device=device) if w2 == FLOAT8 else None
    return DraftBlockWeights(
        "vanilla",
        numbers.quarters(vocabulary, rank).to(
            torch.float32 if w2 == torch.float32 else torch.bfloat16
        ),
        numbers.quarters(vocabulary, rank).to(w2),
        w2_scales=scales,
        confidence_hidden=numbers.quarters(hidden),
        confidence_code=numbers.quarters(rank),
        confidence_bias=numbers.quarters(1),
    )


def block_inputs(
    weights: DraftBlockWeights,
    rows: int,
    gamma: int,
    *,
    temperatures: Sequence[float] = (0.0, 1.0, 0.7),
    hidden: int = 40,
    exact: bool = False,
    per_row: bool = False,
    sampled: bool = True,
    seed: int = 1,
) -> DraftBlockInputs:
    """Inputs for these weights; temperatures are dealt out in turn."""
    device = weights.w2.device
    numbers = Numbers(seed, device)
    make = numbers.quarters if exact else numbers.normal
    wide = weights.w1.dtype
    calibration = (rows, gamma) if per_row else (gamma,)
    dealt = [temperatures[row % len(temperatures)] for row in range(rows)]
    return DraftBlockInputs(
        anchors=numbers.whole(0, len(weights.w1), rows),
        hidden=make(rows, gamma, hidden).to(wide),
        base_logits=make(rows, gamma, weights.shard_size).to(wide),
        temperatures=torch.tensor(dealt, device=device),
        request_keys=numbers.whole(-(1 << 62), 1 << 62, rows),
        positions=numbers.whole(0, 100_000, rows),
        slopes=numbers.normal(*calibration).abs() + 0.5,
        intercepts=numbers.normal(*calibration, scale=0.3),
        sampled=sampled,
    )


def select_rows(inputs: DraftBlockInputs, rows: Tensor) -> DraftBlockInputs:
    """The same block for some rows, in another order."""
    names = (
        "anchors",
        "hidden",
        "base_logits",
        "temperatures",
        "request_keys",
        "positions",
    )
    parts: dict[str, Any] = {name: getattr(inputs, name)[rows] for name in names}
    for name in ("slopes", "intercepts"):
        values = getattr(inputs, name)
        parts[name] = values[rows] if values.dim() > 1 else values
    return replace(inputs, **parts)


def run_kernels(
    weights: DraftBlockWeights,
    inputs: DraftBlockInputs,
    configuration: DraftBlockConfiguration | None = None,
    *,
    logits: torch.dtype | None = torch.float32,
    log_sum_exp: bool = False,
) -> DraftBlockOutput:
    """A block through the kernels, in a workspace with room to spare."""
    workspace = DraftBlockWorkspace.allocate(
        weights, inputs.rows + 3, inputs.gamma, logits=logits, log_sum_exp=log_sum_exp
    )
    return FusedDraftBlock(weights, inputs, workspace, configuration).run()


def compilation_of(launch: KernelLaunch, name: str = "") -> Compilation:
    """The job that compiles what this launch would compile on a GPU."""
    types, constants, divisible = {}, {}, []
    runtime = launch.kernel.kwargs["do_not_specialize"] or ()
    unaligned = (*runtime, *(launch.kernel.kwargs["do_not_specialize_on_alignment"] or ()))
    for argument, value in launch.arguments.items():
        if isinstance(value, Tensor):
            types[argument] = TYPES[value.dtype]
            if value.storage_offset() * value.element_size() % 16 == 0:
                divisible.append(argument)
        elif value is None or argument.isupper() or (value == 1 and argument not in runtime):
            constants[argument] = value
        else:
            types[argument] = "i32"
            if value % 16 == 0 and argument not in unaligned:
                divisible.append(argument)
    function = launch.kernel.fn
    kernel = f"{function.__module__}:{function.__name__}"
    return Compilation(kernel, types, constants, tuple(divisible), launch.options, name)
