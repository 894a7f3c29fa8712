"""The ``--prompts`` option: known files, named domains, and errors that name the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from calib.errors import ConfigurationError, FormatError

pytest.importorskip("torch")
pytestmark = pytest.mark.torch


def _write(path: Path, text: str) -> Path:
    path.write_text(f'{{"turns": ["{text}"]}}\n', encoding="utf-8")
    return path


def test_known_files_carry_their_domain_and_others_are_named(tmp_path: Path) -> None:
    from api.commands.prompt_options import read_prompt_options

    known = _write(tmp_path / "gsm8k.jsonl", "one")
    other = _write(tmp_path / "letters.jsonl", "two")
    found = read_prompt_options([str(known), f"chat={other}"])
    assert [(p.text, p.domain, p.source) for p in found] == [
        ("one", "math", "gsm8k"),
        ("two", "chat", "letters"),
    ]


def test_a_file_without_a_domain_is_refused(tmp_path: Path) -> None:
    from api.commands.prompt_options import read_prompt_options

    other = _write(tmp_path / "letters.jsonl", "two")
    with pytest.raises(ConfigurationError, match="letters"):
        read_prompt_options([str(other)])


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    from api.commands.prompt_options import read_prompt_options

    with pytest.raises(FormatError, match=r"absent\.jsonl"):
        read_prompt_options([f"chat={tmp_path / 'absent.jsonl'}"])
