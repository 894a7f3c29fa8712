"""Ahead-of-time compilation of kernels for GPUs that are not here.

A kernel is compiled by Triton's own backends down to machine code for five GPUs; what ptxas and
the AMD assembler say about registers, spills and shared memory, and which instructions came out,
is what a test can assert without a GPU. A process that interprets kernels cannot compile them, so
a child process does, one for a test session: it reads one job a line and answers one line.

>>> job = Compilation("heads.kernels.soft_label:_finish", types={"rows": "i32"}, constants={})
>>> with Compiler(folder) as compiler:                                        # doctest: +SKIP
...     report = compiler.compile(job, "sm90")
...     report.registers, report.spills, report.count(r"ld\\.global\\.v4")
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

ROOT = Path(__file__).resolve().parents[3]

_LONGEST_SECONDS = 900.0  # of one compilation; seconds are usual

Constant = int | float | bool | str | None


@dataclass(frozen=True)
class Target:
    """A GPU to compile for.

    Attributes:
        backend: ``cuda`` or ``hip``.
        architecture: compute capability times ten, or the gfx name.
        warp: threads of a warp or wavefront.
        shared_memory: bytes one program may use.
        shared_by_all: bytes that programs on one multiprocessor share.
        taken: bytes of those that the system takes of each program.
        registers: 32-bit registers one thread may use.
        register_file: 32-bit registers of a multiprocessor.
    """

    backend: str
    architecture: int | str
    warp: int
    shared_memory: int
    shared_by_all: int
    taken: int
    registers: int
    register_file: int

    def programs(self, report: Report, warps: int) -> int:
        """Programs of so many warps that fit one multiprocessor by registers and shared memory."""
        each = -(-report.registers // 8) * 8 * warps * self.warp
        memory = report.shared + self.taken
        by_memory = self.shared_by_all // memory if memory else self.register_file
        return min(self.register_file // each, by_memory)


_K = 1024
TARGETS = {
    "sm80": Target("cuda", 80, 32, 163 * _K, 164 * _K, _K, 255, 64 * _K),
    "sm90": Target("cuda", 90, 32, 227 * _K, 228 * _K, _K, 255, 64 * _K),
    "sm100": Target("cuda", 100, 32, 227 * _K, 228 * _K, _K, 255, 64 * _K),
    "gfx942": Target("hip", "gfx942", 64, 64 * _K, 64 * _K, 0, 512, 128 * _K),
    "gfx950": Target("hip", "gfx950", 64, 160 * _K, 160 * _K, 0, 512, 128 * _K),
}


@dataclass(frozen=True)
class Compilation:
    """One kernel in one configuration.

    Attributes:
        kernel: ``module:function``.
        types: Triton type of every argument that is no constant: ``*bf16``, ``i32``, ``fp32``, …
        constants: constexpr arguments, and pointers left out (None).
        divisible: pointers and whole numbers that the launcher would find to be multiples of 16;
            without them no load is wide.
        options: compile options: ``num_warps``, ``num_stages``, ``launch_pdl``, ``maxnreg``, …
        name: of the configuration, for test ids.
    """

    kernel: str
    types: Mapping[str, str]
    constants: Mapping[str, Constant]
    divisible: tuple[str, ...] = ()
    options: Mapping[str, Constant] = field(default_factory=dict)
    name: str = ""

    def __str__(self) -> str:
        return self.name or self.kernel.partition(":")[2].strip("_")


@dataclass(frozen=True)
class Report:
    """What the compiler said.

    Attributes:
        registers: of one thread; vector registers on AMD.
        spills: bytes spilled to local memory (NVIDIA), registers spilled (AMD).
        shared: bytes of shared memory of one program.
        instructions: how often each opcode occurs in the PTX or AMDGCN text.
        machine: the same for the machine code (SASS; AMDGCN again on AMD); empty for NVIDIA
            unless it was asked for.
        size: bytes of the binary.
    """

    target: str
    registers: int
    spills: int
    shared: int
    instructions: Mapping[str, int]
    machine: Mapping[str, int]
    size: int

    def count(self, pattern: str) -> int:
        """Occurrences of opcodes, in either text, whose name matches a regular expression."""
        return max(
            sum(n for opcode, n in text.items() if re.search(pattern, opcode))
            for text in (self.instructions, self.machine)
        )

    @property
    def wide_loads(self) -> int:
        """Global loads of 16 bytes a thread."""
        cuda = r"ld\.global\S*\.v4\.b32|ld\.global\S*\.v2\.b64|LDG\.E\S*\.128"
        return self.count(cuda + "|load_dwordx4")

    @property
    def double_precision(self) -> int:
        """Arithmetic instructions on float64."""
        return self.count(r"^(?!ld|st|mov)\S*\.f64|^v_\S*_f64")

    @property
    def tensor_core(self) -> int:
        """Matrix instructions."""
        return self.count(r"^wgmma\.mma|^mma\.sync|^tcgen05\.mma|^v_mfma|HGMMA|HMMA|QGMMA")


class CompilationError(RuntimeError):
    """A kernel that does not compile for a target; the message is the compiler's."""


class Compiler:
    """A child process that compiles; a context manager.

    Args:
        cache: folder that Triton may write to. ``TRITON_CACHE_DIR`` has precedence.
    """

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        self._process: subprocess.Popen[str] | None = None
        self._reports: dict[str, Report] = {}

    def __enter__(self) -> Compiler:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.communicate(timeout=60)

    def compile(self, job: Compilation, target: str, *, disassemble: bool = False) -> Report:
        """Compile for one of ``TARGETS``, and read the machine code where that is asked for.

        Raises:
            CompilationError: the compiler refused.
        """
        request = json.dumps({"job": asdict(job), "target": target, "disassemble": disassemble})
        if request not in self._reports:
            self._reports[request] = self._answered(request, f"{job.kernel} for {target}")
        return self._reports[request]

    def _answered(self, request: str, name: str) -> Report:
        process = self._running()
        if process.stdin is None or process.stdout is None:
            raise CompilationError("the compiling process has no pipes")
        watchdog = threading.Timer(_LONGEST_SECONDS, process.kill)
        watchdog.start()
        try:
            process.stdin.write(request + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        finally:
            watchdog.cancel()
        if not line:
            self._process = None
            raise CompilationError(f"the compiling process died with {process.wait(60)}")
        answer = json.loads(line)
        if "error" in answer:
            raise CompilationError(f"{name}: {answer['error']}")
        return Report(**answer["report"])

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None:
            environment = dict(os.environ)
            environment["TRITON_INTERPRET"] = "0"
            environment.setdefault("TRITON_CACHE_DIR", str(self._cache))
            # Nothing from the cache: only an assembler that runs says what it did.
            environment["TRITON_ALWAYS_COMPILE"] = environment["TRITON_DUMP_PTXAS_LOG"] = "1"
            environment["TRITON_DISABLE_LINE_INFO"] = "1"  # a quarter of the time; the same code
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.heads.kernels.compilation"],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        return self._process


# ---- in the child ----


def _serve() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever compilers print must not mix with the answers
    for line in sys.stdin:
        request = json.loads(line)
        try:
            job = Compilation(**request["job"])
            report = _compile(job, request["target"], request["disassemble"])
            answer: dict[str, Any] = {"report": asdict(report)}
        except Exception as error:  # noqa: BLE001  # the parent raises it
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _compile(job: Compilation, target: str, disassemble: bool) -> Report:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    module, _, name = job.kernel.partition(":")
    function = getattr(importlib.import_module(module), name)
    names = list(function.arg_names)
    unknown = (set(job.types) | set(job.constants)) ^ set(names)
    if unknown:
        raise ValueError(f"arguments that do not belong or are missing: {sorted(unknown)}")
    signature = {n: "constexpr" if n in job.constants else job.types[n] for n in names}
    constants = {(names.index(n),): value for n, value in job.constants.items()}
    attributes = {(names.index(n),): [["tt.divisibility", 16]] for n in job.divisible}
    goal = TARGETS[target]
    with contextlib.redirect_stdout(io.StringIO()) as said:
        compiled = triton.compile(
            ASTSource(function, signature, constants, attributes),
            target=GPUTarget(goal.backend, goal.architecture, goal.warp),
            options=dict(job.options),
        )
    if goal.backend == "cuda":
        return _read_cuda(target, compiled, said.getvalue(), disassemble)
    return _read_hip(target, compiled)


def _read_cuda(target: str, compiled: Any, said: str, disassemble: bool) -> Report:
    """What Triton's own run of ptxas said: its options decide about registers."""
    text = compiled.asm["ptx"]
    registers = [int(n) for n in re.findall(r"Used (\d+) registers", said)]
    spills = [int(n) for n in re.findall(r"(\d+) bytes spill (?:stores|loads)", said)]
    if not registers or not spills:
        raise CompilationError(f"ptxas did not speak of registers and spills: {said!r}")
    return Report(
        target,
        registers=max(registers),
        spills=sum(spills),
        shared=int(compiled.metadata.shared),
        instructions=_opcodes(text, r"^\s+(?:@!?%p\d+\s+)?([a-z][\w.:]*)[\s;]"),
        machine=_disassembled(compiled.asm["cubin"]) if disassemble else {},
        size=len(compiled.asm["cubin"]),
    )


def _disassembled(cubin: bytes) -> dict[str, int]:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        answer = subprocess.run(
            [_tool("nvdisasm"), "-c", file.name],
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
        )
    return _opcodes(answer.stdout, r"^\s+/\*\w+\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)")


def _read_hip(target: str, compiled: Any) -> Report:
    text = compiled.asm["amdgcn"]

    def largest(field_name: str) -> int:
        return max((int(n) for n in re.findall(rf"\.{field_name}:\s+(\d+)", text)), default=0)

    opcodes = _opcodes(text, r"^\s+([a-z]+_[\w]+)\s")
    return Report(
        target,
        registers=largest("vgpr_count"),
        spills=largest("vgpr_spill_count") + largest("sgpr_spill_count"),
        shared=max(int(compiled.metadata.shared), largest("group_segment_fixed_size")),
        instructions=opcodes,
        machine=opcodes,
        size=len(compiled.asm["hsaco"]),
    )


def _opcodes(text: str, pattern: str) -> dict[str, int]:
    return dict(Counter(re.findall(pattern, text, re.MULTILINE)))


def _tool(name: str) -> str:
    import triton

    return str(Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / name)


if __name__ == "__main__":
    _serve()
