"""The ``--prompts`` option that training and recording share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from heads.prompts import Prompt

PromptFiles = Annotated[
    list[str],
    typer.Option(
        help="JSON-lines file with a list of texts as `turns` in every line, as PATH or "
        "DOMAIN=PATH; may be repeated."
    ),
]


def read_prompt_options(values: list[str]) -> list[Prompt]:
    """All prompts of all files.

    Raises:
        FormatError: a file that holds no prompts.
        ConfigurationError: a file whose domain is unknown.
    """
    from heads.prompts import read_prompts

    found: list[Prompt] = []
    for value in values:
        domain, equals, path = value.partition("=")
        found += read_prompts(Path(path), domain) if equals else read_prompts(Path(value))
    return found
