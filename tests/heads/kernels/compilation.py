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

import importlib
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
        registers: 32-bit registers one thread may use.
    """

    backend: str
    architecture: int | str
    warp: int
    shared_memory: int
    registers: int


TARGETS = {
    "sm80": Target("cuda", 80, 32, 163 * 1024, 255),
    "sm90": Target("cuda", 90, 32, 227 * 1024, 255),
    "sm100": Target("cuda", 100, 32, 227 * 1024, 255),
    "gfx942": Target("hip", "gfx942", 64, 64 * 1024, 512),
    "gfx950": Target("hip", "gfx950", 64, 160 * 1024, 512),
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
        machine: the same for the machine code (SASS; AMDGCN again on AMD); empty where there is
            no disassembler for the target.
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
        cache: folder for compiled kernels, kept between sessions. ``TRITON_CACHE_DIR`` has
            precedence.
    """

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        self._process: subprocess.Popen[str] | None = None

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

    def compile(self, job: Compilation, target: str) -> Report:
        """Compile for one of ``TARGETS``.

        Raises:
            CompilationError: the compiler refused.
        """
        process = self._running()
        if process.stdin is None or process.stdout is None:
            raise CompilationError("the compiling process has no pipes")
        watchdog = threading.Timer(_LONGEST_SECONDS, process.kill)
        watchdog.start()
        try:
            process.stdin.write(json.dumps({"job": asdict(job), "target": target}) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        finally:
            watchdog.cancel()
        if not line:
            self._process = None
            raise CompilationError(f"the compiling process died with {process.wait(60)}")
        answer = json.loads(line)
        if "error" in answer:
            raise CompilationError(f"{job.kernel} for {target}: {answer['error']}")
        return Report(**answer["report"])

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None:
            environment = dict(os.environ)
            environment["TRITON_INTERPRET"] = "0"
            environment.setdefault("TRITON_CACHE_DIR", str(self._cache))
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
            report = _compile(Compilation(**request["job"]), request["target"])
            answer: dict[str, Any] = {"report": asdict(report)}
        except Exception as error:  # noqa: BLE001  # the parent raises it
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _compile(job: Compilation, target: str) -> Report:
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
    compiled = triton.compile(
        ASTSource(function, signature, constants, attributes),
        target=GPUTarget(goal.backend, goal.architecture, goal.warp),
        options=dict(job.options),
    )
    read = _read_cuda if goal.backend == "cuda" else _read_hip
    return read(target, compiled)


def _read_cuda(target: str, compiled: Any) -> Report:
    text = compiled.asm["ptx"]
    found = re.search(r"\.target\s+(\w+)", text)
    architecture = found[1] if found else ""
    with tempfile.TemporaryDirectory() as folder:
        source, binary = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        source.write_text(text)
        binary.write_bytes(compiled.asm["cubin"])
        said = _assembler(source, architecture)
        machine = _run(_tool("nvdisasm"), "-c", str(binary))
    registers = [int(n) for n in re.findall(r"Used (\d+) registers", said)]
    spills = [int(n) for n in re.findall(r"(\d+) bytes spill (?:stores|loads)", said)]
    return Report(
        target,
        registers=max(registers),
        spills=sum(spills),
        shared=int(compiled.metadata.shared),
        instructions=_opcodes(text, r"^\s+(?:@!?%p\d+\s+)?([a-z][\w.:]*)\s"),
        machine=_opcodes(machine.stdout, r"^\s+/\*\w+\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)"),
        size=len(compiled.asm["cubin"]),
    )


def _assembler(source: Path, architecture: str) -> str:
    """What ptxas says; each Triton brings the one that knows the PTX it emits."""
    complaints = []
    options = ("-v", f"--gpu-name={architecture}", str(source), "-o", os.devnull)
    for name in ("ptxas", "ptxas-blackwell"):
        answer = _run(_tool(name), *options)
        if answer.returncode == 0:
            return answer.stdout + answer.stderr
        complaints.append(answer.stderr)
    raise CompilationError("\n".join(complaints))


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


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


if __name__ == "__main__":
    _serve()
