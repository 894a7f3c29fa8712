"""Fails when a test was skipped that could have run.

    python .ci/check_skips.py ALLOWED JUNIT_XML...

ALLOWED holds one ``pattern  # reason`` a line; a pattern is matched, as in a shell, against
``classname::name`` of the JUnit reports (``tests.gpu.test_twins::test_forward*``).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from xml.etree import ElementTree


def allowed_patterns(path: Path) -> list[str]:
    """Patterns of the allow-list; a pattern without a reason is refused."""
    patterns = []
    for line in path.read_text(encoding="utf-8").splitlines():
        pattern, _, reason = (part.strip() for part in line.partition("#"))
        if not pattern:
            continue
        if not reason:
            raise SystemExit(f"{path}: {pattern!r} is allowed to be skipped without a reason")
        patterns.append(pattern)
    return patterns


def skipped_tests(report: Path) -> Iterator[tuple[str, str]]:
    """Name and message of every skipped test; an expected failure is none."""
    for case in ElementTree.parse(report).iter("testcase"):
        skipped = case.find("skipped")
        if skipped is not None and skipped.get("type") != "pytest.xfail":
            name = f"{case.get('classname', '')}::{case.get('name', '')}"
            yield name, skipped.get("message", "")


def main(arguments: list[str]) -> int:
    """Print what was skipped wrongly; 0 when nothing was."""
    patterns = allowed_patterns(Path(arguments[0]))
    skipped = [entry for report in arguments[1:] for entry in skipped_tests(Path(report))]
    wrong = [
        (name, message)
        for name, message in skipped
        if not any(fnmatchcase(name, pattern) for pattern in patterns)
    ]
    for name, message in wrong:
        print(f"skipped, but should run here: {name}: {message}")
    print(f"{len(skipped)} tests skipped, {len(wrong)} of them not allowed")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
