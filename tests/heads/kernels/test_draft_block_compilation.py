"""Every kernel of the draft block compiles for five GPUs that are not here, and compiles well.

Launches are planned for shapes of real models on the meta device, exactly as on a GPU, and
compiled as they stand.
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
        programs: how many must fit a multiprocessor, of NVIDIA and of AMD.
    """

    name: str
    rows: int
    programs: tuple[int, int]
    head: MarkovHeadType = "vanilla"
    w2: torch.dtype = BF16
    vocabulary: int = 151_936
    rank: int = 256
    hidden: int = 2560
    sampled: bool = True
    logits: torch.dtype | None = None
    sums: bool = False
    mapped: bool = False


# How many programs fit a multiprocessor is what registers and shared memory decide. A row alone
# streams tiles of 16 KiB, and bandwidth times a latency of 0.7 µs is 23 KB a multiprocessor on an
# H200: four leave a margin. Tiles for several rows are pipelined in themselves: two, so that one
# streams while the other reduces. One where log-sum-exps ask for large tiles (fewer partial sums to
# merge), and on AMD of heads with a state and of float32 weights, which no engine serves.
SHAPES = [
    Shape("one-row", 1, (4, 4), sampled=False),
    Shape("one-row-everything", 1, (4, 4), logits=F32, sums=True),
    Shape("one-row-float8", 1, (4, 4), w2=FLOAT8),
    Shape("one-row-float32", 1, (4, 4), w2=F32, vocabulary=8192, rank=64, logits=F32, mapped=True),
    Shape("16-rows", 16, (3, 3), sampled=False),
    Shape("16-rows-everything", 16, (2, 2), logits=BF16, sums=True),
    Shape("16-rows-float8", 16, (3, 3), w2=FLOAT8, vocabulary=129_280, rank=512, sampled=False),
    Shape("32-rows-rnn", 32, (2, 1), "rnn", logits=BF16, vocabulary=262_144, hidden=3840),
    Shape("32-rows-everything", 32, (2, 2), "gated", logits=F32, sums=True),
    Shape("64-rows", 64, (2, 2), sampled=False),
    Shape("64-rows-everything", 64, (1, 1), "gated", logits=F32, sums=True),
    Shape("64-rows-float8", 64, (2, 2), w2=FLOAT8),
    Shape("64-rows-float32", 64, (2, 1), w2=F32, logits=F32, sums=True, mapped=True),
]
BY_NAME = {shape.name: shape for shape in SHAPES}


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


def check_common(
    report: Report, launch: KernelLaunch, target: str, programs: tuple[int, int]
) -> None:
    assert report.spills == 0
    assert report.double_precision == 0
    assert report.shared <= TARGETS[target].shared_memory
    fitting = TARGETS[target].programs(report, launch.options["num_warps"])
    assert fitting >= programs[target.startswith("gfx")]
    # Through registers 16 bytes at a time, or past them: cp.async.cg moves nothing smaller.
    assert report.wide_loads + report.count(r"^cp\.async\.cg") > 0


def check_position(shape: Shape, target: str, compiler: Compiler) -> None:
    launch = planned(shape, target)[-1]
    report = compiler.compile(compilation_of(launch), target)
    check_common(report, launch, target, shape.programs)
    if shape.rows > 1 and shape.w2 != F32:
        assert report.tensor_core > 0
    if target in ("sm90", "sm100"):
        # Programmatic dependent launch: release of the next launch, wait for the last one.
        assert report.count(r"^griddepcontrol\.launch_dependents") > 0
        assert report.count(r"^griddepcontrol\.wait") > 0


@pytest.mark.slow
def test_a_quick_look_at_one_of_them(compiler: Compiler) -> None:
    check_position(BY_NAME["16-rows"], "sm90", compiler)


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", BY_NAME)
def test_positions(name: str, target: str, compiler: Compiler) -> None:
    check_position(BY_NAME[name], target, compiler)


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("name", "index"), [("32-rows-rnn", 0), ("32-rows-rnn", 1)])
def test_preparation_and_projection(name: str, index: int, target: str, compiler: Compiler) -> None:
    launch = planned(BY_NAME[name], target)[index]
    check_common(compiler.compile(compilation_of(launch), target), launch, target, (4, 3))


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["32-rows-rnn", "64-rows-everything"])
def test_states(name: str, target: str, compiler: Compiler) -> None:
    launch = planned(BY_NAME[name], target)[2]
    report = compiler.compile(compilation_of(launch), target)
    check_common(report, launch, target, (3, 2))
    assert report.tensor_core > 0


def test_one_build_serves_every_position_and_batch() -> None:
    """What differs between positions and batches of one tile size is a number at run time."""
    shape = BY_NAME["16-rows"]
    jobs = [compilation_of(launch) for launch in planned(shape, "sm90")[1:]]
    other = [compilation_of(launch) for launch in planned(replace(shape, rows=3), "sm90")[1:]]
    assert len(jobs) == 7
    assert all(job == jobs[0] for job in [*jobs, *other])
