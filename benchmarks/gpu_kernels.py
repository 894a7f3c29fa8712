"""Every kernel on the GPU at hand: checked, then timed against its floor and its rivals.

    python benchmarks/gpu_kernels.py [--minutes 10] [--only soft_label] [--out result.json]
    python benchmarks/gpu_kernels.py --interpret --tiny         # proves the script without a GPU

Warm-up, correctness against float64, then microseconds by CUDA-graph replay with L2 warm and
cold, GB/s and percent of the floor, for batches of 1, 8, 64 and 256 requests: eager torch,
``torch.compile``, our own unfused form, and our kernels. Whatever does not fit the minutes is
left out and said. The JSON result carries the card's name.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

# Modules with a function ``cases``, and their share of the time; what one leaves, the next gets.
_PROVIDERS = {"gpu_draft_block": 2.0, "gpu_soft_label": 1.0}
_BATCHES = (1, 8, 64, 256)


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    if options.interpret:
        os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is first imported
    import torch

    if options.interpret:
        from tests.heads.kernels import interpreter

        interpreter.install()
        device = torch.device("cpu")
    elif torch.cuda.is_available():
        device = torch.device("cuda")
    else:
        print("no GPU: give --interpret --tiny to prove the script", file=sys.stderr)
        return 2
    with _interpreted_silently(options.interpret):
        result = _measured(options, device)
    return 0 if all(group["complete"] for group in result["groups"]) else 1


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="of the whole run")
    parser.add_argument("--only", nargs="*", help="providers: draft_block, soft_label")
    parser.add_argument("--batches", type=int, nargs="*", help="requests a step")
    parser.add_argument("--out", type=Path, help="JSON file")
    parser.add_argument("--interpret", action="store_true", help="on the CPU, not timed")
    parser.add_argument("--tiny", action="store_true", help="smallest shapes")
    return parser.parse_args(arguments)


def _measured(options: argparse.Namespace, device: Any) -> dict[str, Any]:
    """The whole result; what is known so far is on disk after every case."""
    from benchmarks.gpu_timing import Setting, Timer, line, run_cases

    begin = time.monotonic()
    timer = Timer(device, 60.0 * options.minutes)
    bandwidth = timer.copy_bandwidth()
    batches = tuple(options.batches or ((1, 2) if options.tiny else _BATCHES))
    setting = Setting(device, options.tiny, batches)
    groups: list[dict[str, Any]] = []
    result = {
        "machine": _facts(device),
        "interpreted": options.interpret,
        "copy_bandwidth_gb_per_s": None if bandwidth is None else bandwidth / 1e9,
        "groups": groups,
    }
    providers = _providers(options.only)
    for place, name in enumerate(providers):
        left = 60.0 * options.minutes - (time.monotonic() - begin)
        timer.allow(left * _PROVIDERS[name] / sum(_PROVIDERS[n] for n in providers[place:]))
        group: dict[str, Any] = {"provider": name, "complete": False, "rows": []}
        groups.append(group)
        module = importlib.import_module(f"benchmarks.{name}")
        for row in run_cases(module.cases(setting), timer, bandwidth):
            group["rows"].append(row)
            print(line(row), flush=True)
            result["seconds"] = round(time.monotonic() - begin, 1)
            _write(options.out, result)
        rows = group["rows"]
        failed = any(row["failed"] or row["note"] == "out of time" for row in rows)
        group["complete"] = bool(rows) and not failed and not timer.is_over
    _write(options.out, result)
    return result


def _write(path: Path | None, result: dict[str, Any]) -> None:
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.part")
    unfinished.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    unfinished.replace(path)


def _providers(only: Sequence[str] | None) -> list[str]:
    wanted = [name for name in _PROVIDERS if not only or name.removeprefix("gpu_") in only]
    return [name for name in wanted if importlib.util.find_spec(f"benchmarks.{name}")]


def _interpreted_silently(interpret: bool) -> Any:
    from contextlib import nullcontext

    if not interpret:
        return nullcontext()
    from tests.heads.kernels.interpreter import hardware_arithmetic

    return hardware_arithmetic()


def _facts(device: Any) -> dict[str, Any]:
    import torch
    import triton

    from benchmarks.measurement import machine_facts

    facts = machine_facts() | {"triton": triton.__version__}
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        facts |= {
            "card": properties.name,
            "memory_bytes": properties.total_memory,
            "multiprocessors": properties.multi_processor_count,
            "l2_bytes": getattr(properties, "L2_cache_size", None),
            "cuda": torch.version.cuda,
        }
    return facts


if __name__ == "__main__":
    sys.exit(main())
