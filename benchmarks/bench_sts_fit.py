"""Cost of temperature fits, side by side in one process: SGLang's fitter and ours.

    python benchmarks/bench_sts_fit.py [--rows 10000 1000000] [--repeats 3] [--out result.json]

Single-threaded CPU seconds (``time.process_time``): wall time on a shared machine says little.
Each repeat runs every method once, so all see the same load; the smallest of the repeats counts.
SGLang is measured where ``DSPARK_SGLANG_WHEEL`` names an unpacked wheel, which
``tools/sglang_wheel.sh`` fetches. Rows are simulated. Peak memory is what a method adds to the
resident set of a fresh process of its own, on Linux only.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # read when NumPy and torch load
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from benchmarks.measurement import Method, extra_megabytes, machine_facts, measure, sglang_method
from calib.conditional_temperature import ConditionalTemperature
from calib.sequential_temperature_scaling import SequentialTemperatureScaling
from calib.sts_parity import fit_sts_parity
from tests.calib.blocks import Blocks, simulate
from tests.calib.sglang_fitter import sglang_fitter


def parity(blocks: Blocks) -> list[float]:
    return list(fit_sts_parity(blocks.logits, blocks.prefix_mask).temperatures)


def parity_histogram(blocks: Blocks) -> list[float]:
    fit = fit_sts_parity(blocks.logits, blocks.prefix_mask, histogram=True)
    return list(fit.temperatures)


def default_search(blocks: Blocks) -> list[float]:
    fitted = SequentialTemperatureScaling().fit(blocks.logits, blocks.accepted)
    return [float(t) for t in fitted.temperatures_]


def conditional_likelihood(blocks: Blocks) -> list[float]:
    fitted = ConditionalTemperature().fit(blocks.logits, blocks.accepted)
    return [float(t) for t in fitted.temperatures_]


def memory_in_fresh_process(name: str, rows: int, gamma: int) -> float | None:
    command = [sys.executable, __file__, "--memory-of", name]
    command += ["--rows", str(rows), "--gamma", str(gamma)]
    # Freed arrays must go back to the system, or the next ones would not show.
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536"}
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found: float | None = json.loads(answer.stdout)
    return found


def compare(methods: dict[str, Method], rows: int, gamma: int, repeats: int) -> dict[str, Any]:
    blocks = simulate(rows, seed=0, gamma=gamma)
    runs: dict[str, list[tuple[float, list[float]]]] = {name: [] for name in methods}
    for _ in range(repeats):
        for name, method in methods.items():
            runs[name].append(measure(method, blocks))
    result: dict[str, Any] = {"rows": rows, "gamma": gamma, "methods": {}}
    for name, measured in runs.items():
        result["methods"][name] = {
            "cpu_seconds": min(seconds for seconds, _ in measured),
            "cpu_seconds_all": [seconds for seconds, _ in measured],
            "extra_megabytes": memory_in_fresh_process(name, rows, gamma),
            "temperatures": measured[-1][1],
        }
    add_ratios(result["methods"])
    return result


def add_ratios(methods: dict[str, Any]) -> None:
    """How many times less CPU than SGLang, and how far the temperatures are off in grid steps."""
    reference = methods.get("sglang")
    if reference is None:
        return
    step = np.log(10.0) / 20.0
    for entry in methods.values():
        entry["times_less_cpu"] = round(reference["cpu_seconds"] / entry["cpu_seconds"], 1)
        entry["identical_temperatures"] = entry["temperatures"] == reference["temperatures"]
        off = np.abs(np.log(np.divide(entry["temperatures"], reference["temperatures"]))) / step
        entry["largest_grid_steps_off"] = round(float(off.max()), 2)


def show(result: dict[str, Any]) -> None:
    print(f"\n{result['rows']} rows, gamma {result['gamma']}")
    for name, entry in result["methods"].items():
        ratio = f"{entry['times_less_cpu']:>7}x" if "times_less_cpu" in entry else ""
        same = "same temperatures" if entry.get("identical_temperatures") else ""
        print(
            f"  {name:<24}{entry['cpu_seconds']:>10.4f} s{ratio:>9}"
            f"{entry['extra_megabytes'] or 0:>9} MB  {same}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--gamma", type=int, default=7)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, help="where to write the result as JSON")
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    methods: dict[str, Method] = {
        "parity": parity,
        "parity, histogram": parity_histogram,
        "default": default_search,
        "conditional likelihood": conditional_likelihood,
    }
    with ExitStack() as stack:
        if root := os.environ.get("DSPARK_SGLANG_WHEEL"):
            methods = {"sglang": sglang_method(stack.enter_context(sglang_fitter(root)))} | methods
        for method in methods.values():
            method(simulate(200, seed=1, gamma=2))  # imports and first-call costs
        if arguments.memory_of:
            blocks = simulate(arguments.rows[0], seed=0, gamma=arguments.gamma)
            print(json.dumps(extra_megabytes(methods[arguments.memory_of], blocks)))
            return
        results = []
        for rows in arguments.rows:
            results.append(compare(methods, rows, arguments.gamma, arguments.repeats))
            show(results[-1])
    if arguments.out:
        document = {"benchmark": "bench_sts_fit", "machine": machine_facts(), "results": results}
        arguments.out.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
