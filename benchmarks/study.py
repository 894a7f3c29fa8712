"""The side-by-side study of the statistics: one command, one JSON file, tables in docs/study.md.

    python benchmarks/study.py [--quick] [--only PART ...] [--fresh] [--tables] [--out FOLDER]
        [--document FILE]

Under 30 minutes on two quiet cores in full, under two with ``--quick`` (other sizes, for tests; it
writes to a folder of its own). Every part is kept as JSON in ``results/study``; a part that is
there is not run again without ``--fresh``, so an interrupted run goes on where it stopped and one
part can be run again by ``--only``. All parts together are ``results/study.json``; ``--tables``
only renders. What is quoted as a ratio was measured within one process; machine facts and load
stand beside every part.

SGLang's fitter is measured where ``DSPARK_SGLANG_WHEEL`` names an unpacked wheel
(``tools/sglang_wheel.sh``); netcal, scikit-learn and river where they are installed. The replays of
recorded shifts (``replay_shifts.py``) are read from ``results/replay``.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # read when NumPy and torch load
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import bench_drift, bench_segments, study_accuracy, study_drift, study_gate
from benchmarks.measurement import machine_facts
from benchmarks.study_cost import cost
from benchmarks.study_real import real
from benchmarks.study_summary import summary
from benchmarks.study_tables import render, replace_between_markers
from benchmarks.study_targets import targets

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "study"
COMBINED = "study.json"
DOCUMENT = HERE.parent / "docs" / "study.md"
README = HERE.parent / "README.md"
REPLAY = HERE / "results" / "replay"

Parts = dict[str, tuple[Callable[[], Any], Callable[[], Any]]]

ALIKE = "one effect a segment"


def segments(cells: list[tuple[str, int]], seeds: int, test_rows: int) -> Any:
    return [bench_segments.table(shape, rows, seeds, test_rows) for shape, rows in cells]


def accuracy_part(
    rows: int, seeds: int, shapes: tuple[str, ...] = tuple(study_accuracy.SHAPES)
) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """SGLang's fitter and ours at one number of rows."""
    return (
        lambda: study_accuracy.accuracy(rows, seeds, 200_000, shapes),
        lambda: study_accuracy.accuracy(300, 1, 500, shapes[-1:]),
    )


def peers_part(
    rows: int, seeds: int, shapes: tuple[str, ...] = study_accuracy.PEER_SHAPES
) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """The other libraries at one number of rows."""
    return (
        lambda: study_accuracy.peers(rows, seeds, 100_000, shapes),
        lambda: study_accuracy.peers(300, 1, 500, shapes[-1:]),
    )


# By name: in full, and quick. Cheap and telling parts first.
PARTS: Parts = {
    "accuracy_1k": accuracy_part(1000, 8),
    "real": (real, lambda: real(peers=False, limit=1500)),
    "gate": (lambda: study_gate.gate(200, 100), lambda: study_gate.gate(1, 1)),
    "gate_better": (lambda: study_gate.better(60), lambda: study_gate.better(1)),
    "drift_delay": (lambda: bench_drift.delay(8), lambda: bench_drift.delay(1, after=500)),
    "accuracy_10k": accuracy_part(10_000, 4),
    "segments": (
        lambda: segments(
            [*((shape, 3000) for shape in bench_segments.SHAPES), (ALIKE, 1000), (ALIKE, 10_000)],
            24,
            51_200,
        ),
        lambda: segments([(ALIKE, 500)], 1, 1280),
    ),
    "accuracy_100k": accuracy_part(100_000, 2, study_accuracy.LEAKS),
    "cost_100k": (lambda: cost(100_000, 3), lambda: cost(500, 1, memory=False)),
    "drift_null": (lambda: bench_drift.null(1_000_000, 0), lambda: bench_drift.null(500, 0)),
    "scores": (
        lambda: study_accuracy.scores(10_000, 51_200),
        lambda: study_accuracy.scores(300, 1280),
    ),
    "cost_1m": (
        lambda: cost(1_000_000, 4, peers=False),
        lambda: cost(500, 1, memory=False, peers=False),
    ),
    "peers_1k": peers_part(1000, 4),
    "peers_10k": peers_part(10_000, 2),
    "drift_cost": (bench_drift.cost, lambda: bench_drift.cost(2000)),
    "drift_long": (lambda: bench_drift.long_run(5_000_000), lambda: bench_drift.long_run(5000)),
    "drift_extra": (lambda: study_drift.extra(8), lambda: study_drift.extra(1, rows=1500)),
    "drift_run_length": (
        lambda: bench_drift.run_length(200),
        lambda: bench_drift.run_length(1, cut=1000),
    ),
    "peers_100k": peers_part(100_000, 1, ("leak .18",)),
}


def run_part(name: str, quick: bool) -> dict[str, Any]:
    """One part with what it cost and where it ran."""
    start, spent = time.monotonic(), time.process_time()
    result = PARTS[name][quick]()
    return {
        "part": name,
        "quick": quick,
        "result": result,
        "seconds": round(time.monotonic() - start, 1),
        "cpu_seconds": round(time.process_time() - spent, 1),
        "machine": machine_facts(),
        "versions": bench_drift.versions(),
    }


def collected(folder: Path) -> dict[str, Any]:
    """Every part that is there, by name."""
    found = {}
    for name in PARTS:
        path = folder / f"{name}.json"
        if path.is_file():
            found[name] = json.loads(path.read_text(encoding="utf-8"))
    return found


def replays() -> dict[str, Any]:
    """What replay_shifts.py wrote, by file name."""
    return {
        path.stem: json.loads(path.read_text(encoding="utf-8"))
        for path in sorted(REPLAY.glob("*.json"))
    }


def write(path: Path, document: Any) -> None:
    """All of it or nothing: a reader may come at any time."""
    text = json.dumps(document, indent=1, allow_nan=False, default=float) + "\n"
    partial = path.with_suffix(".part")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def main(arguments: list[str] | None = None) -> None:
    """Run what is missing, then write the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes; numbers mean nothing")
    parser.add_argument("--only", nargs="+", choices=list(PARTS), help="parts; all by default")
    parser.add_argument("--fresh", action="store_true", help="run parts that are there again")
    parser.add_argument("--tables", action="store_true", help="render what is there, run nothing")
    parser.add_argument("--out", type=Path, help="folder of the parts")
    parser.add_argument("--document", type=Path, help="page whose tables are replaced")
    options = parser.parse_args(arguments)
    if options.quick and options.out is None:
        parser.error("--quick needs --out: its numbers must not replace real ones")
    folder = options.out or RESULTS
    folder.mkdir(parents=True, exist_ok=True)
    for name in [] if options.tables else options.only or PARTS:
        path = folder / f"{name}.json"
        if path.is_file() and not options.fresh:
            continue
        sys.stderr.write(f"{name} …\n")
        write(path, run_part(name, options.quick))
    found = collected(folder)
    combined = folder.parent / COMBINED if options.out is None else folder / COMBINED
    write(combined, found)
    document = options.document or (DOCUMENT if options.out is None else None)
    if document is not None:
        page = document.read_text(encoding="utf-8")
        sections = {"targets": targets(found)} | render(found, replays())
        page = replace_between_markers(page, sections)
        document.write_text(page, encoding="utf-8")
    if document == DOCUMENT:
        page = replace_between_markers(
            README.read_text(encoding="utf-8"), {"summary": summary(found)}
        )
        README.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
