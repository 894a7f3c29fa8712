"""Progress bars of long commands, on standard error so that output can be piped."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

if TYPE_CHECKING:
    from heads.training import StepReport


class CountingDisplay:
    """One bar per counted thing, made when it is first counted."""

    def __init__(self) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=Console(stderr=True),
        )
        self._tasks: dict[str, int] = {}

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def stage(self, text: str) -> None:
        """Print a line above the bars."""
        self._progress.console.print(text)

    def count(self, name: str, done: int, total: int, note: str = "") -> None:
        """Move a bar."""
        if name not in self._tasks:
            self._tasks[name] = self._progress.add_task(name, total=total, note="")
        self._progress.update(
            self._tasks[name],  # type: ignore[arg-type]
            completed=min(done, total),
            note=note,
        )


class TrainingDisplay(CountingDisplay):
    """Bars of response sampling and training.

    Args:
        steps: of the training plan.
    """

    def __init__(self, steps: int) -> None:
        super().__init__()
        self._steps = steps

    def responses(self, done: int, total: int) -> None:
        """Move the bar of sampled responses."""
        self.count("responses", done, total)

    def step(self, report: StepReport) -> None:
        """Move the bar of optimiser steps, with loss and accepted length beside it."""
        accepted = 1.0 + sum(report.survival)
        note = f"loss {report.total:.3f}, accepted length {accepted:.2f}"
        self.count("steps", report.step + 1, self._steps, note)
