"""Telemetry batches as Arrow IPC streams, in the form of :mod:`calib.formats.arrow`."""

from __future__ import annotations

from typing import Any, Final

from calib.errors import FormatError
from calib.formats.arrow import (
    GAMMA_KEY,
    VERSION_KEY,
    columns_from_table,
    table_from_ipc,
)
from monitoring.arrow_messages import measure_stream
from monitoring.parsed_batch import (
    MAX_BATCH_ROWS,
    MAX_BUFFER_BYTES,
    SOURCE,
    BatchBuilder,
    BatchRules,
    InvalidBatchError,
    ParsedBatch,
    UnreadableBatchError,
    WholeColumnsError,
)

__all__ = ["parse_arrow_batch"]

CHUNK_ROWS: Final = 16_384  # bounds what a batch of nothing but faults costs


def parse_arrow_batch(
    body: bytes,
    gamma: int,
    *,
    anchor_included: bool = False,
    engine: str | None = None,
    max_rows: int = MAX_BATCH_ROWS,
    max_bytes: int = MAX_BUFFER_BYTES,
) -> ParsedBatch:
    """The rows of an Arrow IPC stream, good and bad.

    Args:
        body: one stream, to its end-of-stream mark.
        gamma: the drafter's block size; the stream's metadata must state the same.
        anchor_included: lists have γ + 1 slots, of which slot 0 is the anchor.
        engine: name for rows that name no engine.
        max_rows: most rows there may be.
        max_bytes: most bytes its buffers may have once decompressed.

    Raises:
        UnreadableBatchError: no stream, or only a part of one.
        BatchTooLargeError: more rows or bytes than allowed.
        InvalidBatchError: foreign metadata, another γ, other columns or types, no rows.
        RecordError: ``gamma`` is no block size, or ``engine`` a name that no row could have.
    """
    rules = BatchRules(gamma, anchor_included=anchor_included, engine=engine)
    rows = measure_stream(body, max_rows=max_rows, max_bytes=max_bytes).rows
    if rows == 0:
        raise InvalidBatchError("rows", "are none", "send at least one row")
    columns = _columns(body, rules, rows)
    builder = BatchBuilder(rules)
    try:
        for start in range(0, rows, CHUNK_ROWS):
            stop = min(start + CHUNK_ROWS, rows)
            chunk = {name: cells[start:stop] for name, cells in columns.items()}
            builder.add(chunk, range(start, stop))
    except WholeColumnsError as error:
        return builder.refused(error, rows)
    return builder.finish()


def _columns(body: bytes, rules: BatchRules, rows: int) -> dict[str, Any]:
    try:
        table = table_from_ipc(body, source=SOURCE)
    except FormatError as error:
        raise UnreadableBatchError("body", error.reason, error.remedy) from error
    metadata = table.schema.metadata or {}
    stated = metadata.get(GAMMA_KEY)
    if VERSION_KEY in metadata and stated is not None and stated != b"%d" % rules.gamma:
        shown = f"in the metadata is {stated.decode(errors='replace'):.20}, not {rules.gamma}"
        raise InvalidBatchError("gamma", shown, "state the drafter's block size", rows=rows)
    try:
        return columns_from_table(table, rules.gamma, slots=rules.slots, source=SOURCE)
    except FormatError as error:
        raise InvalidBatchError("columns", error.reason, error.remedy, rows=rows) from error
