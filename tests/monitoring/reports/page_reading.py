"""Reads a report's page as a browser would: elements, text, numbers with their places."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

VOID = frozenset({"br", "hr", "link", "meta"})


@dataclass
class Page(HTMLParser):
    """A parsed page."""

    tags: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    numbers: list[tuple[str, str, str]] = field(default_factory=list)  # pointer, value, shown
    blanks: list[str] = field(default_factory=list)  # pointers of dashes
    open_tags: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.append((tag, given))
        if tag not in VOID:
            self.open_tags.append(tag)
        pointer = given.get("data-at")
        if tag == "data":
            assert pointer is not None
            self.numbers.append((pointer, given["value"] or "", ""))
        elif pointer is not None:
            self.blanks.append(pointer)

    def handle_endtag(self, tag: str) -> None:
        assert self.open_tags.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open_tags and self.open_tags[-1] == "style":
            return
        self.texts.append(data)
        if self.open_tags and self.open_tags[-1] == "data":
            pointer, value, _ = self.numbers[-1]
            self.numbers[-1] = (pointer, value, data)

    @property
    def text(self) -> str:
        """All that a reader sees."""
        return " ".join("".join(self.texts).split())

    def count(self, tag: str, class_: str | None = None) -> int:
        """Elements of this name, and class."""
        return sum(
            name == tag and (class_ is None or class_ in (given.get("class") or "").split())
            for name, given in self.tags
        )


def read_page(page: bytes) -> Page:
    """The page; an unclosed or wrongly nested element fails."""
    found = Page()
    found.feed(page.decode())
    found.close()
    assert found.open_tags == []
    return found


def at_pointer(document: Any, pointer: str) -> Any:
    """The member that a JSON pointer names; None where there is none."""
    for step in pointer.split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(document, list):
            document = document[int(name)] if int(name) < len(document) else None
        else:
            document = document.get(name) if isinstance(document, dict) else None
    return document
