"""What became of one telemetry batch, built up chunk by chunk.

Every row that was sent ends in exactly one place: it is kept, it repeats another row of the batch,
or it is rejected with a reason. Rows are checked a chunk at a time, so that a batch in which every
cell is wrong costs no more memory than a good one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from calib.cell_parsing import refused_texts
from calib.coded_texts import CodedTexts
from calib.data_quality import QualityFlag, quality_flags
from calib.duplicates import duplicate_rows
from calib.engine_conventions import drop_anchor_slot
from calib.errors import FormatError, RecordError
from calib.record_schema import COLUMN_BY_NAME, check_gamma
from calib.records import AcceptanceRecords, RejectedRow, validate_rows

__all__ = [
    "BatchBuilder",
    "BatchRules",
    "BatchTooLargeError",
    "InvalidBatchError",
    "ParsedBatch",
    "UnreadableBatchError",
    "WholeColumnsError",
]

MOST_REJECTED_NAMED: Final = 1000  # who sends more bad rows than this has one fault, not many
MAX_BATCH_ROWS: Final = 1_000_000
MAX_BUFFER_BYTES: Final = 256 * 2**20
SOURCE: Final = "telemetry batch"
_ANCHOR_NOTE = " (after the anchor's slot was taken off)"
_ANCHOR_COLUMNS = {"verified", "accepted", "scheduled"} | {
    name for name, column in COLUMN_BY_NAME.items() if column.per_position
}


class InvalidBatchError(FormatError):
    """A batch of which no row can be taken, because it is not what it should be as a whole.

    Attributes:
        field: what is wrong: ``"gamma"``, ``"rows"``, ``"columns"`` or ``"body"``.
        rows: rows that were sent, as far as they could be counted.
    """

    def __init__(self, field: str, reason: str, remedy: str, *, rows: int = 0) -> None:
        self.field = field
        self.rows = rows
        super().__init__(SOURCE, f"{field} {reason}", remedy)

    # Exceptions rebuild themselves from their message alone.
    def __reduce__(self) -> tuple[Any, ...]:
        reason = self.reason.removeprefix(f"{self.field} ")
        return type(self), (self.field, reason, self.remedy), {"rows": self.rows}


class UnreadableBatchError(InvalidBatchError):
    """Bytes that are no JSON, or no Arrow IPC stream, or only a part of one."""


class BatchTooLargeError(InvalidBatchError):
    """More rows or bytes than one batch may have.

    Attributes:
        limit: how many there may be.
    """

    def __init__(self, field: str, limit: int, *, found: int) -> None:
        self.limit = limit
        self.found = found
        super().__init__(field, f"has {found:,}, above {limit:,}", "send smaller batches")

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt_too_large, (self.field, self.limit, self.found)


def _rebuilt_too_large(field: str, limit: int, found: int) -> BatchTooLargeError:
    return BatchTooLargeError(field, limit, found=found)


class WholeColumnsError(Exception):
    """Columns that are wrong as a whole, so that no row of the batch can be trusted.

    Attributes:
        rejected: each such column, with ``row=None``.
    """

    def __init__(self, rejected: Sequence[RejectedRow]) -> None:
        self.rejected = tuple(rejected)
        super().__init__("; ".join(f"{row.field}: {row.reason}" for row in rejected[:3]))


@dataclass(frozen=True, slots=True)
class BatchRules:
    """How a batch of one drafter is to be read.

    Attributes:
        gamma: the drafter's block size; the batch must state the same.
        anchor_included: the drafter's engines send γ + 1 slots, of which slot 0 is the anchor, and
            count it in their lengths.
        engine: name for rows that name no engine; None leaves them without.

    Raises:
        RecordError: no block size, or a name that no row could have.
    """

    gamma: int
    anchor_included: bool = False
    engine: str | None = None

    def __post_init__(self) -> None:
        check_gamma(self.gamma)
        if self.engine is not None and refused_texts([self.engine], ()):
            raise RecordError("engine", self.engine, COLUMN_BY_NAME["engine"].remedy(self.gamma))

    @property
    def slots(self) -> int:
        """Width of per-position columns as they are sent."""
        return self.gamma + int(self.anchor_included)


@dataclass(frozen=True, slots=True, eq=False)
class ParsedBatch:
    """A batch after checking; ``len(records) + duplicates + rejected_total`` rows were sent.

    Attributes:
        records: good rows in the order sent, each block once.
        rejected: rows that were left out, by ascending row, at most ``MOST_REJECTED_NAMED``; where
            a whole column is wrong, the columns, with ``row=None``.
        rejected_total: rows that were left out.
        duplicates: good rows left out because the batch holds the same block already.
        excluded: kept rows that no fit and no monitor may use, such as warm-up.
        warnings: suspicions about the rows as a whole; they hold recalibration, not ingest.
    """

    records: AcceptanceRecords
    rejected: tuple[RejectedRow, ...] = ()
    rejected_total: int = 0
    duplicates: int = 0
    excluded: int = 0
    warnings: tuple[QualityFlag, ...] = ()


class BatchBuilder:
    """Takes a batch chunk by chunk and gives the :class:`ParsedBatch`.

    Args:
        rules: how to read it.
    """

    def __init__(self, rules: BatchRules) -> None:
        self._rules = rules
        self._parts: list[AcceptanceRecords] = []
        self._rejected: list[RejectedRow] = []
        self._rejected_total = 0

    def add(
        self,
        columns: Mapping[str, object],
        numbers: Sequence[int],
        faults: Sequence[RejectedRow] = (),
    ) -> None:
        """Check the next chunk.

        Args:
            columns: array-likes by column name, as sent.
            numbers: place in the batch of each of their rows.
            faults: rows of this chunk that are in no column because they cannot be read at all.

        Raises:
            WholeColumnsError: a column as a whole is wrong.
        """
        room = max(MOST_REJECTED_NAMED - len(self._rejected), 0)
        named = list(faults)
        self._rejected_total += len(faults)
        if len(numbers):
            records, rejected = self._checked(columns, len(numbers), room)
            self._parts.append(records)
            self._rejected_total += len(numbers) - len(records)
            named += [self._numbered(row, numbers) for row in rejected]
        self._rejected += sorted(named, key=lambda row: row.row or 0)[:room]

    def _checked(
        self, columns: Mapping[str, object], rows: int, room: int
    ) -> tuple[AcceptanceRecords, list[RejectedRow]]:
        rules = self._rules
        prepared = _with_engine(columns, rules.engine, rows)
        if rules.anchor_included:
            prepared = drop_anchor_slot(rules.gamma, prepared)
        records, rejected = validate_rows(rules.gamma, prepared, most_named=room)
        if rejected and rejected[0].row is None:
            raise WholeColumnsError(rejected)
        return records, rejected

    def finish(self) -> ParsedBatch:
        """The batch as a whole."""
        records = self._joined()
        repeated = duplicate_rows(records)
        duplicates = int(np.count_nonzero(repeated))
        if duplicates:
            records = records.select(~repeated)
        return ParsedBatch(
            records=records,
            rejected=tuple(self._rejected),
            rejected_total=self._rejected_total,
            duplicates=duplicates,
            excluded=int(np.count_nonzero(~records.usable())),
            warnings=quality_flags(records),
        )

    def _joined(self) -> AcceptanceRecords:
        match self._parts:
            case []:
                return AcceptanceRecords.empty(self._rules.gamma)
            case [alone]:
                return alone
        return AcceptanceRecords.concatenate(self._parts)

    def refused(self, error: WholeColumnsError, rows: int) -> ParsedBatch:
        """The outcome when a whole column is wrong: none of the ``rows`` rows can be trusted."""
        named = tuple(error.rejected[:MOST_REJECTED_NAMED])
        records = AcceptanceRecords.empty(self._rules.gamma)
        return ParsedBatch(records, rejected=named, rejected_total=rows)

    def _numbered(self, rejected: RejectedRow, numbers: Sequence[int]) -> RejectedRow:
        anchored = self._rules.anchor_included and rejected.field in _ANCHOR_COLUMNS
        reason = rejected.reason + (_ANCHOR_NOTE if anchored else "")
        return replace(rejected, row=numbers[rejected.row or 0], reason=reason)


def _with_engine(columns: Mapping[str, object], engine: str | None, rows: int) -> dict[str, object]:
    """The columns, with ``engine`` where a row names none."""
    filled = dict(columns)
    if engine is None:
        return filled
    sent = columns.get("engine")
    if sent is None:
        filled["engine"] = CodedTexts.repeated(engine, rows)
    elif isinstance(sent, CodedTexts):
        filled["engine"] = sent.filled(engine)
    elif isinstance(sent, list):
        filled["engine"] = [engine if cell is None else cell for cell in sent]
    return filled
