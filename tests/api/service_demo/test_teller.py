from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from api.service_demo.teller import Teller


@pytest.fixture
def text() -> StringIO:
    return StringIO()


@pytest.fixture
def teller(text: StringIO) -> Teller:
    return Teller(Console(file=text, width=40))


def test_sentences_wrap_and_addresses_do_not(teller: Teller, text: StringIO) -> None:
    address = "http://127.0.0.1:8765/v1/drafters/a-drafter/temperatures"
    teller.title("Poll", "who asks")
    teller.say("Engines ask again and again, and mostly hear that nothing has changed.")
    teller.show([("poll", address), ("documentation", "x")])
    lines = [line.rstrip() for line in text.getvalue().splitlines()]
    assert lines[1] == "Poll  who asks"
    assert lines[2] == "  Engines ask again and again, and"
    assert f"  poll           {address}" in lines
    assert "  documentation  x" in lines


def test_markup_in_what_others_sent_is_text(teller: Teller, text: StringIO) -> None:
    teller.say("[bold]not bold[/bold]")
    assert "[bold]not bold[/bold]" in text.getvalue()


def test_bars_and_spinners_take_what_they_are_told(teller: Teller) -> None:
    with teller.counting("rows", 10) as progress:
        progress(3)
        progress(10)
    with teller.waiting("fitting"):
        pass


def test_without_a_terminal_there_is_a_width(capsys: pytest.CaptureFixture[str]) -> None:
    Teller().say("x" * 150)
    assert max(map(len, capsys.readouterr().out.splitlines())) == 100
