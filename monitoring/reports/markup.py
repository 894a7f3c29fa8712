"""HTML and SVG as text that is escaped by construction: no template can forget it.

Reports are made where only the base packages are installed, so there is no template engine here.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable
from typing import Final

__all__ = ["Markup", "element", "escaped", "joined", "number"]

# What no HTML document may hold, and what UTF-8 cannot write: shown as a replacement character.
_FORBIDDEN: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_VOID: Final = frozenset({"br", "hr", "link", "meta"})


class Markup(str):
    """Text that is markup already; everything else is escaped on its way into a page."""

    __slots__ = ()

    def __html__(self) -> str:
        """Itself, for template engines that ask."""
        return str(self)


def escaped(value: object) -> Markup:
    """Markup as it is, anything else as text.

    Examples:
        >>> escaped("a < b"), escaped(Markup("<b>"))
        ('a &lt; b', '<b>')
    """
    if isinstance(value, Markup):
        return value
    return Markup(html.escape(_FORBIDDEN.sub("\ufffd", str(value)), quote=True))


def joined(parts: Iterable[object]) -> Markup:
    """The parts one after another, escaped where they are no markup."""
    return Markup("".join(escaped(part) for part in parts))


def element(tag: str, *children: object, **attributes: object) -> Markup:
    """One element; text and attribute values are escaped, attributes that are None left out.

    Args:
        tag: its name.
        *children: markup, or text to escape.
        **attributes: ``class_`` is ``class``; other underscores become hyphens. Floats are
            coordinates, see :func:`number`.

    Examples:
        >>> element("p", "1 < 2", class_="note", id=None)
        '<p class="note">1 &lt; 2</p>'
    """
    said = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{_attribute(value)}"'
        for name, value in attributes.items()
        if value is not None
    )
    if tag in _VOID:
        return Markup(f"<{tag}{said}>")
    return Markup(f"<{tag}{said}>{joined(children)}</{tag}>")


def number(value: float) -> str:
    """A coordinate with at most two decimals, without trailing zeros.

    Examples:
        >>> number(1.0), number(0.126), number(-0.001)
        ('1', '0.13', '0')
    """
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text


def _attribute(value: object) -> Markup:
    return escaped(number(value) if isinstance(value, float) else value)
