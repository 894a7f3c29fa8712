from __future__ import annotations

import pytest

from monitoring.reports.markup import Markup, element, escaped, joined, number


def test_text_is_escaped_and_markup_is_not_escaped_again() -> None:
    inner = element("b", "<&\"'>")
    assert inner == "<b>&lt;&amp;&quot;&#x27;&gt;</b>"
    assert element("p", inner, " < ", 3) == f"<p>{inner} &lt; 3</p>"
    assert joined(("a<", Markup("<br>"))) == "a&lt;<br>"


def test_attributes() -> None:
    made = element("path", class_="a", data_at='/x"', stroke_width=1.50, id=None, tabindex=0)
    assert made == '<path class="a" data-at="/x&quot;" stroke-width="1.5" tabindex="0"></path>'
    assert element("meta", charset="utf-8") == '<meta charset="utf-8">'


@pytest.mark.parametrize("code", [0x00, 0x08, 0x1B, 0x7F, 0x9F, 0xD800, 0xDFFF, 0xFFFF])
def test_characters_that_no_page_may_hold_are_replaced(code: int) -> None:
    assert escaped(f"a{chr(code)}b") == "a\ufffdb"
    assert escaped(f"a{chr(code)}b").encode()


def test_line_breaks_and_letters_of_all_scripts_stay() -> None:
    assert escaped("γ 模\n\t") == "γ 模\n\t"


def test_template_engines_take_it_as_markup() -> None:
    markupsafe = pytest.importorskip("markupsafe")
    assert markupsafe.escape(element("b", "x")) == "<b>x</b>"


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0"), (-0.004, "0"), (10.0, "10"), (0.125, "0.12"), (-1.5, "-1.5")]
)
def test_coordinates_are_short(value: float, text: str) -> None:
    assert number(value) == text
