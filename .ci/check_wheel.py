"""Fails when the wheel lacks a file of the shipped packages, or carries one of another folder.

python .ci/check_wheel.py WHEEL [FOLDER]

FOLDER holds the distribution's pyproject.toml; without it, this folder.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path


def shipped_files(folder: Path) -> set[str]:
    """Files of the shipped packages that git knows or would add, as the wheel names them."""
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = project["tool"]["setuptools"]["packages"]["find"]["include"]
    packages = [pattern for pattern in patterns if not pattern.endswith(".*")]
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *packages]
    output = subprocess.run(listing, cwd=folder, check=True, capture_output=True, text=True).stdout
    return set(output.splitlines())


def main(arguments: list[str]) -> int:
    """Print the differences between tree and wheel; 0 when there is none."""
    with zipfile.ZipFile(arguments[0]) as wheel:
        packed = {name for name in wheel.namelist() if ".dist-info/" not in name}
    expected = shipped_files(Path(*arguments[1:2]))
    for name in sorted(expected - packed):
        print(f"missing in the wheel: {name}")
    for name in sorted(packed - expected):
        print(f"not part of a shipped package: {name}")
    print(f"{len(packed)} files in the wheel")
    return 0 if packed == expected else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
