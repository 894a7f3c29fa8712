"""Every kernel of the draft block compiles for five GPUs that are not here, and compiles well.

Launches are planned for shapes of real models on the meta device, exactly as on a GPU, and
compiled as they stand. Register caps are what leaves room for two programs a multiprocessor.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from heads.configuration import MarkovHeadType
from heads.draft_block import DraftBlockInputs, DraftBlockWorkspace
from heads.draft_block_weights import DraftBlockWeights
from heads.kernels.draft_block import FusedDraftBlock, KernelLaunch
from heads.kernels.draft_block_configuration import configuration_for
from tests.heads.kernels.compilation import TARGETS, Compiler, Report
from tests.heads.kernels.draft_block_cases import FLOAT8, compilation_of

pytestmark = pytest.mark.torch

BF16, F32 = torch.bfloat16, torch.float32


@dataclass(frozen=True)
class Shape:
    """A block of a real model.

    Attributes:
        name: for the test's id.
        rows: B.
        registers: most that a thread may use on NVIDIA.
    """

    name: str
    rows: int
    registers: int
    head: MarkovHeadType = "vanilla"
    w2: torch.dtype = BF16
    vocabulary: int = 151_936
    rank: int = 256
    hidden: int = 2560
    sampled: bool = True
    logits: torch.dtype | None = None
    sums: bool = False
    mapped: bool = False


SHAPES = [
    Shape("one-row", 1, 128, sampled=False),
    Shape("one-row-everything", 1, 168, logits=F32, sums=True),
    Shape("one-row-float8", 1, 128, w2=FLOAT8),
    Shape("one-row-float32", 1, 64, w2=F32, vocabulary=8192, rank=64, logits=F32, mapped=True),
    Shape("16-rows", 16, 128, sampled=False),
    Shape("16-rows-everything", 16, 255, logits=BF16, sums=True),
    Shape("16-rows-float8", 16, 168, w2=FLOAT8, vocabulary=129_280, rank=512, sampled=False),
    Shape("32-rows-rnn", 32, 168, "rnn", logits=BF16, vocabulary=262_144, hidden=3840),
    Shape("64-rows", 64, 128, sampled=False),
    Shape("64-rows-everything", 64, 255, "gated", logits=F32, sums=True),
    Shape("64-rows-float8", 64, 128, w2=FLOAT8),
    Shape("64-rows-float32", 64, 255, w2=F32, vocabulary=8192, rank=64, logits=F32, mapped=True),
]
BY_NAME = {shape.name: shape for shape in SHAPES}

# Bytes a thread that go through local memory; none is the goal, and none is allowed elsewhere.
KNOWN_SPILLS = {
    ("32-rows-rnn", "sm80"): 8,
    ("64-rows-everything", "sm100"): 16,
    ("64-rows-float32", "sm90"): 16,
    ("64-rows-float32", "sm100"): 8,
}


def _meta(*shape: int, dtype: torch.dtype = F32) -> Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta")


def weights_of(shape: Shape) -> DraftBlockWeights:
    wide = F32 if shape.w2 == F32 else BF16
    rank, hidden = shape.rank, shape.hidden
    state: dict[str, Tensor] = {}
    if shape.head != "vanilla":
        parts = 3 if shape.head == "rnn" else 1
        joint = _meta(parts * rank, parts // 3 * rank + rank + hidden, dtype=wide)
        state["state_bias"] = _meta(parts * rank, dtype=wide)
        if shape.head == "rnn":
            state["state_recurrent"] = joint[:, :rank]
            state["state_code"] = joint[:, rank : 2 * rank]
            state["state_hidden"] = joint[:, 2 * rank :]
        else:
            state["state_hidden"], state["state_code"] = joint[:, :hidden], joint[:, hidden:]
    size = shape.vocabulary
    return DraftBlockWeights(
        shape.head,
        _meta(size, rank, dtype=wide),
        _meta(size, rank, dtype=shape.w2),
        w2_scales=_meta(size) if shape.w2 == FLOAT8 else None,
        confidence_hidden=_meta(hidden),
        confidence_code=_meta(rank),
        confidence_bias=_meta(1),
        draft_to_target=_meta(size, dtype=torch.long) if shape.mapped else None,
        **state,
    )


def planned(shape: Shape, target: str, gamma: int = 7) -> tuple[KernelLaunch, ...]:
    """The launches of a block on a target."""
    weights, rows = weights_of(shape), shape.rows
    wide = weights.w1.dtype
    calibration: dict[str, Any] = {"slopes": _meta(gamma), "intercepts": _meta(gamma)}
    inputs = DraftBlockInputs(
        anchors=_meta(rows, dtype=torch.long),
        hidden=_meta(rows, gamma, shape.hidden, dtype=wide),
        base_logits=_meta(rows, gamma, shape.vocabulary, dtype=wide),
        temperatures=_meta(rows),
        request_keys=_meta(rows, dtype=torch.long),
        positions=_meta(rows, dtype=torch.long),
        sampled=shape.sampled,
        **calibration,
    )
    workspace = DraftBlockWorkspace.allocate(
        weights, 256, gamma, logits=shape.logits, log_sum_exp=shape.sums
    )
    configuration = configuration_for(
        target,
        rows,
        rank=shape.rank,
        shard_size=shape.vocabulary,
        w2_dtype=shape.w2,
        sampled=shape.sampled,
        log_sum_exp=shape.sums,
    )
    return FusedDraftBlock(weights, inputs, workspace, configuration).launches


def check_common(report: Report, target: str, registers: int, spills: int = 0) -> None:
    assert report.spills <= spills
    assert report.double_precision == 0
    assert report.shared <= TARGETS[target].shared_memory
    # A wavefront's file has twice the registers, and one program of 256 threads may use them.
    assert report.registers <= (registers if target.startswith("sm") else 256)
    # Through registers 16 bytes at a time, or past them: cp.async.cg moves nothing smaller.
    assert report.wide_loads + report.count(r"^cp\.async\.cg") > 0


def check_position(report: Report, shape: Shape, target: str) -> None:
    spills = KNOWN_SPILLS.get((shape.name, target), 0)
    check_common(report, target, shape.registers, spills)
    if shape.rows > 1 and shape.w2 != F32:
        assert report.tensor_core > 0
    if target in ("sm90", "sm100"):
        # Programmatic dependent launch: release of the next launch, wait for the last one.
        assert report.count("^PREEXIT") > 0
        assert report.count("^ACQBULK") > 0


def test_a_quick_look_at_one_of_them(compiler: Compiler) -> None:
    shape = BY_NAME["16-rows"]
    launch = planned(shape, "sm90")[-1]
    check_position(compiler.compile(compilation_of(launch), "sm90"), shape, "sm90")


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", BY_NAME)
def test_positions(name: str, target: str, compiler: Compiler) -> None:
    shape = BY_NAME[name]
    launch = planned(shape, target)[-1]
    check_position(compiler.compile(compilation_of(launch), target), shape, target)


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("name", "index"), [("32-rows-rnn", 0), ("32-rows-rnn", 1)])
def test_preparation_and_projection(name: str, index: int, target: str, compiler: Compiler) -> None:
    launch = planned(BY_NAME[name], target)[index]
    check_common(compiler.compile(compilation_of(launch), target), target, 128)


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["32-rows-rnn", "64-rows-everything"])
def test_states(name: str, target: str, compiler: Compiler) -> None:
    launch = planned(BY_NAME[name], target)[2]
    report = compiler.compile(compilation_of(launch), target)
    check_common(report, target, 168)
    assert report.tensor_core > 0


def test_one_build_serves_every_position_and_batch() -> None:
    """What differs between positions and batches of one tile size is a number at run time."""
    shape = BY_NAME["16-rows"]
    jobs = [compilation_of(launch) for launch in planned(shape, "sm90")[1:]]
    other = [compilation_of(launch) for launch in planned(replace(shape, rows=3), "sm90")[1:]]
    assert len(jobs) == 7
    assert all(job == jobs[0] for job in [*jobs, *other])
