"""Batches for tests: one plain by hand, and a hypothesis strategy over the whole row contract.

Columns are Python lists, as JSON gives them, so that a test can spoil a single cell.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from calib.record_schema import COLUMNS, Column, ColumnKind, Presence
from calib.records import AcceptanceRecords

Columns = dict[str, list[Any]]


def lengths(*pairs: tuple[int, int], gamma: int) -> Columns:
    """A batch with the given (verified, accepted) pairs and unremarkable logits."""
    logits = [[0.25 * (row + 1) - 0.5 * k for k in range(gamma)] for row in range(len(pairs))]
    return {
        "confidence_logits": logits,
        "verified": [verified for verified, _ in pairs],
        "accepted": [accepted for _, accepted in pairs],
    }


def plain_columns(rows: int = 6, gamma: int = 3) -> Columns:
    """A good batch that has every column of the contract."""
    verified = [row % (gamma + 1) for row in range(rows)]
    columns = lengths(*[(length, length // 2) for length in verified], gamma=gamma)
    grid = [[(row + k) % 5 / 4 for k in range(gamma)] for row in range(rows)]
    return columns | {
        "revision": [row - 1 for row in range(rows)],
        "explored": [row % 2 == 0 for row in range(rows)],
        "propensity": [0.25 if row % 2 == 0 else None for row in range(rows)],
        "anticipating": [row == 4 for row in range(rows)],
        "flags": [row % 32 for row in range(rows)],
        "soft_labels": [[None, *line[1:]] for line in grid],
        "token_acceptance": [None, *grid[1:]],
        "sampling_temperature": [0.0, *[0.7] * (rows - 2), None],
        "context_length": [None, *range(1, rows)],
        "domain": ["code", None, *["chat"] * (rows - 2)],
        "adapter": [None] * rows,
        "acceptance_rule": ["rejection", "block", *["greedy"] * (rows - 2)],
        "draft_mode": ["sampled", None, *["greedy"] * (rows - 2)],
        "scheduled": [None, *[gamma] * (rows - 1)],
        "engine": [f"engine-{row % 2}" for row in range(rows)],
        "rank": [0] * rows,
        "step": [None, *range(2**40, 2**40 + rows - 1)],
        "request": [f"γ-request {row}" for row in range(rows)],
        "step_requests": [4] * rows,
        "timestamp": [1.7e9 + row / 3 for row in range(rows)],
        "tenant": ["t1"] * rows,
        "prompt": [f"{row:08x}" for row in range(rows)],
        "applied_form": ["temperatures", "affine", *["identity"] * (rows - 2)],
    }


def plain_records(rows: int = 6, gamma: int = 3) -> AcceptanceRecords:
    """The batch of :func:`plain_columns` as records."""
    return AcceptanceRecords.from_columns(gamma, plain_columns(rows, gamma))


def _cells(column: Column, gamma: int) -> st.SearchStrategy[Any]:
    high = column.upper(gamma)
    cells: st.SearchStrategy[Any]
    if column.kind is ColumnKind.FLOAT:
        width: Any = 32 if column.dtype == np.float32 else 64
        cells = st.floats(column.low, high, allow_nan=False, allow_infinity=False, width=width)
    elif column.kind is ColumnKind.INTEGER:
        cells = st.integers(0, int(high or 0))
    elif column.kind is ColumnKind.BOOLEAN:
        cells = st.booleans()
    elif column.choices:
        cells = st.sampled_from(column.choices)
    else:
        cells = st.text("abcZ-_ 09éγ漢", min_size=1, max_size=8)
    return cells | st.none() if column.nullable else cells


@st.composite
def batches(draw: st.DrawFn, *, with_column: str = "") -> tuple[int, Columns]:
    """A block size and a good batch of one row or more.

    It has the required columns, ``with_column``, and a few others: all of them at once would
    cost more to draw than to check.
    """
    gamma = draw(st.integers(1, 4))
    rows = draw(st.integers(1, 5))
    names = {column.name for column in COLUMNS if column.presence is Presence.REQUIRED}
    names |= draw(st.sets(st.sampled_from([column.name for column in COLUMNS]), max_size=4))
    columns: Columns = {}
    for column in COLUMNS:
        if column.name not in names | {with_column}:
            continue
        cells = _cells(column, gamma)
        if column.per_position:
            cells = st.lists(cells, min_size=gamma, max_size=gamma)
        columns[column.name] = draw(st.lists(cells, min_size=rows, max_size=rows))
    _order_lengths(columns)
    return gamma, columns


def _order_lengths(columns: Columns) -> None:
    """Sort each row's lengths, so that accepted ≤ verified ≤ scheduled."""
    for row, pair in enumerate(zip(columns["accepted"], columns["verified"], strict=True)):
        columns["accepted"][row], columns["verified"][row] = sorted(pair)
        scheduled = columns.get("scheduled", [])
        if scheduled and scheduled[row] is not None:
            scheduled[row] = max(scheduled[row], *pair)
