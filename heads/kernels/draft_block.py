"""The draft block on a GPU: γ + 1 launches for a vanilla head, 2γ + 2 for gated and RNN heads.

The twin of :mod:`heads.reference.draft_block`, over the kernels of
:mod:`heads.kernels.draft_block_kernel` and :mod:`heads.kernels.head_state_kernel`. All launches of
a block are planned once; running them reads nothing back, allocates nothing and tunes nothing, so
a block can be captured into a CUDA graph and replayed after its inputs were written in place.

    block = FusedDraftBlock(weights, inputs, workspace)   # once for these buffers
    block.run()                                           # once before a capture: it compiles
    with torch.cuda.graph(graph):
        block.run()

With programmatic dependent launch a position begins while the one before it ends, and reads W2
and U before it waits. That is right as long as the first launch of the block is an ordinary one,
which it is: everything before the block has then ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from calib.errors import ConfigurationError
from heads.draft_block import (
    LEAST_IDS_A_PROGRAM,
    DraftBlockInputs,
    DraftBlockOutput,
    DraftBlockWorkspace,
    check_block,
)
from heads.draft_block_weights import DraftBlockWeights
from heads.kernels.draft_block_configuration import (
    DraftBlockConfiguration,
    architecture_of,
    configuration_for,
)
from heads.kernels.draft_block_kernel import position_kernel, prepare_kernel
from heads.kernels.head_state_kernel import gated_kernel, projection_kernel, recurrent_kernel

# Tiles of the small kernels: 4,096 elements in 4 warps are 32 registers a thread.
_PREPARE_PAIRS, _PREPARE_WIDTH = 16, 256
_STATE_OUTPUTS, _STATE_ROWS, _STATE_DEPTH = 64, 16, 64


@dataclass(frozen=True, slots=True)
class KernelLaunch:
    """One launch, ready to run.

    Attributes:
        kernel: the Triton kernel.
        grid: programs along each axis.
        arguments: by name, compile-time constants included.
        options: warps, stages and the like.
    """

    kernel: Any
    grid: tuple[int, ...]
    arguments: dict[str, Any]
    options: dict[str, Any]

    def run(self) -> None:
        """Enqueue it on the current stream."""
        self.kernel[self.grid](**self.arguments, **self.options)


def draft_block(
    weights: DraftBlockWeights,
    inputs: DraftBlockInputs,
    workspace: DraftBlockWorkspace,
) -> DraftBlockOutput:
    """Draft one block a row; views of the workspace.

    Raises:
        ConfigurationError: parts that do not belong together.
    """
    return FusedDraftBlock(weights, inputs, workspace).run()


class FusedDraftBlock:
    """The launches of a block over fixed buffers; see :class:`heads.draft_block.DraftBlock`.

    Args:
        weights: of the heads.
        inputs: of the step; later steps write into the same tensors.
        workspace: scratch and results.
        configuration: of the tiles; None takes the table's.

    Raises:
        ConfigurationError: parts that do not belong together, or tiles so narrow that the
            workspace cannot hold their partial sums.
    """

    def __init__(
        self,
        weights: DraftBlockWeights,
        inputs: DraftBlockInputs,
        workspace: DraftBlockWorkspace,
        configuration: DraftBlockConfiguration | None = None,
    ) -> None:
        check_block(weights, inputs, workspace)
        self.weights, self.inputs, self.workspace = weights, inputs, workspace
        self.configuration = configuration or configuration_for(
            architecture_of(weights.w2.device),
            inputs.rows,
            rank=weights.rank,
            shard_size=weights.shard_size,
            w2_dtype=weights.w2.dtype,
            sampled=inputs.sampled,
            log_sum_exp=workspace.partials is not None,
        )
        if self.configuration.ids_a_program < LEAST_IDS_A_PROGRAM:
            raise ConfigurationError(
                "block_v", self.configuration.block_v, f"give {LEAST_IDS_A_PROGRAM} or more"
            )
        self._preparation = [self._prepare_launch()]
        if weights.head != "vanilla":
            self._preparation.append(self._projection_launch())
        self._positions = [self._position_launches(index) for index in range(inputs.gamma)]

    @property
    def launches(self) -> tuple[KernelLaunch, ...]:
        """All launches of a block, in order."""
        return (*self._preparation, *(one for each in self._positions for one in each))

    def run(self) -> DraftBlockOutput:
        """Enqueue the whole block on the current stream; results are views of the workspace."""
        self._enqueue(self.launches)
        return self.workspace.output(self.inputs.rows)

    def prepare(self) -> None:
        """Reset the scratch and compute what depends on no token."""
        self._enqueue(self._preparation)

    def position(self, index: int) -> None:
        """Draft position ``index`` + 1."""
        self._enqueue(self._positions[index])

    def _enqueue(self, launches: Sequence[KernelLaunch]) -> None:
        # Triton launches on the current device, which need not be the tensors'.
        with torch.cuda.device_of(self.weights.w2):
            for launch in launches:
                launch.run()

    def _options(self, *, warps: int, stages: int, dependent: bool) -> dict[str, Any]:
        # Contraction would round noise and near-ties differently from one device to the next.
        options = {"num_warps": warps, "num_stages": stages, "enable_fp_fusion": False}
        return {**options, "launch_pdl": True} if dependent else options

    def _prepare_launch(self) -> KernelLaunch:
        inputs, space, weights = self.inputs, self.workspace, self.weights
        arguments = {
            "hidden_ptr": inputs.hidden,
            "hidden_row": inputs.hidden.stride(0),
            "hidden_position": inputs.hidden.stride(1),
            "confidence_hidden_ptr": weights.confidence_hidden,
            "confidence_bias_ptr": weights.confidence_bias,
            "confidence_base_ptr": space.confidence_base,
            "words_ptr": space.words,
            "words_stride": space.words.stride(0),
            "arrivals_ptr": space.arrivals,
            "rows": inputs.rows,
            "gamma": inputs.gamma,
            "width": inputs.hidden.shape[-1],
            "BLOCK_B": _PREPARE_PAIRS,
            "BLOCK_D": _PREPARE_WIDTH,
        }
        grid = (-(-inputs.rows * inputs.gamma // _PREPARE_PAIRS),)
        return KernelLaunch(
            prepare_kernel, grid, arguments, self._options(warps=4, stages=2, dependent=False)
        )

    def _projection_launch(self) -> KernelLaunch:
        inputs, weights = self.inputs, self.weights
        outputs = weights.state_outputs * weights.rank
        weight = _known(weights.state_hidden)
        arguments = {
            "hidden_ptr": inputs.hidden,
            "hidden_row": inputs.hidden.stride(0),
            "hidden_position": inputs.hidden.stride(1),
            "weight_ptr": weight,
            "weight_row": weight.stride(0),
            "bias_ptr": weights.state_bias,
            "projected_ptr": self.workspace.projected,
            "rows": inputs.rows,
            "gamma": inputs.gamma,
            "outputs": outputs,
            "width": inputs.hidden.shape[-1],
            "BLOCK_N": _STATE_OUTPUTS,
            "BLOCK_B": _STATE_ROWS,
            "BLOCK_D": _STATE_DEPTH,
        }
        grid = (-(-outputs // _STATE_OUTPUTS), -(-inputs.rows * inputs.gamma // _STATE_ROWS))
        return KernelLaunch(
            projection_kernel, grid, arguments, self._options(warps=4, stages=3, dependent=False)
        )

    def _position_launches(self, index: int) -> list[KernelLaunch]:
        if self.weights.head == "vanilla":
            return [self._position_launch(index)]
        return [self._state_launch(index), self._position_launch(index)]

    def _state_launch(self, index: int) -> KernelLaunch:
        weights, space, tiles = self.weights, self.workspace, self.configuration
        weight = _known(weights.state_code)
        arguments = {
            "w1_ptr": weights.w1,
            "w1_row": weights.w1.stride(0),
            "code_weight_ptr": weight,
            "code_weight_row": weight.stride(0),
            "projected_ptr": space.projected,
            "anchors_ptr": self.inputs.anchors,
            "words_ptr": space.words,
            "words_stride": space.words.stride(0),
            "draft_to_target_ptr": weights.draft_to_target,
            "latents_ptr": space.latents,
            "index": index,
            "rows": self.inputs.rows,
            "gamma": self.inputs.gamma,
            "vocabulary": weights.w1.shape[0],
            "RANK": weights.rank,
            "BLOCK_N": _STATE_OUTPUTS,
            "BLOCK_B": _STATE_ROWS,
            "BLOCK_R": min(_STATE_DEPTH, max(16, tiles.block_r)),
            "DEPENDENT": tiles.dependent,
        }
        kernel = gated_kernel
        if weights.state_recurrent is not None:
            kernel = recurrent_kernel
            arguments |= {
                "state_weight_ptr": weights.state_recurrent,
                "state_weight_row": weights.state_recurrent.stride(0),
                "states_ptr": space.states,
                "states_turn": space.states.stride(0),
            }
        grid = (-(-weights.rank // _STATE_OUTPUTS), -(-self.inputs.rows // _STATE_ROWS))
        options = self._options(warps=4, stages=2, dependent=tiles.dependent)
        return KernelLaunch(kernel, grid, arguments, options)

    def _position_launch(self, index: int) -> KernelLaunch:
        tiles = self.configuration
        programs = tiles.programs(self.weights.shard_size)
        row_blocks = -(-self.inputs.rows // tiles.block_b)
        arguments = {
            **self._weight_arguments(),
            **self._input_arguments(),
            **self._buffer_arguments(),
            "index": index,
            "rows": self.inputs.rows,
            "gamma": self.inputs.gamma,
            "shard_size": self.weights.shard_size,
            "vocabulary": self.weights.w1.shape[0],
            "vocabulary_offset": self.weights.vocabulary_offset,
            "programs": programs,
            "row_blocks": row_blocks,
            "RANK": self.weights.rank,
            "BLOCK_V": tiles.block_v,
            "BLOCK_B": tiles.block_b,
            "BLOCK_R": tiles.block_r,
            "TILES": tiles.tiles,
            "USE_DOT": tiles.tensor_cores,
            "SAMPLED": self.inputs.sampled,
            "SERPENTINE": tiles.serpentine,
            "DEPENDENT": tiles.dependent,
        }
        options = self._options(warps=tiles.warps, stages=tiles.stages, dependent=tiles.dependent)
        # One more program a block of rows keeps the books.
        return KernelLaunch(position_kernel, ((programs + 1) * row_blocks,), arguments, options)

    def _weight_arguments(self) -> dict[str, Any]:
        weights, space = self.weights, self.workspace
        vanilla = weights.head == "vanilla"
        w2 = weights.w2
        if self.configuration.decode_float8 and weights.w2_scales is not None:
            w2 = w2.view(torch.uint8)
        return {
            "w1_ptr": weights.w1,
            "w1_row": weights.w1.stride(0),
            "latent_ptr": None if vanilla else space.latents,
            "latent_row": space.latents.stride(0),
            "w2_ptr": w2,
            "w2_row": w2.stride(0),
            "w2_scales_ptr": weights.w2_scales,
            "confidence_code_ptr": weights.confidence_code,
            "draft_to_target_ptr": weights.draft_to_target,
        }

    def _input_arguments(self) -> dict[str, Any]:
        inputs = self.inputs
        return {
            "base_ptr": inputs.base_logits,
            "base_row": inputs.base_logits.stride(0),
            "base_position": inputs.base_logits.stride(1),
            "anchors_ptr": inputs.anchors,
            "temperatures_ptr": inputs.temperatures,
            "request_keys_ptr": inputs.request_keys,
            "positions_ptr": inputs.positions,
            "slopes_ptr": inputs.slopes,
            "slopes_row": inputs.slopes.stride(0) if inputs.slopes.dim() > 1 else 0,
            "intercepts_ptr": inputs.intercepts,
            "intercepts_row": inputs.intercepts.stride(0) if inputs.intercepts.dim() > 1 else 0,
        }

    def _buffer_arguments(self) -> dict[str, Any]:
        space, results = self.workspace, self.workspace.results
        partials, logits = space.partials, results.logits
        return {
            "confidence_base_ptr": space.confidence_base,
            "words_ptr": space.words,
            "words_stride": space.words.stride(0),
            "arrivals_ptr": space.arrivals,
            "partials_ptr": partials,
            "partials_turn": 0 if partials is None else partials.stride(0),
            "partials_kind": 0 if partials is None else partials.stride(1),
            "tokens_ptr": results.tokens,
            "draft_ids_ptr": results.draft_ids,
            "confidence_logits_ptr": results.confidence_logits,
            "confidences_ptr": results.confidences,
            "survival_ptr": results.survival,
            "logits_ptr": logits,
            "logits_row": 0 if logits is None else logits.stride(0),
            "logits_position": 0 if logits is None else logits.stride(1),
            "log_sum_exp_ptr": results.log_sum_exp,
        }


def _known(tensor: Any) -> Any:
    """A weight that gated and RNN heads always have."""
    if tensor is None:
        raise ConfigurationError("state_hidden", None, "a gated or RNN head needs its weights")
    return tensor
