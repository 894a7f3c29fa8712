from __future__ import annotations

import pytest

from monitoring.reports.document_node import Node

DOCUMENT = Node({"a": [{"x/y": 1.5}, None], "~": "t", "n": float("nan"), "b": True})


def test_pointers_are_those_of_rfc_6901() -> None:
    found = DOCUMENT.at("a", 0, "x/y")
    assert (found.value, found.pointer) == (1.5, "/a/0/x~1y")
    assert DOCUMENT.at("~").pointer == "/~0"
    assert DOCUMENT.at("a").at(0).at("x/y") == found


def test_what_is_not_there_is_null_and_keeps_its_place() -> None:
    for path in (("z",), ("a", 7), ("a", "x"), ("~", 0), ("a", 0, "x/y", "deep")):
        found = DOCUMENT.at(*path)
        assert not found.exists
        assert found.number is None
        assert found.text == ""
        assert list(found) == list(found.items()) == []
        assert found.pointer.count("/") == len(path)


@pytest.mark.parametrize("name", ["n", "b", "~", "a"])
def test_only_finite_numbers_are_numbers(name: str) -> None:
    assert DOCUMENT.at(name).number is None


def test_members_in_order() -> None:
    assert [entry.pointer for entry in DOCUMENT.at("a")] == ["/a/0", "/a/1"]
    assert [name for name, _ in DOCUMENT.items()] == ["a", "~", "n", "b"]
    assert [entry.text for entry in (DOCUMENT.at("~"), DOCUMENT.at("b"))] == ["t", "True"]
