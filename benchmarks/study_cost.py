"""What a fit costs: SGLang's fitter, netcal, scikit-learn and ours, in one process.

CPU seconds of one thread from rows to numbers; the smallest of the repeats counts, and each repeat
runs every method once, so that all see the same load. Extra memory is the growth of the resident
set at its peak in a fresh process of its own (``python benchmarks/study_cost.py METHOD ROWS``).
Ours are measured with the compiled counting loop (calib.compiled_counting), loaded before, as in a
process that has counted a few million rows, and once without Numba; what loading costs is reported.
SGLang is its own module where ``DSPARK_SGLANG_WHEEL`` names an unpacked wheel, else our copy of its
algorithm, which gives identical temperatures but is faster.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when NumPy and torch load
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.bench_conditional_fit import METHODS, parity, sketch_rows
from benchmarks.measurement import Method, extra_megabytes, measure, sglang_method
from benchmarks.study_peers import INSTALLED, conditional_arm, netcal_calibrator, sklearn_calibrator
from calib import compiled_counting
from calib.conditional_likelihood import ConditionalLikelihood
from calib.sts_parity import fit_sts_parity
from tests.calib.sglang_fitter import sglang_fitter
from tests.support.leaky_generator import simulate_leaky


def peer(make: Any) -> Method:
    """A library's calibrator on every position's observed labels; no temperatures come of it."""

    def fit(blocks: Any) -> list[float]:
        conditional_arm(make)(blocks.records())
        return []

    return fit


PEERS: dict[str, tuple[str, Any, str]] = {
    "netcal temperature": ("netcal", netcal_calibrator, "temperature"),
    "scikit-learn sigmoid": ("sklearn", sklearn_calibrator, "sigmoid"),
    "scikit-learn isotonic": ("sklearn", sklearn_calibrator, "isotonic"),
}
REFERENCE = "SGLang's fitter"
PARITY = "ours: STS, parity mode"
HISTOGRAM = "ours: STS, histogram mode"
OURS = {f"ours: {name}": method for name, method in METHODS.items()}
NAMES = (
    REFERENCE,
    PARITY,
    HISTOGRAM,
    *(n for n, peer in PEERS.items() if INSTALLED[peer[0]]),
    *OURS,
)


def method(name: str, stack: ExitStack) -> Method:
    """One method, with only the imports that it needs."""
    if name == REFERENCE:
        root = os.environ.get("DSPARK_SGLANG_WHEEL")
        return sglang_method(stack.enter_context(sglang_fitter(root))) if root else parity
    if name in PEERS:
        _, make, kind = PEERS[name]
        return peer(make(kind))
    return {PARITY: parity, HISTOGRAM: histogram, **OURS}[name]


def histogram(blocks: Any) -> list[float]:
    return list(fit_sts_parity(blocks.logits, blocks.prefix_mask, histogram=True).temperatures)


def without_numba(blocks: Any) -> list[float]:
    with patch("calib.logit_sketch.hard_label_counter", return_value=None):
        return METHODS["conditional temperature"](blocks)


def loading_seconds() -> float | None:
    """CPU seconds until the loop is there, compiled before; None without Numba."""
    start = time.process_time()
    return round(time.process_time() - start, 3) if compiled_counting.load(7) else None


def megabytes(name: str, rows: int) -> float | None:
    """Megabytes in a fresh process."""
    # Freed arrays must go back to the system, or the next ones would not show.
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536"}
    command = [sys.executable, __file__, name, str(rows)]
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found: float | None = json.loads(answer.stdout.splitlines()[-1])
    return found


def cost(rows: int, repeats: int, *, memory: bool = True, peers: bool = True) -> dict[str, Any]:
    """Cost of every method at this many rows, and its ratio to the reference."""
    names = [name for name in NAMES if peers or name not in PEERS]
    weighed = [REFERENCE, *OURS] if memory else []
    blocks = simulate_leaky(rows, seed=0)
    sketch = sketch_rows(blocks)
    loading = loading_seconds()
    with ExitStack() as stack:
        arms = {name: method(name, stack) for name in names}
        for arm in arms.values():
            warm(arm)
        arms["ours: conditional temperature, without Numba"] = without_numba
        arms["ours: refit from a sketch, temperature"] = lambda _: list(
            ConditionalLikelihood().fit_sketch(sketch).temperatures_
        )
        arms["ours: refit from a sketch, affine"] = lambda _: list(
            ConditionalLikelihood("affine").fit_sketch(sketch).slopes_
        )
        seconds: dict[str, list[float]] = {name: [] for name in arms}
        for _ in range(repeats):
            for name, arm in arms.items():
                # What takes milliseconds is measured more often: the smallest counts.
                often = 3 if name.startswith("ours") and "STS" not in name else 1
                seconds[name] += [measure(arm, blocks)[0] for _ in range(often)]
    reference = min(seconds[REFERENCE])
    return {
        "rows": rows,
        "loading_numba_seconds": loading,
        "sglang_is": "its wheel" if os.environ.get("DSPARK_SGLANG_WHEEL") else "own copy",
        "methods": {
            name: {
                "cpu_seconds": round(min(found), 5),
                "times_less_cpu": round(reference / min(found), 2),
                "extra_megabytes": megabytes(name, rows) if name in weighed else None,
            }
            for name, found in seconds.items()
        },
    }


def warm(arm: Method) -> None:
    """Imports and first-call costs."""
    arm(simulate_leaky(400, seed=1))


def main() -> None:
    name, rows = sys.argv[1], int(sys.argv[2])
    compiled_counting.load(7)
    with ExitStack() as stack:
        arm = method(name, stack)
        warm(arm)
        print(json.dumps(extra_megabytes(arm, simulate_leaky(rows, seed=0))))


if __name__ == "__main__":
    main()
