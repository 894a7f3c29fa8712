"""Split telemetry into a fit part and an evaluation part by prompt.

Blocks of one prompt share their luck: the same text, the same difficulty, often the same tokens.
Split by row, most prompts would lie on both sides, and an evaluation would partly repeat the fit.
Here a prompt's hash alone decides, so every block of a prompt falls on one side, in every file, on
every machine, and whatever else was recorded.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from calib.errors import ConfigurationError, FitRefusedError, RecordError
from calib.records import AcceptanceRecords
from calib.statuses import Refusal

__all__ = ["DEFAULT_SALT", "PromptSplit", "SplitColumn", "evaluation_keys", "split_by_prompt"]

SplitColumn = Literal["prompt", "request"]

# Part of every published split; another salt is another split of the same prompts.
DEFAULT_SALT = "dspark-calib/split/1"

_HASH_BYTES = 8
_NO_COLUMN = {
    "prompt": "send a hash of the prompt with every row, or split by column='request', which "
    "lets requests that share a prompt fall on both sides",
    "request": "send a request id with every row, or evaluate on telemetry recorded apart",
}


@dataclass(frozen=True, slots=True)
class PromptSplit:
    """Two parts of one telemetry set that share no key.

    Attributes:
        fit: rows to fit on, in their order.
        evaluation: rows to judge the fit on, in their order.
        column: column whose values were hashed.
        salt: text hashed before each value.
        evaluation_share: share of keys asked for; the share of rows only comes near it.
        fit_keys: distinct keys in ``fit``.
        evaluation_keys: distinct keys in ``evaluation``.
    """

    fit: AcceptanceRecords
    evaluation: AcceptanceRecords
    column: str
    salt: str
    evaluation_share: float
    fit_keys: int
    evaluation_keys: int


def split_by_prompt(
    records: AcceptanceRecords,
    *,
    evaluation_share: float = 0.5,
    salt: str = DEFAULT_SALT,
    column: SplitColumn = "prompt",
) -> PromptSplit:
    """Split the rows so that no prompt lies on both sides.

    Args:
        records: telemetry with the column.
        evaluation_share: expected share of prompts that are kept for evaluation, in (0, 1).
        salt: another salt draws another split; the same salt always draws the same.
        column: ``"prompt"``, or ``"request"`` where prompts were not recorded and no two requests
            are known to share one.

    Raises:
        RecordError: the column is missing, or unknown in some row.
        FitRefusedError: one side got no rows (``no_rows``), as with a single prompt.
        ConfigurationError: a share outside (0, 1) or another column.
    """
    share = _checked_share(evaluation_share)
    keys = _keys(records, column)
    chosen = evaluation_keys(set(keys), share, salt)
    mask = np.array([key in chosen for key in keys], dtype=np.bool_)
    total = len(set(keys))
    if mask.all() or not mask.any():
        raise FitRefusedError(
            Refusal.NO_ROWS,
            f"{column}: {total} distinct value(s) in {len(records)} rows leave one part empty; "
            "record more prompts, or evaluate on telemetry of other prompts",
        )
    return PromptSplit(
        fit=records.select(~mask),
        evaluation=records.select(mask),
        column=column,
        salt=salt,
        evaluation_share=share,
        fit_keys=total - len(chosen),
        evaluation_keys=len(chosen),
    )


def evaluation_keys(keys: set[str], evaluation_share: float, salt: str) -> frozenset[str]:
    """The keys that belong to the evaluation part; each is decided by its own hash alone.

    Args:
        keys: values of the split column.
        evaluation_share: expected share of keys to choose, in (0, 1).
        salt: text hashed before each key.
    """
    limit = int(evaluation_share * 2 ** (8 * _HASH_BYTES))
    return frozenset(key for key in keys if _hash(key, salt) < limit)


def _hash(key: str, salt: str) -> int:
    # The zero byte keeps (salt "a", key "bc") and (salt "ab", key "c") apart.
    digest = hashlib.sha256(f"{salt}\0{key}".encode()).digest()
    return int.from_bytes(digest[:_HASH_BYTES], "big")


def _keys(records: AcceptanceRecords, column: str) -> list[str]:
    if column not in get_args(SplitColumn):
        raise ConfigurationError("column", column, "give 'prompt' or 'request'; never split by row")
    values: NDArray[np.object_] | None = getattr(records, column)
    if values is None:
        raise RecordError(column, None, _NO_COLUMN[column])
    unknown = np.array([value is None for value in values], dtype=np.bool_)
    if unknown.any():
        row, count = int(np.argmax(unknown)), int(unknown.sum())
        raise RecordError(
            column, None, f"row {row} ({count} such rows): send the value, or leave the rows out"
        )
    return [str(value) for value in values]


def _checked_share(share: Any) -> float:
    number = isinstance(share, float | np.floating)
    if not number or not 0.0 < share < 1.0:
        raise ConfigurationError("evaluation_share", share, "give a share between 0 and 1")
    return float(share)
