"""Prompt files, and the split that keeps training and recording apart.

A file holds one JSON object a line, ``{"turns": [text, …]}``; the first turn is the prompt.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from calib.errors import ConfigurationError, FormatError

Part = Literal["train", "record"]

# Which domain a well-known benchmark belongs to; other files are named by the caller.
KNOWN_DOMAINS = {
    "gsm8k": "math",
    "math500": "math",
    "humaneval": "code",
    "mbpp": "code",
    "mt-bench": "chat",
    "arena-hard-v2": "chat",
}


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt with where it came from."""

    text: str
    domain: str
    source: str

    @property
    def digest(self) -> str:
        """SHA-256 of the text: identity, and what the split depends on."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def read_prompts(path: Path, domain: str | None = None) -> list[Prompt]:
    """Read one prompt file.

    Args:
        path: JSON-lines file.
        domain: tag of its prompts; known benchmark names need none.

    Raises:
        FormatError: the file cannot be read, or a line is no object with a non-empty list of
            texts under ``turns``.
        ConfigurationError: the domain is neither given nor known.
    """
    tag = domain or KNOWN_DOMAINS.get(path.stem)
    if tag is None:
        raise ConfigurationError(
            "domain", path.stem, f"say which domain {path.name} belongs to, as DOMAIN={path.name}"
        )
    try:
        # Not splitlines: a prompt may hold the line separators that JSON leaves as they are.
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise FormatError(path, str(error), "give a readable JSON-lines file") from error
    return [
        Prompt(_first_turn(path, number, line), tag, path.stem)
        for number, line in enumerate(lines, start=1)
        if line.strip()
    ]


def _first_turn(path: Path, number: int, line: str) -> str:
    try:
        turns = json.loads(line)["turns"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise FormatError(
            path,
            f"line {number} is no prompt ({type(error).__name__})",
            'each line must be {"turns": ["text", …]}',
        ) from error
    if not isinstance(turns, list) or not turns:
        raise FormatError(
            path, f"line {number}: turns is no list of texts", "give one text or more"
        )
    first = turns[0]
    if not isinstance(first, str) or not first.strip() or not _is_unicode(first):
        raise FormatError(path, f"line {number}: the first turn is no text", "give a text")
    return first


def _is_unicode(text: str) -> bool:
    """JSON can spell half of a surrogate pair, which no encoder and no tokenizer takes."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def part_of(prompt: Prompt, record_share: float) -> Part:
    """Training or recording, by the hash of the text alone: a prompt is never in both.

    Raises:
        ConfigurationError: a share outside [0, 1].
    """
    if not 0.0 <= record_share <= 1.0:
        raise ConfigurationError("record_share", record_share, "give a share in [0, 1]")
    return "record" if int(prompt.digest[:8], 16) / 16**8 < record_share else "train"


def select(prompts: Iterable[Prompt], part: Part, record_share: float) -> list[Prompt]:
    """The prompts of one part, without repeated texts, ordered by digest.

    Digest order is a fixed shuffle: any head of the list is a fair sample of its files.
    """
    unique = {p.digest: p for p in prompts if part_of(p, record_share) == part}
    return [unique[digest] for digest in sorted(unique)]


def interleave_domains(prompts: Sequence[Prompt]) -> list[Prompt]:
    """Round-robin over domains, so that a run stopped early has seen all of them."""
    by_domain: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        by_domain.setdefault(prompt.domain, []).append(prompt)
    ordered: list[Prompt] = []
    for turn in range(max((len(p) for p in by_domain.values()), default=0)):
        ordered += [p[turn] for _, p in sorted(by_domain.items()) if turn < len(p)]
    return ordered
