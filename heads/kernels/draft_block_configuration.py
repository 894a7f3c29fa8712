"""How the draft block is launched: a static table by architecture and batch, without tuning.

Nothing is measured at run time: a block that tuned itself could not be captured into a CUDA graph,
and would not be the same on two ranks. Each entry compiles without spills for its architecture
(``tests/heads/kernels/test_draft_block_compilation.py``). No entry has been timed on a GPU yet;
``benchmarks/gpu_kernels.py`` is there to do it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from calib.errors import ConfigurationError

# Most elements a tile may have, in Triton and in its interpreter.
_LARGEST_TILE = 1 << 20
INTERPRETER = "interpreter"


@dataclass(frozen=True, slots=True)
class DraftBlockConfiguration:
    """Shape of the tiles of one architecture and batch.

    Attributes:
        block_v: draft ids of a tile; a power of two, at least 16.
        block_b: rows of a tile; 1, or a power of two of at least 16 with tensor cores.
        block_r: ranks taken at a time.
        tiles: tiles of one program, in turn. More than one take twice the registers, because what
            all tiles share is kept; no entry of the table does it.
        warps: of a program.
        stages: of the software pipeline over ranks.
        tensor_cores: False multiplies and adds, for a single row.
        serpentine: odd positions go through W2 backwards, so that they begin with what the
            position before left in L2.
        dependent: programmatic dependent launch, from compute capability 9.0 on.
        decode_float8: read a float8 W2 as bytes, for hardware without the type.

    Raises:
        ConfigurationError: a tile that kernels cannot have.
    """

    block_v: int
    block_b: int
    block_r: int
    tiles: int = 1
    warps: int = 4
    stages: int = 3
    tensor_cores: bool = True
    serpentine: bool = True
    dependent: bool = False
    decode_float8: bool = False

    def __post_init__(self) -> None:
        for name, least in (("block_v", 16), ("block_b", 1), ("block_r", 16)):
            value = getattr(self, name)
            if value < least or value & (value - 1):
                raise ConfigurationError(name, value, f"give a power of two, at least {least}")
        if self.tensor_cores != (self.block_b >= 16):
            raise ConfigurationError(
                "block_b", self.block_b, "tensor cores take 16 rows or more, sums of products one"
            )
        if self.block_b > 1 and not self.tensor_cores:
            raise ConfigurationError("block_b", self.block_b, "give 1 without tensor cores")
        if self.block_v * max(self.block_b, self.block_r) > _LARGEST_TILE:
            raise ConfigurationError("block_v", self.block_v, "tiles may have 2**20 elements")

    @property
    def ids_a_program(self) -> int:
        """Draft ids that one program reduces."""
        return self.block_v * self.tiles

    def programs(self, shard_size: int) -> int:
        """Programs that share a shard of the vocabulary."""
        return -(-shard_size // self.ids_a_program)


# (rows up to, configuration) of 16-bit and 8-bit W2. A single row is bound by bytes in flight, so
# it takes narrow tiles without tensor cores; from 65 rows on several programs share a tile of W2
# through L2.
_Table = tuple[tuple[int, DraftBlockConfiguration], ...]
_NARROW = DraftBlockConfiguration(32, 1, 256, stages=1, tensor_cores=False)
_ANY = 1 << 30

_NVIDIA: _Table = (
    (1, _NARROW),
    (16, DraftBlockConfiguration(128, 16, 64)),
    (32, DraftBlockConfiguration(128, 32, 64, warps=8)),
    (_ANY, DraftBlockConfiguration(128, 64, 64, warps=8)),
)
# 64 KiB of local memory on CDNA 3: one stage less.
_AMD: _Table = tuple(
    (rows, entry if rows == 1 else replace(entry, stages=2)) for rows, entry in _NVIDIA
)
_TABLES: dict[str, _Table] = {
    "sm80": _NVIDIA,
    "sm90": tuple((rows, replace(entry, dependent=True)) for rows, entry in _NVIDIA),
    "sm100": tuple((rows, replace(entry, dependent=True)) for rows, entry in _NVIDIA),
    "gfx942": _AMD,
    "gfx950": _AMD,
}
ARCHITECTURES = tuple(_TABLES)


def architecture_of(device: torch.device) -> str:
    """Row of the table for a device; the nearest older one where it has none.

    Raises:
        ConfigurationError: a device that runs no Triton kernels, outside the interpreter.
    """
    if device.type != "cuda":
        # The dispatcher has asked before whether kernels are interpreted.
        return INTERPRETER
    properties = torch.cuda.get_device_properties(device)
    if torch.version.hip is not None:
        name = str(properties.gcnArchName).partition(":")[0]
        return name if name in _TABLES else "gfx942"
    capability = properties.major * 10 + properties.minor
    older = [n for n in (80, 90, 100) if n <= capability]
    if not older:
        raise ConfigurationError(
            "device", f"compute capability {capability / 10}", "kernels need 8.0 or newer"
        )
    return f"sm{older[-1]}"


def configuration_for(
    architecture: str,
    rows: int,
    *,
    rank: int,
    shard_size: int,
    w2_dtype: torch.dtype,
    sampled: bool = True,
    log_sum_exp: bool = False,
) -> DraftBlockConfiguration:
    """Entry of the table for a batch.

    Raises:
        ConfigurationError: no such architecture.
    """
    if architecture == INTERPRETER:
        return _interpreted(rows, rank, shard_size)
    if architecture not in _TABLES:
        raise ConfigurationError("architecture", architecture, f"one of {', '.join(_TABLES)}")
    entry = next(entry for limit, entry in _TABLES[architecture] if rows <= limit)
    if w2_dtype == torch.float32 and entry.tensor_cores:
        # Twice the bytes, and no 32-bit tensor cores that keep 32 bits: half the tile, as 64 rows
        # with log-sum-exps spill on CDNA 3.
        block_b = min(entry.block_b, 32)
        entry = replace(entry, block_v=2048 // block_b, block_b=block_b, block_r=32)
    elif sampled and entry.block_b > 32 and not log_sum_exp:
        # Half the registers, so that two programs share a multiprocessor. Where partial sums are
        # merged, fewer and larger programs leave fewer of them.
        entry = replace(entry, block_v=64)
    elif log_sum_exp and entry.block_b == 32:
        # The same registers a thread, where 8 warps make assemblers spill to fit two programs.
        entry = replace(entry, block_v=64, warps=4)
    if w2_dtype == torch.float8_e4m3fn and architecture == "sm80":
        entry = replace(entry, decode_float8=True)
    return replace(entry, block_r=min(entry.block_r, _power_of_two(rank, least=16)))


def _interpreted(rows: int, rank: int, shard_size: int) -> DraftBlockConfiguration:
    """Large tiles: the interpreter's cost is by program, not by element."""
    block_r = min(256, _power_of_two(rank, least=16))
    block_b = 1 if rows == 1 else min(64, _power_of_two(rows, least=16))
    block_v = min(2048, _power_of_two(shard_size, least=16))
    return DraftBlockConfiguration(
        block_v, block_b, block_r, stages=1, tensor_cores=rows > 1, dependent=False
    )


def _power_of_two(number: int, *, least: int) -> int:
    return max(least, 1 << (number - 1).bit_length())
