"""A place in a report's JSON: what is there, and the pointer (RFC 6901) that leads to it.

Pages are made from the JSON and from nothing else. Whatever a number in a page shows, its pointer
says which member it is, so that a reader, or a test, can set the two side by side.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Node"]


@dataclass(frozen=True, slots=True)
class Node:
    """A member of a JSON document; a member that is not there is null.

    Attributes:
        value: plain JSON.
        pointer: where it is, empty for the whole document.
    """

    value: Any
    pointer: str = ""

    def at(self, *path: str | int) -> Node:
        """The member along this path.

        Examples:
            >>> Node({"a": [1, {"b/c": 2}]}).at("a", 1, "b/c")
            Node(value=2, pointer='/a/1/b~1c')
        """
        value, pointer = self.value, self.pointer
        for step in path:
            pointer += "/" + str(step).replace("~", "~0").replace("/", "~1")
            if isinstance(step, int):
                inside = _is_list(value) and -len(value) <= step < len(value)
                value = value[step] if inside else None
            else:
                value = value.get(step) if isinstance(value, Mapping) else None
        return Node(value, pointer)

    def __iter__(self) -> Iterator[Node]:
        """The members of a list, none where it is no list."""
        count = len(self.value) if _is_list(self.value) else 0
        return (self.at(index) for index in range(count))

    def items(self) -> Iterator[tuple[str, Node]]:
        """Names and members of an object, none where it is no object."""
        names = list(self.value) if isinstance(self.value, Mapping) else []
        return ((str(name), self.at(name)) for name in names)

    @property
    def exists(self) -> bool:
        """Whether it is there and not null."""
        return self.value is not None

    @property
    def number(self) -> float | None:
        """The finite number that it is, or None."""
        if isinstance(self.value, bool) or not isinstance(self.value, int | float):
            return None
        return float(self.value) if math.isfinite(self.value) else None

    @property
    def text(self) -> str:
        """The text that it is; other plain values as text, nothing for null."""
        if self.value is None or isinstance(self.value, Mapping) or _is_list(self.value):
            return ""
        return str(self.value)


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)
