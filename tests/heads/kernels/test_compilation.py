"""The harness itself: what it counts, and that it sees what it is there to catch."""

from __future__ import annotations

import pytest

from tests.heads.kernels.compilation import TARGETS, Compilation, CompilationError, Compiler

pytestmark = pytest.mark.torch

DOT = Compilation(
    "tests.heads.kernels.test_interpreter:_dot",
    types={"x": "*bf16", "y": "*bf16", "out": "*fp32"},
    constants={"SIZE": 64},
    divisible=("x", "y", "out"),
    options={"num_warps": 4},
)
DOUBLE = Compilation(
    "tests.heads.kernels.test_interpreter:_binary",
    types={"x": "*fp64", "y": "*fp64", "out": "*fp64"},
    constants={"OPERATION": 0, "SIZE": 256},
)


@pytest.mark.slow
def test_a_dot_uses_tensor_cores_and_wide_loads(compiler: Compiler) -> None:
    report = compiler.compile(DOT, "sm90", disassemble=True)
    assert report.tensor_core > 0
    assert report.wide_loads > 0
    assert report.double_precision == 0
    assert report.spills == 0
    assert 0 < report.registers <= TARGETS["sm90"].registers
    assert 0 < report.shared <= TARGETS["sm90"].shared_memory
    assert report.machine


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_every_target_compiles(compiler: Compiler, target: str) -> None:
    report = compiler.compile(DOT, target)
    assert report.tensor_core > 0
    assert report.size > 0
    assert compiler.compile(DOUBLE, target).double_precision > 0


def test_faults_are_seen(compiler: Compiler) -> None:
    scattered = Compilation(DOT.kernel, DOT.types, DOT.constants, options={"num_warps": 4})
    assert compiler.compile(scattered, "sm90").wide_loads == 0  # nothing said divisible
    assert compiler.compile(DOUBLE, "sm90").double_precision > 0
    crowded = Compilation(
        DOT.kernel, DOT.types, DOT.constants, DOT.divisible, {"num_warps": 1, "maxnreg": 32}
    )
    assert compiler.compile(crowded, "sm90").spills > 0


def test_refusals_carry_the_compilers_words(compiler: Compiler) -> None:
    odd = Compilation(DOT.kernel, DOT.types, {"SIZE": 48}, DOT.divisible)
    with pytest.raises(CompilationError, match="power of 2"):
        compiler.compile(odd, "sm90")
    with pytest.raises(CompilationError, match="missing"):
        compiler.compile(Compilation(DOT.kernel, DOT.types, {}), "sm90")
    assert compiler.compile(DOT, "sm90").registers > 0  # it goes on afterwards
