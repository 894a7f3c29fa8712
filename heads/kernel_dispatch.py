"""Which implementation of an operation runs, and why.

Every operation has two twins of one signature: Triton kernels (``heads.kernels``) and eager torch
(``heads.reference``). Kernels run where they can; everything else runs the reference and says why:

>>> import torch
>>> print(why("soft_label", [torch.zeros(2, 8), torch.zeros(2, 8)]))
reference: the tensors are on the CPU

The environment variable ``DSPARK_CALIB_KERNELS`` overrides: ``reference`` never uses kernels,
``triton`` refuses to fall back (and runs kernels in Triton's interpreter on the CPU where
``TRITON_INTERPRET=1`` is set), ``auto`` is the default. Nothing here waits for a device.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

import torch
from torch import Tensor

from calib.errors import ConfigurationError

VARIABLE = "DSPARK_CALIB_KERNELS"

_LEAST_CAPABILITY = (8, 0)  # compiled for 8.0, 9.0 and 10.0; older ones lack bfloat16
_LEAST_TRITON = (3, 7)  # the oldest that kernels are tested with
_AMD = ("gfx942", "gfx950")  # the AMD architectures that kernels are compiled for in CI
_MOST_PROGRAMS = 2**31 - 1
_MOST_TOKENS = 1 << 24  # ids beyond are not exact in the float32 statistics
_SPANS = 128  # programs and partial sums of a row, all passes together, at most


class Implementation(StrEnum):
    """The twins."""

    TRITON = "triton"
    REFERENCE = "reference"


@dataclass(frozen=True, slots=True)
class Decision:
    """Which twin serves a call.

    Attributes:
        operation: name of the operation.
        implementation: what runs.
        reason: why, for people.
    """

    operation: str
    implementation: Implementation
    reason: str

    @property
    def uses_kernels(self) -> bool:
        """Whether Triton kernels run."""
        return self.implementation is Implementation.TRITON

    def __str__(self) -> str:
        return f"{self.implementation}: {self.reason}"


def why(operation: str, tensors: Sequence[Tensor]) -> str:
    """Which implementation these tensors would get and the reason, in one line.

    Raises:
        ConfigurationError: see :func:`decide`.
    """
    return str(decide(operation, tensors))


def decide(operation: str, tensors: Sequence[Tensor]) -> Decision:
    """Choose by device, type, layout and size of the main tensors of a call.

    Args:
        operation: one of ``OPERATIONS``.
        tensors: what the operation streams; see ``OPERATIONS``.

    Raises:
        ConfigurationError: an unknown operation or override; the override asks for kernels that
            cannot serve these tensors.
    """
    if operation not in OPERATIONS:
        known = ", ".join(sorted(OPERATIONS))
        raise ConfigurationError("operation", operation, f"give one of {known}")
    override = os.environ.get(VARIABLE, "auto").strip().lower()
    if override not in ("auto", *Implementation):
        raise ConfigurationError(VARIABLE, override, "give auto, triton or reference")
    if override == Implementation.REFERENCE:
        return Decision(operation, Implementation.REFERENCE, f"{VARIABLE}=reference")
    forced = override == Implementation.TRITON
    obstacle = _obstacle(operation, tensors, forced)
    if obstacle is None:
        return Decision(operation, Implementation.TRITON, _place(tensors))
    if forced:
        raise ConfigurationError(VARIABLE, "triton", f"kernels cannot run {operation}: {obstacle}")
    return Decision(operation, Implementation.REFERENCE, obstacle)


def _obstacle(operation: str, tensors: Sequence[Tensor], forced: bool) -> str | None:
    """Why kernels cannot serve, or None."""
    if not tensors:
        return "no tensors were given"
    return (
        _device_obstacle(tensors, forced)
        or _type_obstacle(operation, tensors)
        or OPERATIONS[operation].obstacle(tensors)
    )


def _device_obstacle(tensors: Sequence[Tensor], forced: bool) -> str | None:
    devices = {tensor.device for tensor in tensors}
    if len(devices) > 1:
        return f"the tensors are on {', '.join(sorted(map(str, devices)))}"
    device = devices.pop()
    if device.type == "cpu":
        if not forced:
            return "the tensors are on the CPU"
        missing = _triton_obstacle()
        if missing is not None:
            return missing
        return None if _is_interpreting() else "the tensors are on the CPU; set TRITON_INTERPRET=1"
    if device.type != "cuda":
        return f"there are no kernels for {device.type}"
    return _triton_obstacle() or _architecture_obstacle(device.index)


@cache
def _architecture_obstacle(index: int) -> str | None:
    if getattr(torch.version, "hip", None) is not None:
        name = str(torch.cuda.get_device_properties(index).gcnArchName).partition(":")[0]
        return None if name in _AMD else f"kernels are made for {' and '.join(_AMD)}, not {name}"
    major, minor = torch.cuda.get_device_capability(index)
    if (major, minor) < _LEAST_CAPABILITY:
        return f"compute capability {major}.{minor} is below 8.0"
    return None


def _type_obstacle(operation: str, tensors: Sequence[Tensor]) -> str | None:
    for tensor in tensors:
        if tensor.dtype not in OPERATIONS[operation].dtypes:
            return f"kernels do not take {str(tensor.dtype).removeprefix('torch.')}"
    return None


def _place(tensors: Sequence[Tensor]) -> str:
    device = tensors[0].device
    if device.type == "cpu":
        return "interpreted on the CPU"
    return f"compiled for {torch.cuda.get_device_name(device)}"


@cache
def _triton_obstacle() -> str | None:
    """Without importing it: who runs the reference need not wait for a compiler to load."""
    if find_spec("triton") is None:
        return "triton is not installed: install the `kernels` extra"
    try:
        installed = version("triton")
    except PackageNotFoundError:
        return None  # a build of another name, as for AMD
    known = tuple(int(part) for part in installed.split(".")[:2] if part.isdecimal())
    least = ".".join(map(str, _LEAST_TRITON))
    return None if known >= _LEAST_TRITON else f"triton {installed} is older than {least}"


def _is_interpreting() -> bool:
    import triton

    return bool(triton.knobs.runtime.interpret)


# ---- what each operation asks of its tensors ----


@dataclass(frozen=True, slots=True)
class Operation:
    """What the kernels of an operation take.

    Attributes:
        dtypes: types of the streamed tensors.
        obstacle: why tensors of these types cannot be served, or None.
    """

    dtypes: frozenset[torch.dtype]
    obstacle: Callable[[Sequence[Tensor]], str | None]


def _rows_obstacle(tensors: Sequence[Tensor]) -> str | None:
    """For [..., V] scores whose rows are streamed."""
    for tensor in tensors:
        if tensor.dim() < 1 or tensor.stride(-1) != 1:
            return "the last axis has gaps between tokens"
        if tensor.shape[-1] > _MOST_TOKENS:
            return f"a vocabulary of {tensor.shape[-1]} is above {_MOST_TOKENS}"
        rows = tensor.numel() // max(1, tensor.shape[-1])
        if rows * _SPANS > _MOST_PROGRAMS:
            return f"{rows} rows are more than one launch takes"
    return None


def _cells_obstacle(tensors: Sequence[Tensor]) -> str | None:
    """For [N, g] predictions and labels."""
    if any(tensor.dim() != 2 for tensor in tensors):
        return "kernels take [rows, positions]"
    # Programs run along rows; positions are the second axis of the grid.
    if tensors[0].shape[1] > 65_535:
        return f"{tensors[0].shape[1]} positions are more than one launch takes"
    return None


def _block_obstacle(tensors: Sequence[Tensor]) -> str | None:
    """For hidden states, base logits, W1 and W2 of a draft block."""
    if any(tensor.stride(-1) != 1 for tensor in tensors):
        return "the last axis has gaps"
    return None


_HALF = (torch.bfloat16, torch.float16)
OPERATIONS = {
    # draft and target scores [..., V]
    "soft_label": Operation(frozenset((torch.float32, *_HALF)), _rows_obstacle),
    # predictions and labels [N, g]; float64 is cast as everywhere else
    "reliability_bins": Operation(
        frozenset((torch.float32, torch.float64, *_HALF)), _cells_obstacle
    ),
    # hidden [B, γ, D], base logits [B, γ, V'], W1 [V, r], W2 [V', r]
    "draft_block": Operation(
        frozenset((torch.float32, torch.bfloat16, torch.float8_e4m3fn)), _block_obstacle
    ),
}
