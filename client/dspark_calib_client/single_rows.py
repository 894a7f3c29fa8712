"""Rows that came one by one, kept as plain tuples until the uploader makes columns of them.

A tuple holds, in this order: logits, verified, accepted, request, step, the time the row came, what
the engine had applied then, and a mapping of all other cells. Making one costs the engine's step a
fraction of what a dictionary would.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dspark_calib_client.rows import Rows

__all__ = ["Applied", "grouped"]


@dataclass(frozen=True)
class Applied:
    """What the engine says it runs with.

    Attributes:
        publication: 0 where none or unknown.
        revision: 0 for identity, −1 where unknown.
        form: ``temperatures``, ``affine``, ``identity``; None where unknown.
    """

    publication: int = 0
    revision: int = -1
    form: str | None = None


def grouped(entries: Sequence[Any]) -> list[Rows]:
    """Entries of a queue as blocks; single rows that follow one another become one block.

    Args:
        entries: blocks and tuples, in the order they came.
    """
    blocks: list[Rows] = []
    singles: list[tuple[Any, ...]] = []
    for entry in entries:
        if isinstance(entry, Rows):
            if singles:
                blocks.append(_block(singles))
                singles = []
            blocks.append(entry)
        else:
            singles.append(entry)
    if singles:
        blocks.append(_block(singles))
    return blocks


def _block(singles: Sequence[tuple[Any, ...]]) -> Rows:
    logits, verified, accepted, requests, steps, times, applied, others = map(list, zip(*singles))
    columns: dict[str, list[Any]] = {
        "confidence_logits": logits,
        "verified": verified,
        "accepted": accepted,
        "request": requests,
        "step": steps,
        "timestamp": times,
        "revision": [now.revision for now in applied],
        "applied_form": [now.form for now in applied],
    }
    for name in {name for cells in others for name in cells}:
        if name in columns:  # a row may say it itself
            mine = columns[name]
            columns[name] = [cells.get(name, cell) for cells, cell in zip(others, mine)]
        else:
            columns[name] = [cells.get(name) for cells in others]
    return Rows(len(singles), columns, {})
