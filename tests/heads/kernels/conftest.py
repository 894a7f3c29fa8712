"""Where kernels run under test, and the compiler without a GPU.

By default kernels run in Triton's interpreter on the CPU. With ``TRITON_INTERPRET=0`` in the
environment and a GPU at hand the same tests run compiled on it. A process is one or the other,
because Triton reads the variable when it is first imported.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch

from tests.heads.kernels import interpreter
from tests.heads.kernels.compilation import Compiler

interpreter.install()
if not interpreter.INTERPRETED and not torch.cuda.is_available():
    raise pytest.UsageError("TRITON_INTERPRET=0 needs a GPU; leave it out to interpret kernels")


@pytest.fixture(autouse=True)
def _hardware_arithmetic() -> Iterator[None]:
    """Kernels meet NaN and infinities on purpose; NumPy's warnings about them are none of ours."""
    with interpreter.hardware_arithmetic(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "All-NaN", RuntimeWarning)
        yield


@pytest.fixture(scope="session")
def device() -> torch.device:
    """Where kernels run: the CPU when they are interpreted, else the GPU."""
    return torch.device("cpu" if interpreter.INTERPRETED else "cuda")


@pytest.fixture(scope="session")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Compiler]:
    """Compiles kernels ahead of time for GPUs that are not here; see ``compilation``."""
    with Compiler(tmp_path_factory.mktemp("triton")) as running:
        yield running
