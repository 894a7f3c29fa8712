"""The dispatcher: what it chooses, what it says, and what it refuses."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError

import pytest
import torch
from torch import Tensor

from calib.errors import ConfigurationError
from heads import kernel_dispatch
from heads.kernel_dispatch import OPERATIONS, VARIABLE, Implementation, decide, why

pytestmark = pytest.mark.torch


class OnGpu(Tensor):
    """A tensor that says it lies on a GPU."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("cuda", 0)


def on_gpu(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.zeros(*shape, dtype=dtype).as_subclass(OnGpu)


def _forget() -> None:
    kernel_dispatch._architecture_obstacle.cache_clear()
    kernel_dispatch._triton_obstacle.cache_clear()


@pytest.fixture(autouse=True)
def _automatic(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(VARIABLE, raising=False)
    _forget()
    yield
    _forget()  # what was made up here


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a GPU of compute capability 9.0 were here."""
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")


def test_the_cpu_runs_the_reference_and_says_so() -> None:
    rows = [torch.zeros(2, 8), torch.zeros(2, 8)]
    assert why("soft_label", rows) == "reference: the tensors are on the CPU"
    assert not decide("soft_label", rows).uses_kernels


@pytest.mark.usefixtures("hopper")
def test_a_gpu_runs_kernels_and_says_on_what() -> None:
    rows = [on_gpu(2, 8, dtype=torch.bfloat16), on_gpu(2, 8)]
    assert why("soft_label", rows) == "triton: compiled for NVIDIA H200"
    decision = decide("soft_label", rows)
    assert decision.implementation is Implementation.TRITON
    assert decision.operation == "soft_label"


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize(
    ("operation", "tensors", "reason"),
    [
        ("soft_label", [], "no tensors"),
        ("soft_label", [on_gpu(2, 8, dtype=torch.float64)], "float64"),
        ("soft_label", [on_gpu(8, 2).t()], "gaps"),
        ("soft_label", [torch.zeros(2, 8), on_gpu(2, 8)], "cpu, cuda:0"),
        ("soft_label", [on_gpu(1, 1).expand(1, (1 << 24) + 1)], "gaps"),
        ("soft_label", [torch.zeros(2, 8, device="meta")], "no kernels for meta"),
        ("reliability_bins", [on_gpu(3), on_gpu(3)], "positions"),
        ("reliability_bins", [on_gpu(3, 2, dtype=torch.long)], "int64"),
        ("reliability_bins", [on_gpu(1, 70_000)], "70000 positions"),
        ("draft_block", [on_gpu(8, 2).t()], "gaps"),
    ],
)
def test_every_fall_back_has_its_reason(operation: str, tensors: list[Tensor], reason: str) -> None:
    answer = why(operation, tensors)
    assert answer.startswith("reference: ")
    assert reason in answer


@pytest.mark.usefixtures("hopper")
def test_sizes_beyond_one_launch_fall_back() -> None:
    vocabulary = on_gpu((1 << 24) + 1)
    assert "16777217 is above" in why("soft_label", [vocabulary])
    many = torch.zeros(1, 1).expand(1 << 26, 1).as_subclass(OnGpu)
    assert "rows are more" in why("soft_label", [many])


def test_old_and_unknown_gpus_fall_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (7, 5))
    assert "7.5 is below 8.0" in why("soft_label", [on_gpu(2, 8)])

    class Properties:
        gcnArchName = "gfx1100:sramecc+"

    kernel_dispatch._architecture_obstacle.cache_clear()
    monkeypatch.setattr(torch.version, "hip", "6.4")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: Properties)
    assert "not gfx1100" in why("soft_label", [on_gpu(2, 8)])
    kernel_dispatch._architecture_obstacle.cache_clear()
    Properties.gcnArchName = "gfx942:sramecc+:xnack-"
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "AMD Instinct MI300X")
    assert why("soft_label", [on_gpu(2, 8)]) == "triton: compiled for AMD Instinct MI300X"


@pytest.mark.usefixtures("hopper")
def test_without_triton_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_dispatch, "find_spec", lambda name: None)
    assert "install the `kernels` extra" in why("soft_label", [on_gpu(2, 8)])
    monkeypatch.setenv(VARIABLE, "triton")
    with pytest.raises(ConfigurationError, match="triton is not installed"):
        decide("soft_label", [torch.zeros(2, 8)])


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize(
    ("installed", "answer"),
    [
        ("3.1.0", "reference: triton 3.1.0 is older than 3.7"),
        ("3.7.1", "triton: compiled for NVIDIA H200"),
        ("3.10.0+git1a2b3c", "triton: compiled for NVIDIA H200"),
        (None, "triton: compiled for NVIDIA H200"),  # of another name, as AMD's builds are
    ],
)
def test_a_triton_too_old_is_not_tried(
    installed: str | None, answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(name: str) -> str:
        if installed is None:
            raise PackageNotFoundError(name)
        return installed

    monkeypatch.setattr(kernel_dispatch, "version", version)
    assert why("soft_label", [on_gpu(2, 8)]) == answer


@pytest.mark.usefixtures("hopper")
def test_the_override_is_obeyed_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "reference")
    assert why("soft_label", [on_gpu(2, 8)]) == f"reference: {VARIABLE}=reference"
    monkeypatch.setenv(VARIABLE, " Triton ")
    assert decide("soft_label", [on_gpu(2, 8)]).uses_kernels
    with pytest.raises(ConfigurationError, match="float64"):
        decide("soft_label", [on_gpu(2, 8, dtype=torch.float64)])
    monkeypatch.setattr(kernel_dispatch, "_is_interpreting", lambda: False)
    with pytest.raises(ConfigurationError, match="set TRITON_INTERPRET=1"):
        decide("soft_label", [torch.zeros(2, 8)])
    monkeypatch.setattr(kernel_dispatch, "_is_interpreting", lambda: True)
    assert why("soft_label", [torch.zeros(2, 8)]) == "triton: interpreted on the CPU"
    monkeypatch.setenv(VARIABLE, "cuda")
    with pytest.raises(ConfigurationError) as caught:
        decide("soft_label", [torch.zeros(2, 8)])
    assert caught.value.field == VARIABLE


def test_unknown_operations_are_refused() -> None:
    with pytest.raises(ConfigurationError) as caught:
        decide("softmax", [torch.zeros(1)])
    assert all(name in str(caught.value) for name in OPERATIONS)


@pytest.mark.slow
def test_dispatch_and_ops_import_without_triton() -> None:
    """Whoever has no GPU needs no Triton, not even to load."""
    script = (
        "import sys\n"
        "import heads.kernel_dispatch, heads.kernels.custom_ops, heads.losses, heads.soft_labels\n"
        "print('triton' in sys.modules)\n"
    )
    command = [sys.executable, "-c", script]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "False"
