"""Write the measured numbers of the shipped telemetry into README and its card.

    python tools/update_documents.py            # rewrite
    python tools/update_documents.py --check    # exit 1 where a document is out of date

Each document has a block between ``<!-- results:start -->`` and ``<!-- results:end -->``, README
one of ``worth`` too; nothing else of them is touched.
"""

from __future__ import annotations

import sys
from pathlib import Path

from calib.cost_table_shapes import analytic_cost_table
from calib.formats.arrow import read_parquet
from calib.prompt_split import split_by_prompt
from calib.shipped import shipped_telemetry, shipped_telemetry_early
from calib.throughput_arms import fit_arms
from calib.throughput_study import StudyCell, StudyRules, throughput_study
from monitoring.reports.fit_report import FitOptions, FitReport, fit_report
from monitoring.reports.markdown import (
    acceptance_markdown,
    results_markdown,
    summary_markdown,
)

ROOT = Path(__file__).resolve().parent.parent
GAMMA = 7  # of the shipped drafter
START, END = "<!-- {}:start -->", "<!-- {}:end -->"
LOADS, KNEE = (16, 64, 128), 256
ARMS = {
    "full": "verify all γ",
    "fixed": "best fixed length",
    "threshold": "best static threshold",
    "raw": "prefix scheduler, raw confidence",
    "sts": "prefix scheduler, STS",
    "segmented": "prefix scheduler, segments",
    "hindsight": "hindsight: no confidence can tell more",
}


def report_of(path: Path) -> FitReport:
    """The paper's method on the shipped file, ``fit --method sts``: a function of it alone."""
    options = FitOptions(method="sts", with_references=True)
    return fit_report(read_parquet(path, GAMMA), options)


def worth_markdown() -> str:
    """Throughput of the shipped telemetry, replayed with every kind of confidence."""
    parts = split_by_prompt(read_parquet(shipped_telemetry(), GAMMA).fitting_rows())
    curve = analytic_cost_table("kneed", max_batch_tokens=max(LOADS) * (GAMMA + 1), knee=KNEE)
    study = throughput_study(
        parts.fit,
        parts.evaluation,
        fit_arms(parts.fit, parts.evaluation),
        {"kneed": curve},
        StudyRules(loads=LOADS),
    )
    head = " | ".join(f"{load} requests" for load in LOADS)
    lines = [f"| tokens per second, against raw | {head} |", "| --- " * (1 + len(LOADS)) + "|"]
    for arm, words in ARMS.items():
        cells = " | ".join(_worth(study.cell("kneed", load, arm)) for load in LOADS)
        lines.append(f"| {words} | {cells} |")
    conditions = (
        f"Replay of the {len(parts.evaluation):,} judged blocks at so many requests a step, on a "
        f"step curve that is flat up to {KNEE} tokens and rises in proportion beyond (a formula, "
        "not a measured engine); fixed length and threshold are the best of the other half for "
        "each load. In brackets the gain over raw confidence in percent, with its 95 % interval "
        "over blocks of steps where it is not trivially zero.\n"
    )
    return conditions + "\n" + "\n".join(lines) + "\n"


def _worth(cell: StudyCell) -> str:
    text = f"{cell.replay.theta:,.0f}"
    found = cell.against_raw
    if found is None or found.loss_low is None or found.loss_high is None:
        return text
    if found.loss_high - found.loss_low < 1e-6:
        return f"{text} ({-100 * found.loss:+.1f})" if abs(found.loss) > 5e-4 else text
    low, high = -100 * found.loss_high, -100 * found.loss_low
    return f"{text} ({-100 * found.loss:+.1f} [{low:+.1f}, {high:+.1f}])"


def documents() -> dict[Path, dict[str, str]]:
    """The blocks that each document should hold, by name."""
    main, early = report_of(shipped_telemetry()), report_of(shipped_telemetry_early())
    card = (
        "### The drafter\n\nOn the judged half of the prompts:\n\n"
        f"{acceptance_markdown(main)}\n\n{results_markdown(main)}\n"
        "### The earlier checkpoint\n\nOn the judged half of the prompts:\n\n"
        f"{acceptance_markdown(early)}\n\n{results_markdown(early)}"
    )
    return {
        ROOT / "README.md": {"results": summary_markdown(main), "worth": worth_markdown()},
        shipped_telemetry().parent / "README.md": {"results": card},
    }


def with_block(text: str, name: str, block: str) -> str:
    """The text with a block replaced."""
    start, end = START.format(name), END.format(name)
    head, rest = text.split(start, 1)
    tail = rest.split(end, 1)[1]
    return f"{head}{start}\n{block}{end}{tail}"


def main(arguments: list[str]) -> int:
    """Rewrite or check all documents; returns the exit code."""
    stale = []
    for path, blocks in documents().items():
        before = after = path.read_text(encoding="utf-8")
        for name, block in blocks.items():
            after = with_block(after, name, block)
        if after != before:
            stale.append(path)
            if "--check" not in arguments:
                path.write_text(after, encoding="utf-8")
    for path in stale:
        print(f"{path.relative_to(ROOT)}: {'out of date' if '--check' in arguments else 'updated'}")
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
