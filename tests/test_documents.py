"""Documents say what is so: measured numbers, reference pages, links and commands."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "client" / "README.md",
    ROOT / "deploy" / "README.md",
    ROOT / "notebooks" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"^dspark-calib ([a-z-]+)", re.MULTILINE)
_INLINE = re.compile(r"`dspark-calib ([a-z-]+)")
_LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


def run_tool(name: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, f"tools/{name}.py", "--check"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_measured_numbers_are_up_to_date() -> None:
    found = run_tool("update_documents")
    assert found.returncode == 0, found.stdout + found.stderr


# Slow only because the application and every command are imported.
@pytest.mark.slow
def test_everything_public_is_documented_and_the_reference_is_current() -> None:
    found = run_tool("update_reference")
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    targets = _LINK.findall(page.read_text(encoding="utf-8"))
    inside = [link for link in targets if "://" not in link and not link.startswith("mailto:")]
    assert [link for link in inside if not (page.parent / link).exists()] == []


def test_every_decision_is_in_the_index() -> None:
    folder = ROOT / "docs" / "decisions"
    index = (folder / "README.md").read_text(encoding="utf-8")
    files = sorted(path.name for path in folder.glob("[0-9]*.md"))
    assert [name for name in files if f"({name})" not in index] == []


def test_commands_in_documents_exist() -> None:
    from api.cli import COMMANDS, GROUPS

    known = {*COMMANDS, *GROUPS, "import"} - {"imports"}
    texts = [page.read_text(encoding="utf-8") for page in PAGES]
    fences = "\n".join(fence for text in texts for fence in _FENCE.findall(text))
    named = {*_COMMAND.findall(fences), *_INLINE.findall("\n".join(texts))}
    named -= {"attached", "steps"}  # log lines of the plugins, which the engines' pages quote
    assert len(named) > 10
    assert named - known == set()


def test_options_in_documents_exist() -> None:
    import typer

    from api.cli import app

    lines = [
        line.split("#")[0].split()[1:]
        for page in PAGES
        for fence in _FENCE.findall(page.read_text(encoding="utf-8").replace("\\\n", " "))
        for line in fence.splitlines()
        if re.match(r"dspark-calib [a-z]+ .*-", line)
    ]
    wrong = []
    root = typer.main.get_command(app)
    for words in lines:
        command = root
        while words and hasattr(command, "commands") and words[0] in command.commands:
            command = command.commands[words.pop(0)]
        known = {"--help"} | {o for p in command.params for o in (*p.opts, *p.secondary_opts)}
        given = {w.split("=")[0] for w in words if re.match(r"--?[a-z]", w)}
        wrong += [(command.name, option) for option in sorted(given - known)]
    assert lines
    assert wrong == []
