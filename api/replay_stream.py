"""The stream that ``dspark-calib replay`` plays, as its options name it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from monitoring.replay_shifts import Stream

__all__ = ["StreamOptions"]


@dataclass(frozen=True)
class StreamOptions:
    """Which rows are played, in which order, and what changes in between.

    Attributes:
        telemetry: files, see :func:`api.telemetry_input.read_telemetry`.
        gamma: block size; None takes what the first file states.
        order: ``COLUMN=VALUE,VALUE`` plays one slice after another; None leaves the rows.
        swap: telemetry of another drafter that takes over at the end.
        announced: whether the swap comes with a new calibration key.
        scale_logits: ``FACTOR@ROW`` multiplies logits from a row on, from the middle without one.
        baseline_rows: rows that the first champion is fitted on; 0 for none.
        seed: deals the requests anew; 0 leaves them.
    """

    telemetry: tuple[str, ...]
    gamma: int | None = None
    order: str | None = None
    swap: Path | None = None
    announced: bool = False
    scale_logits: str | None = None
    baseline_rows: int = 4000
    seed: int = 0

    def read(self) -> Stream:
        """Read the files and build the stream.

        Raises:
            CalibrationError: bad input, or an option that names nothing in it.
            OSError: a file that cannot be read.
        """
        from api.telemetry_input import read_telemetry
        from monitoring.replay_shifts import Stream, shuffled

        records = read_telemetry(self.telemetry, self.gamma).records
        stream = Stream.of(shuffled(records, self.seed) if self.seed else records)
        if self.order is not None:
            stream = stream.ordered(*_column_and_values(self.order))
        if self.swap is not None:
            other = read_telemetry([str(self.swap)], records.gamma).records
            stream = stream.then(other, f"swap to {self.swap.name}", announced=self.announced)
        if self.scale_logits is not None:
            stream = stream.scaled(*_factor_and_row(self.scale_logits, len(stream.records) // 2))
        return stream


def _column_and_values(order: str) -> tuple[str, list[str]]:
    from calib.errors import ConfigurationError

    column, equals, values = order.partition("=")
    if not equals or not values:
        raise ConfigurationError("order", order, "give COLUMN=VALUE,VALUE")
    return column.strip(), [value.strip() for value in values.split(",")]


def _factor_and_row(scale: str, middle: int) -> tuple[float, int]:
    from calib.errors import ConfigurationError

    factor, at, row = scale.partition("@")
    try:
        return float(factor), int(row) if at else middle
    except ValueError as error:
        raise ConfigurationError("scale_logits", scale, "give FACTOR@ROW") from error
