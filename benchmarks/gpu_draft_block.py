"""Cases of the draft block for ``gpu_kernels.py``: whole blocks of γ positions.

The floor is what a position must move, W2 and the rows' base logits (and the corrected logits
where they are kept), times γ. Contenders: eager torch, ``torch.compile``, an unfused form of our
own (gather, matrix product into memory, one kernel for noise and order, decoding), and the fused
block. ``torch.compile`` unrolls the positions and is built for the first model alone, because a
build takes most of a minute. Last come other tiles than the table's, which is how it is tuned:
where minutes run out, they are what is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from benchmarks.gpu_timing import Case, Contender, Setting
from heads.configuration import MarkovHeadType
from heads.draft_block import DraftBlockInputs, DraftBlockOutput, DraftBlockWorkspace
from heads.draft_block_weights import DraftBlockWeights
from heads.kernels.counter_based_random import gumbel_tile
from heads.kernels.deterministic_argmax import decoded_ids, packed_words
from heads.kernels.draft_block import FusedDraftBlock
from heads.kernels.draft_block_configuration import DraftBlockConfiguration
from heads.reference.deterministic_argmax import LEAST_WORD
from tests.heads.kernels.draft_block_cases import select_rows
from tests.heads.kernels.float64_draft_block import Tolerance, assert_block_is_right

_BF16, _FLOAT8 = torch.bfloat16, torch.float8_e4m3fn
_UNFUSED_TILE = 1024
_TUNED_BATCHES = (1, 64)


@dataclass(frozen=True, slots=True)
class _Model:
    name: str
    vocabulary: int
    hidden: int
    rank: int
    gamma: int


@dataclass(frozen=True, slots=True)
class _Kind:
    """What of a block is asked for."""

    name: str
    sampled: bool = False
    kept: torch.dtype | None = None
    sums: bool = False
    w2: torch.dtype = _BF16
    head: MarkovHeadType = "vanilla"


# Qwen3-8B differs in the hidden size alone, which only the preparation reads.
_MODELS = (
    _Model("Qwen3-4B", 151_936, 2560, 256, 7),
    _Model("SmolLM2", 49_152, 576, 256, 7),
    _Model("Gemma-12B", 262_144, 3840, 256, 7),
    _Model("DSV4-Flash", 129_280, 4096, 512, 5),
)
_TINY = (_Model("tiny", 257, 40, 16, 2),)
_GREEDY, _SAMPLED = _Kind("greedy"), _Kind("sampled", sampled=True)
# The first model is measured in every kind, the others greedy and sampled.
_KINDS = (
    _GREEDY,
    _SAMPLED,
    _Kind("kept", sampled=True, kept=_BF16, sums=True),
    _Kind("float8", w2=_FLOAT8),
    _Kind("rnn", head="rnn"),
)


def cases(setting: Setting) -> Iterator[Case]:
    """Blocks in bfloat16; every kind of the first model before the next model."""
    models = _TINY if setting.tiny else _MODELS
    for model in models:
        first = model is models[0]
        for kind in _KINDS if first else (_GREEDY, _SAMPLED):
            for batch in setting.batches:
                yield _Block(model, kind, batch, setting.device).case(compiled=first)
    for kind in (_GREEDY, _SAMPLED):
        for batch in (b for b in setting.batches if b in _TUNED_BATCHES):
            yield _Block(models[0], kind, batch, setting.device).tuning()


class _Block:
    """One block's weights, inputs and contenders."""

    def __init__(self, model: _Model, kind: _Kind, batch: int, device: torch.device) -> None:
        self._model, self._kind, self._batch = model, kind, batch
        self._generator = torch.Generator(device).manual_seed(batch)
        self._device = device
        self._weights = self._made_weights()
        self._inputs = self._made_inputs()
        self._workspace = DraftBlockWorkspace.allocate(
            self._weights, batch, model.gamma, logits=kind.kept, log_sum_exp=kind.sums
        )
        self._fused = FusedDraftBlock(self._weights, self._inputs, self._workspace)

    def case(self, *, compiled: bool) -> Case:
        """The block against its rivals."""
        contenders = []
        if self._kind.head == "vanilla" and self._kind.w2 == _BF16:
            contenders = [Contender("eager", self._eager), Contender("unfused", self._unfused)]
            if compiled:
                contenders.append(Contender("compiled", self._compiled()))
        return self._case(self._kind.name, [*contenders, Contender("fused", self._fused.run)])

    def tuning(self) -> Case:
        """The block with other tiles than the table's."""
        contenders = [Contender("table", self._fused.run)]
        for name, configuration in _variants_of(self._fused.configuration):
            block = FusedDraftBlock(self._weights, self._inputs, self._workspace, configuration)
            contenders.append(Contender(name, _guarded(block)))
        return self._case(f"{self._kind.name}_tiles", contenders)

    def _case(self, name: str, contenders: list[Contender]) -> Case:
        model = self._model
        shape = f"{self._batch} x {model.gamma} x {model.vocabulary}, rank {model.rank}"
        return Case(
            f"draft_block_{name}",
            model.name,
            self._batch,
            shape,
            self._floor_bytes(),
            contenders,
            self._check,
        )

    def _normal(self, *shape: int, scale: float = 1.0, dtype: torch.dtype = _BF16) -> Tensor:
        made = torch.randn(*shape, generator=self._generator, device=self._device, dtype=_BF16)
        return (made * scale).to(dtype)

    def _made_weights(self) -> DraftBlockWeights:
        model, kind = self._model, self._kind
        rank, width, size = model.rank, model.hidden, model.vocabulary
        state: dict[str, Tensor] = {}
        if kind.head == "rnn":
            joint = self._normal(3 * rank, 2 * rank + width, scale=width**-0.5)
            state = {
                "state_recurrent": joint[:, :rank],
                "state_code": joint[:, rank : 2 * rank],
                "state_hidden": joint[:, 2 * rank :],
                "state_bias": self._normal(3 * rank),
            }
        weights = DraftBlockWeights(
            kind.head,
            self._normal(size, rank),
            self._normal(size, rank, scale=rank**-0.5),
            confidence_hidden=self._normal(width, scale=width**-0.5, dtype=torch.float32),
            confidence_code=self._normal(rank, scale=rank**-0.5, dtype=torch.float32),
            confidence_bias=torch.zeros(1, device=self._device),
            **state,
        )
        return weights.with_w2(_FLOAT8) if kind.w2 == _FLOAT8 else weights

    def _made_inputs(self) -> DraftBlockInputs:
        rows, model = self._batch, self._model
        row = torch.arange(rows, device=self._device)
        return DraftBlockInputs(
            anchors=row % model.vocabulary,
            hidden=self._normal(rows, model.gamma, model.hidden),
            base_logits=self._normal(rows, model.gamma, model.vocabulary, scale=2.0),
            temperatures=torch.full((rows,), float(self._kind.sampled), device=self._device),
            request_keys=row * 7919,
            positions=row,
            slopes=torch.ones(model.gamma, device=self._device),
            intercepts=torch.zeros(model.gamma, device=self._device),
            sampled=self._kind.sampled,
        )

    def _floor_bytes(self) -> int:
        weights, inputs = self._weights, self._inputs
        position = weights.w2.numel() * weights.w2.element_size()
        position += 0 if weights.w2_scales is None else 4 * weights.w2_scales.numel()
        total = inputs.gamma * position + inputs.base_logits.numel() * 2
        return total + (0 if self._kind.kept is None else inputs.base_logits.numel() * 2)

    # ---- contenders ----

    def _eager(self) -> object:
        """What one writes without kernels, with torch's own random numbers."""
        weights, inputs = self._weights, self._inputs
        return _eager_block(
            weights.w1,
            weights.w2,
            weights.confidence_hidden,
            weights.confidence_code,
            inputs.anchors,
            inputs.hidden,
            inputs.base_logits,
            inputs.temperatures,
            sampled=inputs.sampled,
        )

    def _compiled(self) -> Callable[[], object]:
        if self._device.type != "cuda":
            return self._eager
        compiled = torch.compile(_eager_block, fullgraph=True, dynamic=True)
        weights, inputs = self._weights, self._inputs
        return lambda: compiled(
            weights.w1,
            weights.w2,
            weights.confidence_hidden,
            weights.confidence_code,
            inputs.anchors,
            inputs.hidden,
            inputs.base_logits,
            inputs.temperatures,
            sampled=inputs.sampled,
        )

    def _unfused(self) -> object:
        """The same stream and order with the bias written out: four launches a position, and the
        confidence head's own."""
        weights, inputs, gamma = self._weights, self._inputs, self._model.gamma
        rows, size = self._batch, self._model.vocabulary
        words = torch.full((gamma, rows), LEAST_WORD, dtype=torch.long, device=self._device)
        tokens = torch.empty(gamma + 1, rows, dtype=torch.long, device=self._device)
        tokens[0] = inputs.anchors
        logits = []
        for index in range(gamma):
            code = weights.w1[tokens[index]]
            bias = code @ weights.w2.T
            grid = (triton.cdiv(size, _UNFUSED_TILE), rows)
            _order[grid](
                bias,
                inputs.base_logits[:, index],
                inputs.base_logits.stride(0),
                inputs.temperatures,
                inputs.request_keys,
                inputs.positions,
                words[index],
                index,
                size,
                SAMPLED=inputs.sampled,
                BLOCK_V=_UNFUSED_TILE,
                enable_fp_fusion=False,
            )
            _decode[(rows,)](words[index], tokens[index + 1])
            logits.append(_confidence(weights, inputs.hidden[:, index], code))
        survival = torch.sigmoid(torch.stack(logits, dim=1)).cumprod(dim=1)
        return tokens, survival

    def _check(self) -> dict[str, float]:
        """First and last row against float64, on the tokens that were drafted."""
        output = self._fused.run()
        rows = torch.tensor(sorted({0, self._batch - 1}), device=self._device)
        rounded = self._kind.head != "vanilla"
        tolerance = Tolerance(logits=5e-3 if rounded else 1e-4, confidence=1e-4)
        near = assert_block_is_right(
            self._weights, select_rows(self._inputs, rows), _rows_of(output, rows), tolerance
        )
        return {"near_ties": float(near)}


def _variants_of(
    own: DraftBlockConfiguration,
) -> Iterator[tuple[str, DraftBlockConfiguration]]:
    changes: list[tuple[str, dict[str, Any]]] = [
        ("forward", {"serpentine": False}),
        ("4 tiles", {"tiles": 4}),
        ("8 warps" if own.warps == 4 else "4 warps", {"warps": 12 - own.warps}),
        ("half tile", {"block_v": own.block_v // 2}),
        ("double tile", {"block_v": own.block_v * 2}),
    ]
    # Dependent launch is an instruction of the hardware: the interpreter has none.
    if own.dependent or torch.cuda.is_available():
        name = "independent" if own.dependent else "dependent"
        changes.append((name, {"dependent": not own.dependent}))
    if own.tensor_cores:
        changes.append(("whole rank", {"block_r": 256, "stages": 1}))
        changes.append(("4 stages", {"stages": 4}))
    for name, change in changes:
        yield name, replace(own, **change)


def _guarded(block: FusedDraftBlock) -> Callable[[], object]:
    """Tiles that do not fit the card are a note, not the end of the run."""

    def run() -> object:
        try:
            return block.run()
        except triton.errors.TritonError as error:
            raise RuntimeError(str(error)) from error

    return run


def _eager_block(
    w1: Tensor,
    w2: Tensor,
    confidence_hidden: Tensor,
    confidence_code: Tensor,
    anchors: Tensor,
    hidden: Tensor,
    base_logits: Tensor,
    temperatures: Tensor,
    *,
    sampled: bool,
) -> tuple[Tensor, Tensor]:
    """Tokens [B, γ] and survival [B, γ], one position after the other."""
    previous, tokens, confidences = anchors, [], []
    for index in range(hidden.shape[1]):
        code = w1[previous]
        logits = (base_logits[:, index] + code @ w2.T).float()
        if sampled:
            noise = -torch.empty_like(logits).exponential_().log()
            logits = logits + temperatures[:, None] * noise
        z = hidden[:, index].float() @ confidence_hidden + code.float() @ confidence_code
        previous = logits.argmax(dim=-1)
        tokens.append(previous)
        confidences.append(torch.sigmoid(z))
    return torch.stack(tokens, dim=1), torch.stack(confidences, dim=1).cumprod(dim=1)


def _confidence(weights: DraftBlockWeights, hidden: Tensor, code: Tensor) -> Tensor:
    if weights.confidence_hidden is None or weights.confidence_code is None:
        raise ValueError("the benchmark's heads have a confidence head")
    return hidden.float() @ weights.confidence_hidden + code.float() @ weights.confidence_code


def _rows_of(output: DraftBlockOutput, rows: Tensor) -> DraftBlockOutput:
    names = ("tokens", "draft_ids", "confidence_logits", "confidences", "survival")
    parts = {name: getattr(output, name) for name in (*names, "logits", "log_sum_exp")}
    return DraftBlockOutput(**{k: None if v is None else v[rows] for k, v in parts.items()})


@triton.jit
def _order(
    bias,
    base,
    base_row,
    temperatures,
    keys,
    positions,
    words,
    index,
    size,
    SAMPLED: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    row = tl.program_id(1)
    ids = tl.program_id(0) * BLOCK_V + tl.arange(0, BLOCK_V)
    inside = ids < size
    scores = tl.load(base + row * base_row + ids, mask=inside, other=0.0).to(tl.float32)
    scores += tl.load(bias + row.to(tl.int64) * size + ids, mask=inside, other=0.0).to(tl.float32)
    if SAMPLED:
        group = tl.program_id(0) * (BLOCK_V // 4)
        noise = gumbel_tile(
            tl.load(keys + row), tl.load(positions + row), index + 1, group, BLOCK_V // 4, 1, False
        )
        scores += tl.load(temperatures + row) * noise
    packed = tl.where(inside, packed_words(scores, ids), -9223372036854775808)
    tl.atomic_max(words + row, tl.max(packed, axis=0), sem="relaxed")


@triton.jit
def _decode(words, tokens):
    row = tl.program_id(0)
    tl.store(tokens + row, decoded_ids(tl.load(words + row)))
