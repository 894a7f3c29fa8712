"""Write the measured numbers of the shipped telemetry into README and its card.

    python tools/update_documents.py            # rewrite
    python tools/update_documents.py --check    # exit 1 where a document is out of date

Each document has a block between ``<!-- results:start -->`` and ``<!-- results:end -->``; nothing
else of it is touched.
"""

from __future__ import annotations

import sys
from pathlib import Path

from calib.formats.arrow import read_parquet
from calib.shipped import shipped_telemetry, shipped_telemetry_early
from monitoring.reports.fit_report import FitOptions, FitReport, fit_report
from monitoring.reports.markdown import acceptance_markdown, results_markdown

ROOT = Path(__file__).resolve().parent.parent
GAMMA = 7  # of the shipped drafter
START, END = "<!-- results:start -->", "<!-- results:end -->"


def report_of(path: Path) -> FitReport:
    """The demo's report: a function of the file alone."""
    return fit_report(read_parquet(path, GAMMA), FitOptions(with_references=True))


def documents() -> dict[Path, str]:
    """The block that each document should hold."""
    main, early = report_of(shipped_telemetry()), report_of(shipped_telemetry_early())
    card = (
        "### The drafter\n\nOn the judged half of the prompts:\n\n"
        f"{acceptance_markdown(main)}\n\n{results_markdown(main)}\n"
        "### The earlier checkpoint\n\nOn the judged half of the prompts:\n\n"
        f"{acceptance_markdown(early)}\n\n{results_markdown(early)}"
    )
    return {
        ROOT / "README.md": results_markdown(main),
        shipped_telemetry().parent / "README.md": card,
    }


def with_block(text: str, block: str) -> str:
    """The text with its block replaced."""
    head, rest = text.split(START, 1)
    tail = rest.split(END, 1)[1]
    return f"{head}{START}\n{block}{END}{tail}"


def main(arguments: list[str]) -> int:
    """Rewrite or check all documents; returns the exit code."""
    stale = []
    for path, block in documents().items():
        before = path.read_text(encoding="utf-8")
        after = with_block(before, block)
        if after != before:
            stale.append(path)
            if "--check" not in arguments:
                path.write_text(after, encoding="utf-8")
    for path in stale:
        print(f"{path.relative_to(ROOT)}: {'out of date' if '--check' in arguments else 'updated'}")
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
