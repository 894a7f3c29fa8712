"""What callers get cannot be changed, and its words are plain text."""

from __future__ import annotations

import dataclasses
import json

import pytest

from dspark_calib_client import Source, State, Temperatures

ONES = Temperatures((1.0, 1.0), 0, 0, None, None, State.FALLBACK, Source.IDENTITY, None)


def test_they_are_immutable() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        ONES.publication = 3  # type: ignore[misc]
    assert isinstance(ONES.values, tuple)
    assert ONES.gamma == 2


def test_words_are_text() -> None:
    assert f"{State.FRESH} {Source.BAKED_IN}" == "fresh baked_in"
    assert State.STALE == "stale"
    assert json.dumps([State.FALLBACK, Source.SERVICE]) == '["fallback", "service"]'
