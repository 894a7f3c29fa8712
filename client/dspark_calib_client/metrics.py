"""One flat mapping of everything worth a graph; names that never counted are there with 0.

==========================  =============================================================
polls                       attempts; each ends in one of ``polls_changed``,
                            ``polls_unchanged``, ``polls_mismatch``, ``polls_interrupted`` and
                            ``polls_failed``
poll_failed_<why>           faults by kind: ``timeout``, ``connect``, ``wrong_etag``, …
state_number                0 fresh, 1 stale, 2 fallback
rows_offered                rows that reached the queue, equal to the sum of ``rows_dropped``
                            (queue full), ``rows_discarded`` (of another key),
                            ``rows_unwritable``, ``rows_delivered``, ``rows_refused``,
                            ``rows_expired``, ``rows_abandoned`` (at a stop), ``rows_queued``
                            and ``rows_in_flight``
rows_malformed, …           rows that never got there: ``rows_malformed``,
                            ``rows_other_key``, ``rows_sampled_out``
rows_accepted, …            what the service said about delivered rows: ``rows_accepted``,
                            ``rows_duplicate``, ``rows_rejected``
batches, batch_retries      bodies that were written, and attempts after the first
upload_failed_<why>         attempts that failed, by kind
==========================  =============================================================
"""

from __future__ import annotations

from typing import Any

from dspark_calib_client.counters import Counters
from dspark_calib_client.row_queue import RowQueue
from dspark_calib_client.temperatures import State, Temperatures

__all__ = ["client_metrics"]

_STATE_NUMBERS = {State.FRESH: 0, State.STALE: 1, State.FALLBACK: 2}
_ALWAYS_PRESENT = (
    "polls",
    "polls_changed",
    "polls_unchanged",
    "polls_mismatch",
    "polls_interrupted",
    "polls_failed",
    "rows_malformed",
    "rows_other_key",
    "rows_sampled_out",
    "rows_unwritable",
    "rows_delivered",
    "rows_refused",
    "rows_expired",
    "rows_abandoned",
    "rows_discarded",
    "rows_accepted",
    "rows_duplicate",
    "rows_rejected",
    "batches",
    "batch_retries",
)


def client_metrics(
    counters: Counters,
    queue: RowQueue,
    now: Temperatures,
    *,
    key_mismatch: bool,
    running: bool,
    in_flight: int,
) -> dict[str, Any]:
    """Counters since the start, and what holds now; numbers, texts and None by name."""
    return {
        **dict.fromkeys(_ALWAYS_PRESENT, 0),
        **counters.snapshot(),
        "state": str(now.state),
        "state_number": _STATE_NUMBERS[now.state],
        "source": str(now.source),
        "publication": now.publication,
        "revision": now.revision,
        "age_seconds": now.age,
        "key_mismatch": int(key_mismatch),
        "running": int(running),
        "rows_offered": queue.offered,
        "rows_dropped": queue.dropped,
        "rows_queued": queue.rows,
        "bytes_queued": queue.bytes,
        "rows_in_flight": in_flight,
    }
