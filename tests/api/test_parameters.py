from __future__ import annotations

import re
from typing import get_args

import pytest

from api.parameters import DrafterName
from monitoring.store.fields import LONGEST_SLUG, is_slug


def _pattern() -> str:
    field = get_args(DrafterName)[1]
    patterns = [found.pattern for found in field.metadata if getattr(found, "pattern", None)]
    return str(patterns[0])


@pytest.mark.parametrize("name", ["a", "a.b", "a_b-c.1", "-a", ".a", "A", "a b", "", "ä", "a\n"])
def test_the_names_of_the_path_are_those_of_the_store(name: str) -> None:
    # As pydantic reads it: `$` is the very end.
    assert (
        re.fullmatch(_pattern().removeprefix("^").removesuffix("$"), name) is not None
    ) is is_slug(name)


def test_the_longest_name_is_the_stores() -> None:
    field = get_args(DrafterName)[1]
    limits = [found.max_length for found in field.metadata if hasattr(found, "max_length")]
    assert limits == [LONGEST_SLUG]
