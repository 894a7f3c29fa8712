from __future__ import annotations

from collections.abc import Callable

import pytest

from monitoring.reports.document_node import Node
from monitoring.reports.markup import Markup
from monitoring.reports.shown_numbers import (
    change,
    count,
    decimal,
    interval,
    moment,
    percent,
    points,
)

TREE = Node({"a": 0.04214, "b": -0.00049, "c": 31006, "d": None, "e": -0.0351, "f": "0.5"})


def shown(show: Callable[[Node], Markup], name: str) -> str:
    text = str(show(TREE.at(name)))
    return text.partition(">")[2].partition("<")[0]


@pytest.mark.parametrize(
    ("show", "name", "text"),
    [
        (points, "a", "4.2"),
        (points, "b", "0.0"),
        (points, "e", "−3.5"),
        (percent, "a", "4.2 %"),
        (decimal, "a", "0.042"),
        (decimal, "b", "0.000"),
        (count, "c", "31,006"),
        (points, "d", "–"),
        (points, "f", "–"),
        (points, "missing", "–"),
    ],
)
def test_as_people_read_them(show: Callable[[Node], Markup], name: str, text: str) -> None:
    assert shown(show, name) == text


def test_exact_value_and_place_go_with_the_text() -> None:
    assert points(TREE.at("a")) == '<data value="0.04214" data-at="/a">4.2</data>'
    assert points(TREE.at("d")) == '<span class="none" data-at="/d">–</span>'


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("2026-11-29T23:12:44.120Z", "2026-11-29 23:12 UTC"),
        ("2026-11-29T23:12:44+02:00", "2026-11-29 21:12 UTC"),
        ("2026-11-29T23:12:44", "2026-11-29 23:12 UTC"),
    ],
)
def test_instants_are_to_the_minute(given: str, text: str) -> None:
    assert moment(Node(given)) == f'<time datetime="{given}">{text}</time>'


def test_what_is_no_instant_stays_as_it_is() -> None:
    assert moment(Node("<soon>")) == "&lt;soon&gt;"
    assert moment(Node("0001-01-01T00:00:00+10:00")) == "0001-01-01T00:00:00+10:00"
    assert moment(Node(None)) == ""


def test_intervals_and_changes() -> None:
    a, c, d = TREE.at("a"), TREE.at("c"), TREE.at("d")
    assert interval(a, c, a).count("<data") == 3
    assert interval(a, d, a) == points(a)
    assert interval(d, a, a) == points(d)
    assert " → " in change(a, c)
    assert change(a, a) == points(a)
    assert change(a, d).count("–") == 1
    assert change(d, TREE.at("missing")) == points(TREE.at("missing"))
