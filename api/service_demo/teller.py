"""How the story looks on a terminal: titles, sentences, a bar, and lines that can be copied."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

__all__ = ["Teller"]

_WIDTH = 100  # where there is no terminal


class Teller:
    """Prints to a console.

    Args:
        console: standard output when None.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or _standard_output()

    def title(self, name: str, explanation: str = "") -> None:
        """Begin a part."""
        line = Text(f"\n{name}", style="bold")
        if explanation:
            line.append(f"  {explanation}", style="dim")
        self._console.print(line)

    def say(self, sentence: str) -> None:
        """One sentence or more, wrapped."""
        self._console.print(Padding(Text(sentence), (0, 0, 0, 2)))

    def show(self, lines: Sequence[tuple[str, str]]) -> None:
        """Names with addresses or commands, each on one line: what wraps cannot be copied."""
        width = max(len(name) for name, _ in lines)
        for name, text in lines:
            self._console.print(Text(f"  {name:<{width}}  {text}"), soft_wrap=True)

    def waiting(self, text: str) -> AbstractContextManager[object]:
        """A spinner as long as the block lasts."""
        return self._console.status(text)

    @contextmanager
    def counting(self, name: str, total: int) -> Iterator[Callable[[int], None]]:
        """A bar, gone at the end; the block gets a function that takes what is done so far."""
        columns = (
            TextColumn("  {task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=self._console, transient=True) as progress:
            task = progress.add_task(name, total=total)
            yield lambda done: progress.update(task, completed=done)


def _standard_output() -> Console:
    found = Console()
    return found if found.is_terminal else Console(width=_WIDTH)
