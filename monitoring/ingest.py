"""From the body of a telemetry request to what is stored; no transport and no database.

:func:`parse_json_batch` and :func:`parse_arrow_batch` give a :class:`ParsedBatch`: good rows, and
a reason for every other. :func:`payload_of` turns good rows into the bytes of a stored batch,
:func:`records_of` turns them back, bit for bit.
"""

from __future__ import annotations

from monitoring.arrow_batches import parse_arrow_batch
from monitoring.json_batches import parse_json_batch
from monitoring.parsed_batch import (
    MAX_BATCH_ROWS,
    MOST_REJECTED_NAMED,
    BatchTooLargeError,
    InvalidBatchError,
    ParsedBatch,
    UnreadableBatchError,
)
from monitoring.payloads import payload_of, records_of

__all__ = [
    "MAX_BATCH_ROWS",
    "MOST_REJECTED_NAMED",
    "BatchTooLargeError",
    "InvalidBatchError",
    "ParsedBatch",
    "UnreadableBatchError",
    "parse_arrow_batch",
    "parse_json_batch",
    "payload_of",
    "records_of",
]
