"""Prompt files, and a split that no prompt can cross."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from calib.errors import ConfigurationError, FormatError
from heads.prompts import Prompt, interleave_domains, part_of, read_prompts, select


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_first_turns_are_read_with_their_domain(tmp_path: Path) -> None:
    path = write(
        tmp_path / "gsm8k.jsonl",
        '{"turns": ["one", "two"]}',
        "",
        '{"turns": ["three"], "id": 4}',
        "",
    )
    assert read_prompts(path) == [
        Prompt("one", "math", "gsm8k"),
        Prompt("three", "math", "gsm8k"),
    ]
    assert read_prompts(path, "code")[0].domain == "code"


def test_a_prompt_may_hold_unicode_line_separators(tmp_path: Path) -> None:
    text = "first\u2028second\u2029third\u0085fourth\x0b"
    path = write(tmp_path / "mbpp.jsonl", json.dumps({"turns": [text]}, ensure_ascii=False))
    assert [p.text for p in read_prompts(path)] == [text]


def test_a_byte_order_mark_is_no_part_of_the_first_prompt(tmp_path: Path) -> None:
    path = tmp_path / "mbpp.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + b'{"turns": ["a"]}\r\n{"turns": ["b"]}\r\n')
    assert [p.text for p in read_prompts(path)] == ["a", "b"]


@pytest.mark.parametrize(
    "line",
    [
        "no json",
        "[1, 2]",
        '"text"',
        "{}",
        '{"turns": []}',
        '{"turns": null}',
        '{"turns": "hello"}',
        '{"turns": {"0": "hello"}}',
        '{"turns": [3]}',
        '{"turns": ["  "]}',
        '{"turns": ["half a pair: \\ud83d"]}',
        "[" * 100_000,
    ],
)
def test_bad_lines_are_named(tmp_path: Path, line: str) -> None:
    path = write(tmp_path / "gsm8k.jsonl", '{"turns": ["fine"]}', line)
    with pytest.raises(FormatError, match="line 2"):
        read_prompts(path)


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"gsm8k\.jsonl"):
        read_prompts(tmp_path / "gsm8k.jsonl")
    (tmp_path / "mbpp.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(FormatError, match=r"mbpp\.jsonl"):
        read_prompts(tmp_path / "mbpp.jsonl")


def test_an_unknown_file_needs_a_domain(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.jsonl", '{"turns": ["a"]}')
    with pytest.raises(ConfigurationError, match="domain"):
        read_prompts(path)
    assert read_prompts(path, "chat") == [Prompt("a", "chat", "mine")]


MANY = [Prompt(f"prompt {i}", "chat", "a") for i in range(4000)]


def test_the_split_is_by_hash_and_disjoint() -> None:
    train = {p.text for p in select(MANY, "train", 0.25)}
    record = {p.text for p in select(MANY, "record", 0.25)}
    assert not train & record
    assert len(train | record) == len(MANY)
    assert 900 < len(record) < 1100
    # By the text alone: the same prompt from another file stays on its side.
    twin = Prompt(MANY[0].text, "math", "b")
    assert part_of(twin, 0.25) == part_of(MANY[0], 0.25)
    assert MANY[0].digest == hashlib.sha256(b"prompt 0").hexdigest()


def test_the_split_is_pinned() -> None:
    """Another rule would move prompts of shipped telemetry into training."""
    parts = [part_of(Prompt(text, "chat", "a"), 0.5) for text in ("a", "b", "c", "d", "e")]
    assert parts == ["train", "record", "record", "record", "record"]


def test_shares_of_nothing_and_everything() -> None:
    assert select(MANY, "record", 0.0) == []
    assert len(select(MANY, "record", 1.0)) == len(MANY)
    with pytest.raises(ConfigurationError, match="record_share"):
        part_of(MANY[0], 1.5)


def test_repeated_texts_are_selected_once_in_digest_order() -> None:
    twice = [*MANY[:5], *MANY[:5]]
    selected = select(twice, "train", 0.0)
    assert len(selected) == 5
    assert [p.digest for p in selected] == sorted(p.digest for p in selected)


def test_domains_take_turns() -> None:
    mixed = [Prompt(f"{d}{i}", d, "a") for d, n in (("math", 3), ("code", 1)) for i in range(n)]
    assert [p.text for p in interleave_domains(mixed)] == ["code0", "math0", "math1", "math2"]
    assert interleave_domains([]) == []
