"""What an engine's step calls to hand over rows: copy, count, return.

Nothing here waits for a network, a disk or a device, and no row, however wrong, raises.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from dspark_calib_client.coded_text import CodedText
from dspark_calib_client.counters import Counters
from dspark_calib_client.row_queue import RowQueue
from dspark_calib_client.rows import (
    CELL_BYTES,
    ROW_BYTES,
    ROW_COLUMNS,
    Rows,
    held_cell,
    held_columns,
    size_of,
)
from dspark_calib_client.sampling import RequestSampler
from dspark_calib_client.single_rows import Applied
from dspark_calib_client.telemetry_options import TelemetryOptions

__all__ = ["Telemetry"]

_KNOWN = ROW_COLUMNS.keys()
_LOG = logging.getLogger("dspark_calib_client")


class Telemetry:
    """Takes rows into a queue.

    Args:
        slots: width of per-position columns.
        options: sampling and bounds.
        queue: where rows wait.
        counters: shared with the client.
        refuses: whether rows are of another key than the service calibrates.
        wall_clock: seconds since the epoch, for rows without a time of their own.
    """

    def __init__(
        self,
        slots: int,
        options: TelemetryOptions,
        queue: RowQueue,
        counters: Counters,
        *,
        refuses: Callable[[], bool],
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._slots = slots
        self._queue = queue
        self._counters = counters
        self._refuses = refuses
        self._wall_clock = wall_clock
        self._sampler = RequestSampler(options.share, options.seed)
        self._most_rows = options.batch_rows
        self._single_size = ROW_BYTES + CELL_BYTES * slots
        self._nameless = 0  # stands in for the name of a request that has none
        self.applied = Applied()

    def observe(
        self,
        confidence_logits: Any,  # [slots] raw, on the host
        verified: int,
        accepted: int,
        request: str | None,
        step: int | None,
        columns: Mapping[str, Any],
    ) -> bool:
        """Take one row; whether it will be sent, as far as is known now."""
        try:
            kind = type(confidence_logits)
            logits = (
                tuple(confidence_logits)
                if kind is list or kind is tuple
                else held_cell(confidence_logits)
            )
            if len(logits) != self._slots or not columns.keys() <= _KNOWN:
                raise ValueError("wrong width, or a column that does not exist")
        except Exception:  # noqa: BLE001  (a row's fault must not reach the engine's step)
            self._counters.add("rows_malformed")
            return False
        if not self._admits(request, step):
            return False
        # A plain tuple, put together by the uploader: this is the engine's time.
        single = (
            *(logits, verified, accepted, request, step),
            *(self._wall_clock(), self.applied, columns),
        )
        return self._queue.offer(1, self._single_size + CELL_BYTES * len(columns), single)

    def record_rows(self, columns: Mapping[str, Any]) -> int:
        """Take many rows as columns; how many will be sent, as far as is known now."""
        try:
            count, held = held_columns(columns, self._slots)
        except Exception as error:  # noqa: BLE001  (as in observe)
            self._counters.add("rows_malformed", _count(columns))
            _LOG.debug("rows refused: %s", error)
            return 0
        if self._refuses():
            self._counters.add("rows_other_key", count)
            return 0
        if not self._sampler.keeps_all:
            count, held = self._sampled(count, held)
        taken = 0
        applied = self.applied
        constants = {
            "timestamp": self._wall_clock(),
            "revision": applied.revision,
            "applied_form": applied.form,
        }
        for start in range(0, count, self._most_rows):
            part = {name: cells[start : start + self._most_rows] for name, cells in held.items()}
            rows = min(self._most_rows, count - start)
            entry = Rows(rows, part, constants)
            if self._queue.offer(rows, size_of(rows, part, self._slots), entry):
                taken += rows
        return taken

    def _admits(self, request: object, step: object) -> bool:
        """Whether a row is of the right key and in the sample; what is not is counted."""
        if self._refuses():
            self._counters.add("rows_other_key")
            return False
        if self._sampler.keeps_all or self._sampler.keeps(self._name(request, step)):
            return True
        self._counters.add("rows_sampled_out")
        return False

    def _name(self, request: object, step: object) -> object:
        """What the sample is drawn by: never anything that happened to the row."""
        if request is not None:
            return request
        if step is not None:
            return ("step", step)
        self._nameless += 1
        return ("row", self._nameless)

    def _sampled(self, count: int, held: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        nameless = [None] * count
        requests, steps = (held.get(name, nameless) for name in ("request", "step"))
        if isinstance(requests, CodedText):
            requests = requests.tolist()
        kept = [row for row in range(count) if self._admits(requests[row], steps[row])]
        rows = {
            name: [cells[row] for row in kept] if isinstance(cells, list) else cells[kept]
            for name, cells in held.items()
        }
        return len(kept), rows


def _count(columns: object) -> int:
    """Rows that a batch seems to have; at least 1, because something was lost."""
    try:
        return max(1, len(columns["verified"]))  # type: ignore[index]
    except Exception:  # noqa: BLE001  (columns may be anything)
        return 1
