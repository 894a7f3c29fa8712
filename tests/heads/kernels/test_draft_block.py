"""The fused block against float64 and against its twin, over a pairwise list of its options."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import pytest
import torch

from calib.errors import ConfigurationError
from heads.configuration import MarkovHeadType
from heads.draft_block import DraftBlockWorkspace
from heads.kernels.draft_block import FusedDraftBlock, draft_block
from heads.kernels.draft_block_configuration import DraftBlockConfiguration
from heads.reference import draft_block as reference
from heads.reference.deterministic_argmax import LEAST_WORD
from tests.heads.kernels.draft_block_cases import (
    FLOAT8,
    block_inputs,
    exact_weights,
    random_weights,
    run_kernels,
    select_rows,
)
from tests.heads.kernels.float64_draft_block import Tolerance, assert_block_is_right

pytestmark = pytest.mark.torch

SINGLE = DraftBlockConfiguration(128, 1, 16, stages=1, tensor_cores=False)
NARROW = DraftBlockConfiguration(32, 16, 32)
TINY = DraftBlockConfiguration(16, 16, 16)
WIDE = DraftBlockConfiguration(256, 64, 32, tiles=2)


@dataclass(frozen=True)
class Case:
    """One point of the pairwise list."""

    vocabulary: int
    rows: int
    head: MarkovHeadType = "vanilla"
    w2: torch.dtype = torch.float32
    temperatures: tuple[float, ...] = (0.0, 1.0, 0.7)
    logits: torch.dtype | None = None
    sums: bool = False
    mapped: bool = False
    per_row: bool = False
    confidence: Literal["none", "hidden", "markov"] = "markov"
    configuration: DraftBlockConfiguration | None = None

    def __str__(self) -> str:
        kind = str(self.w2).removeprefix("torch.")
        return f"{self.head}-{kind}-v{self.vocabulary}-b{self.rows}"


BF16 = torch.bfloat16
CASES = [
    Case(7, 1, "vanilla", FLOAT8, logits=torch.float32, sums=True, per_row=True),
    Case(7, 3, "gated", BF16, (0.0,), confidence="none", mapped=True),
    Case(7, 16, "rnn", torch.float32, (1.0,), logits=BF16, confidence="hidden"),
    Case(7, 64, "vanilla", BF16, sums=True, mapped=True, per_row=True),
    Case(257, 1, "gated", torch.float32, (0.6,), sums=True, configuration=SINGLE),
    Case(257, 3, "rnn", FLOAT8, logits=torch.float32, mapped=True, per_row=True),
    Case(257, 16, "vanilla", BF16, (0.0,), logits=torch.float32, confidence="hidden"),
    Case(257, 64, "gated", FLOAT8, (1.3,), confidence="none", configuration=WIDE),
    Case(1000, 1, "rnn", BF16, (0.0, 1.0), mapped=True, confidence="hidden"),
    Case(1000, 3, "vanilla", torch.float32, (0.9, 0.0), logits=BF16, sums=True),
    Case(1000, 16, "gated", BF16, (1.0,), logits=torch.float32, per_row=True, configuration=WIDE),
    Case(1000, 64, "rnn", torch.float32, (0.0,), sums=True, confidence="none"),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_against_float64_and_the_twin(case: Case, device: torch.device) -> None:
    weights = random_weights(
        device,
        head=case.head,
        vocabulary=case.vocabulary,
        target_vocabulary=2 * case.vocabulary if case.mapped else None,
        w2=case.w2,
        confidence=case.confidence != "none",
        with_markov=case.confidence == "markov",
        seed=case.vocabulary + case.rows,
    )
    inputs = block_inputs(
        weights,
        case.rows,
        2,
        temperatures=case.temperatures,
        per_row=case.per_row,
        sampled=any(case.temperatures),
    )
    output = run_kernels(
        weights, inputs, case.configuration, logits=case.logits, log_sum_exp=case.sums
    )
    # Latents on the edge between two bfloat16 numbers may be rounded either way.
    rounded = case.head != "vanilla" and case.w2 != torch.float32
    tolerance = Tolerance(logits=5e-3) if rounded else Tolerance()
    assert_block_is_right(weights, inputs, output, tolerance)
    assert (output.logits is None) == (case.logits is None)
    assert (output.survival is None) == (case.confidence == "none")
    workspace = DraftBlockWorkspace.allocate(weights, case.rows, 2, log_sum_exp=case.sums)
    twin = reference.draft_block(weights, inputs, workspace)
    if case.logits != BF16:  # rounded logits are sampled from where they are kept
        assert torch.equal(output.tokens, twin.tokens)
    if output.confidence_logits is not None and twin.confidence_logits is not None:
        same = (output.tokens == twin.tokens).all(dim=1)
        found, expected = output.confidence_logits[same], twin.confidence_logits[same]
        assert torch.allclose(found, expected, atol=2e-6)


@pytest.mark.parametrize("w2", [torch.float32, BF16, FLOAT8], ids=str)
def test_exact_sums_agree_to_the_last_bit(w2: torch.dtype, device: torch.device) -> None:
    """Whatever the tiles, the path and the order of sums: tokens, logits and ties are the same."""
    weights = exact_weights(device, vocabulary=37, w2=w2)
    inputs = block_inputs(weights, 5, 2, exact=True)
    workspace = DraftBlockWorkspace.allocate(weights, 5, 2, logits=torch.float32)
    twin = reference.draft_block(weights, inputs, workspace)
    for configuration in (TINY, WIDE):
        output = run_kernels(weights, inputs, configuration)
        assert torch.equal(output.tokens, twin.tokens)
        assert output.logits is not None
        assert twin.logits is not None
        assert torch.equal(output.logits, twin.logits)
    alone = run_kernels(weights, select_rows(inputs, torch.tensor([3], device=device)), SINGLE)
    assert torch.equal(alone.tokens, twin.tokens[3:4])
    assert_block_is_right(weights, inputs, twin)


def test_a_row_does_not_depend_on_its_place_or_company(device: torch.device) -> None:
    weights = exact_weights(device, vocabulary=60)
    inputs = block_inputs(weights, 19, 2, exact=True, per_row=True)
    together = run_kernels(weights, inputs)
    order = torch.randperm(19, generator=torch.Generator().manual_seed(0)).to(device)
    shuffled = run_kernels(weights, select_rows(inputs, order), NARROW)
    assert torch.equal(shuffled.tokens, together.tokens[order])
    few = run_kernels(weights, select_rows(inputs, order[:2]))
    assert torch.equal(few.tokens, together.tokens[order[:2]])
    assert few.survival is not None
    assert together.survival is not None
    assert torch.allclose(few.survival, together.survival[order[:2]], atol=1e-6)


def test_launches_of_a_block(device: torch.device) -> None:
    """γ + 1, and 2γ + 2 for heads with a state."""
    kinds: list[tuple[MarkovHeadType, int]] = [("vanilla", 8), ("gated", 16), ("rnn", 16)]
    for head, expected in kinds:
        weights = random_weights(device, head=head)
        inputs = block_inputs(weights, 3, 7)
        workspace = DraftBlockWorkspace.allocate(weights, 3, 7, log_sum_exp=True)
        block = FusedDraftBlock(weights, inputs, workspace)
        assert len(block.launches) == expected
        assert all(not launch.options["enable_fp_fusion"] for launch in block.launches)


def test_a_planned_block_reads_new_inputs_and_survives_an_aborted_one(
    device: torch.device,
) -> None:
    """As a captured graph does: buffers stay, contents change, and a block may have been cut."""
    weights = exact_weights(device, vocabulary=100)
    first, second = (block_inputs(weights, 3, 2, exact=True, seed=s) for s in (1, 2))
    expected = run_kernels(weights, second, log_sum_exp=True)
    inputs = replace(first, anchors=first.anchors.clone())
    workspace = DraftBlockWorkspace.allocate(weights, 3, 2, logits=torch.float32, log_sum_exp=True)
    block = FusedDraftBlock(weights, inputs, workspace)
    before = block.run().tokens.clone()
    # Cut after the first position, and scratch that no block could have left.
    block.prepare()
    block.position(0)
    workspace.arrivals.fill_(7)
    workspace.words.fill_((1 << 63) - 1)
    workspace.states.fill_(float("nan"))
    assert torch.equal(block.run().tokens, before)
    for name in ("anchors", "hidden", "base_logits", "request_keys", "positions"):
        getattr(inputs, name).copy_(getattr(second, name))
    inputs.slopes.copy_(second.slopes)
    inputs.intercepts.copy_(second.intercepts)
    output = _replay(block, device)
    for name in ("tokens", "draft_ids", "confidences", "survival", "logits", "log_sum_exp"):
        assert torch.equal(getattr(output, name), getattr(expected, name)), name


def _replay(block: FusedDraftBlock, device: torch.device) -> object:
    """Through a captured graph where there is a GPU."""
    if device.type == "cpu":
        return block.run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = block.run()
    graph.replay()
    torch.cuda.synchronize()
    return output


def test_unused_room_is_left_alone(device: torch.device) -> None:
    weights = random_weights(device)
    inputs = block_inputs(weights, 3, 2)
    workspace = DraftBlockWorkspace.allocate(weights, 9, 2, logits=torch.float32)
    workspace.words.fill_(5)
    workspace.results.tokens.fill_(-5)
    assert workspace.results.logits is not None
    workspace.results.logits.fill_(-5.0)
    output = draft_block(weights, inputs, workspace)
    assert output.tokens.shape == (3, 2)
    assert (workspace.words[:, 3:] == 5).all()
    assert (workspace.words[:, :3] > LEAST_WORD).all()
    assert (workspace.results.tokens[3:] == -5).all()
    assert (workspace.results.logits[3:] == -5.0).all()


def test_anchors_outside_the_vocabulary_read_inside_it(device: torch.device) -> None:
    weights = exact_weights(device, vocabulary=50)
    inputs = block_inputs(weights, 4, 2, exact=True)
    wild = torch.tensor([-1, 50, 1 << 40, 3], device=device)
    clamped = torch.tensor([0, 49, 49, 3], device=device)
    found = run_kernels(weights, replace(inputs, anchors=wild))
    expected = run_kernels(weights, replace(inputs, anchors=clamped))
    assert torch.equal(found.tokens, expected.tokens)


def test_strided_inputs(device: torch.device) -> None:
    """Base logits cut from a wider matrix, as shards of a vocabulary are."""
    weights = exact_weights(device, vocabulary=96)
    inputs = block_inputs(weights, 3, 2, exact=True)
    wide = torch.full((3, 2, 200), 99.0, device=device)
    wide[..., 32:128] = inputs.base_logits
    hidden = torch.full((3, 5, 40), 99.0, device=device)
    hidden[:, 2:4] = inputs.hidden
    cut = replace(inputs, base_logits=wide[..., 32:128], hidden=hidden[:, 2:4])
    found, expected = run_kernels(weights, cut), run_kernels(weights, inputs)
    assert torch.equal(found.tokens, expected.tokens)
    assert found.confidence_logits is not None
    assert expected.confidence_logits is not None
    assert torch.equal(found.confidence_logits, expected.confidence_logits)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("vocabulary", "rows", "w2"), [(49_152, 3, BF16), (151_936, 1, torch.float32)], ids=str
)
def test_real_vocabularies(
    vocabulary: int, rows: int, w2: torch.dtype, device: torch.device
) -> None:
    weights = random_weights(device, vocabulary=vocabulary, rank=256, w2=w2)
    inputs = block_inputs(weights, rows, 2, temperatures=(1.0, 0.0))
    output = run_kernels(weights, inputs, log_sum_exp=True)
    assert_block_is_right(weights, inputs, output, Tolerance(logits=5e-5, confidence=2e-5))


def test_parts_that_do_not_belong_together_are_refused(device: torch.device) -> None:
    weights = random_weights(device)
    inputs = block_inputs(weights, 3, 2)
    with pytest.raises(ConfigurationError, match="1 to 2 rows"):
        draft_block(weights, inputs, DraftBlockWorkspace.allocate(weights, 2, 2))
