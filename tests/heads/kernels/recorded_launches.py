"""What a launcher would launch, as jobs for the compiler, without launching it.

A launcher is called with real tensors while its kernels are replaced by recorders; types,
constants and divisibility then are those that Triton would infer on a GPU, and nothing can differ
between what runs and what is compiled here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from tests.heads.kernels.compilation import Compilation, Constant

_TYPES = {
    torch.float64: "*fp64",
    torch.float32: "*fp32",
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.int64: "*i64",
    torch.int32: "*i32",
    torch.uint8: "*u8",
}


@contextmanager
def recorded(module: ModuleType, name: str) -> Iterator[list[Compilation]]:
    """Jobs of every launch that functions of a module make inside the block.

    Args:
        module: whose kernels, named ``…_kernel``, are replaced.
        name: of the jobs, after the kernel's own.
    """
    kernels = {n: k for n, k in vars(module).items() if n.endswith("_kernel")}
    jobs: list[Compilation] = []
    for kernel_name, kernel in kernels.items():
        setattr(module, kernel_name, _Recorder(module, kernel_name, kernel, name, jobs))
    try:
        yield jobs
    finally:
        for kernel_name, kernel in kernels.items():
            setattr(module, kernel_name, kernel)


class _Recorder:
    def __init__(
        self,
        module: ModuleType,
        kernel_name: str,
        kernel: Any,
        name: str,
        jobs: list[Compilation],
    ) -> None:
        self._kernel, self._jobs = f"{module.__name__}:{kernel_name}", jobs
        self._names = kernel.arg_names
        self._plain = _plain(kernel)
        self._name = f"{kernel_name.removesuffix('_kernel').replace('_', '-')}-{name}"

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return self._record

    def _record(self, *positional: Any, **named: Any) -> None:
        given = dict(zip(self._names, positional, strict=False))
        given |= {name: value for name, value in named.items() if name in self._names}
        options = {name: value for name, value in named.items() if name not in self._names}
        types: dict[str, str] = {}
        constants: dict[str, Constant] = {}
        divisible = []
        for name, value in given.items():
            if isinstance(value, Tensor):
                types[name] = _TYPES[value.dtype]
                aligned = value.data_ptr() % 16 == 0
            elif name in self._plain:
                types[name] = "i32"
                aligned = False
            elif value is None or name.isupper() or value == 1:
                constants[name] = value
                continue
            else:
                types[name] = "i32"
                aligned = value % 16 == 0
            if aligned:
                divisible.append(name)
        job = Compilation(self._kernel, types, constants, tuple(divisible), options, self._name)
        self._jobs.append(job)


def _plain(kernel: Any) -> frozenset[str]:
    """Arguments that Triton shall not look into; interpreted kernels keep the words of ``jit``."""
    if hasattr(kernel, "params"):
        return frozenset(p.name for p in kernel.params if p.do_not_specialize)
    return frozenset(kernel.kwargs.get("do_not_specialize") or ())
