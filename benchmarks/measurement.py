"""What the benchmarks share: CPU seconds, memory, the machine, SGLang's fitter as a method."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

Method = Callable[[Any], list[float]]  # rows in, temperatures out


def sglang_method(fitter: Any) -> Method:
    import torch

    torch.set_num_threads(1)

    def fit(blocks: Any) -> list[float]:
        result = fitter.fit_sts_temperatures(
            logits=torch.from_numpy(blocks.logits),
            prefix_mask=torch.from_numpy(blocks.prefix_mask),
            grid=fitter.default_temperature_grid(),
        )
        return [float(t) for t in result["temperatures"]]

    return fit


def resident_bytes(field: str) -> int | None:
    """``VmRSS`` or ``VmHWM`` of this process."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith(field))
    except (OSError, StopIteration):
        return None


def measure(method: Method, blocks: Any) -> tuple[float, list[float]]:
    start = time.process_time()
    temperatures = method(blocks)
    return time.process_time() - start, temperatures


def extra_megabytes(method: Method, blocks: Any) -> float | None:
    """Growth of the resident set at its peak; meaningful once in the life of a process."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # resets VmHWM
    before = resident_bytes("VmRSS")
    method(blocks)
    peak = resident_bytes("VmHWM")
    return None if before is None or peak is None else round(max(0, peak - before) / 1e6, 1)


def machine_facts() -> dict[str, Any]:
    facts: dict[str, Any] = {
        "system": f"{platform.system()} {platform.machine()}",
        "processors": os.cpu_count(),
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "python": platform.python_version(),
        "numpy": np.__version__,
    }
    if "torch" in sys.modules:
        facts["torch"] = sys.modules["torch"].__version__
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        facts["processor"] = next(
            line.partition(":")[2].strip() for line in lines if line.startswith("model name")
        )
    except (OSError, StopIteration):
        facts["processor"] = platform.processor()
    return facts
