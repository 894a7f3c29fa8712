"""An engine's own way of counting, turned into ours before rows are validated.

Ours: the anchor is never a position, neither anchor nor bonus token is counted, padding is no
draft, and nothing after the first drafted stop token was a real chance to be accepted.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib.errors import RecordError
from calib.record_schema import COLUMNS, UNKNOWN_LENGTH, Flag, check_gamma

PADDING_ID = -1
_LENGTH_COLUMNS = ("verified", "accepted", "scheduled")


def drop_anchor_slot(gamma: int, columns: Mapping[str, object]) -> dict[str, object]:
    """A batch whose slot 0 is the anchor, with that slot dropped.

    Some engines send γ + 1 slots and call this ``anchor_included``: slot 0 is the anchor, which
    is always accepted, and ``verified``, ``accepted`` and ``scheduled`` count it. Per-position
    columns lose their first slot and lengths become one less; a length of 0 becomes −1, which
    validation then refuses, because the anchor cannot be missing. Nothing else is checked here.

    Args:
        gamma: the drafter's block size, without the anchor.
        columns: array-likes by column name, per-position ones with γ + 1 slots.

    Raises:
        RecordError: an array without exactly γ + 1 slots.
    """
    gamma = check_gamma(gamma)
    per_position = {column.name for column in COLUMNS if column.per_position}
    converted = dict(columns)
    for name, sent in columns.items():
        if sent is None:
            continue
        if name in per_position:
            converted[name] = _without_first_slot(name, sent, gamma)
        elif name in _LENGTH_COLUMNS:
            converted[name] = _one_less(sent)
    return converted


def _without_first_slot(name: str, sent: object, gamma: int) -> object:
    if isinstance(sent, list | tuple):
        # A row of another length stays of another length, and validation names it.
        return [row[1:] if isinstance(row, list | tuple | np.ndarray) else row for row in sent]
    array = np.asarray(sent)
    if array.ndim != 2 or array.shape[1] != gamma + 1:
        remedy = f"give shape (rows, {gamma + 1}): the anchor and gamma {gamma} positions"
        raise RecordError(name, array.shape, remedy)
    return array[:, 1:]


def _one_less(sent: object) -> object:
    if isinstance(sent, list | tuple):
        return [_cell_less_one(cell) for cell in sent]
    array = np.asarray(sent)
    if array.dtype.kind not in "iu":
        return array
    wide = array.astype(np.int64)  # 0 becomes -1, not 255
    return np.where(wide == UNKNOWN_LENGTH, UNKNOWN_LENGTH, wide - 1)


def _cell_less_one(cell: Any) -> Any:
    countable = isinstance(cell, int | np.integer) and not isinstance(cell, bool)
    return int(cell) - 1 if countable and cell != UNKNOWN_LENGTH else cell


def draft_lengths(
    draft_tokens: ArrayLike,  # [N, gamma] token ids, -1 where nothing was drafted
) -> NDArray[np.int64]:
    """Drafted positions of each row [N]; 0 means no draft round took place.

    A row of length 0 is no block and must not be sent; elsewhere ``verified`` is at most this.

    Raises:
        RecordError: no whole numbers, an id below −1, or a draft after padding.
    """
    tokens = _token_ids(draft_tokens)
    drafted = tokens != PADDING_ID
    lengths: NDArray[np.int64] = drafted.sum(axis=1, dtype=np.int64)
    gapped = drafted[:, 1:] & ~drafted[:, :-1]
    if gapped.any():
        row = int(np.argmax(gapped.any(axis=1)))
        remedy = f"row {row}: give all drafts first, then {PADDING_ID} as padding"
        raise RecordError("draft_tokens", tokens[row].tolist(), remedy)
    return lengths


@dataclass(frozen=True, slots=True)
class StopCut:
    """Lengths after the cut at the first drafted stop token.

    Attributes:
        verified: ℓ [N], at most the position of the first drafted stop token.
        accepted: n [N], at most ``verified``.
        scheduled: the policy's ℓ [N], untouched by the cut.
        stop_truncated: rows [N] with a stop token among their verified positions, whether or not
            ℓ became shorter: these rows emit no bonus token when the stop token is accepted.
        flags: the ``flags`` column [N], ``STOP_TRUNCATED`` on those rows and nothing else.
    """

    verified: NDArray[np.int64]
    accepted: NDArray[np.int64]
    scheduled: NDArray[np.int64]
    stop_truncated: NDArray[np.bool_]
    flags: NDArray[np.uint8]


def cut_at_stop_token(
    draft_tokens: ArrayLike,  # [N, gamma] token ids, -1 where nothing was drafted
    verified: ArrayLike,  # [N] as scheduled, before any cut
    accepted: ArrayLike,  # [N]
    stop_ids: Collection[int],
) -> StopCut:
    """Cut every row at its first drafted stop token, accepted or not.

    Generation ends at an accepted stop token, so what the drafter proposed after it was never a
    chance to be accepted. The cut depends on the draft alone: cutting only where the stop token
    was accepted would make ℓ depend on the outcome and bias every label near the end of a text.

    Raises:
        RecordError: ids or lengths that are no whole numbers, or that do not fit together.
    """
    tokens = _token_ids(draft_tokens)
    rows, gamma = tokens.shape
    scheduled = _whole_lengths("verified", verified, rows, np.full(rows, gamma))
    accepted_before = _whole_lengths("accepted", accepted, rows, scheduled)
    stops = sorted(stop_ids)
    if any(isinstance(stop, bool) or stop < 0 for stop in stops):
        raise RecordError("stop_ids", stops, "give token ids of at least 0")
    is_stop = np.isin(tokens, np.array(stops, dtype=np.int64))
    first_stop = np.where(is_stop.any(axis=1), is_stop.argmax(axis=1) + 1, gamma + 1)
    cut = np.minimum(scheduled, first_stop)
    stopped = first_stop <= scheduled
    return StopCut(
        verified=cut,
        accepted=np.minimum(accepted_before, cut),
        scheduled=scheduled,
        stop_truncated=stopped,
        flags=np.where(stopped, np.uint8(Flag.STOP_TRUNCATED), np.uint8(0)),
    )


def _token_ids(draft_tokens: ArrayLike) -> NDArray[np.int64]:
    tokens = np.asarray(draft_tokens)
    if tokens.ndim != 2 or tokens.dtype.kind not in "iu":
        shown = (tokens.dtype.name, tokens.shape)
        raise RecordError("draft_tokens", shown, "give whole numbers of shape (rows, gamma)")
    if tokens.size and int(tokens.min()) < PADDING_ID:
        raise RecordError("draft_tokens", int(tokens.min()), "give token ids, or -1 as padding")
    return tokens.astype(np.int64)


def _whole_lengths(name: str, sent: ArrayLike, rows: int, limit: NDArray[Any]) -> NDArray[np.int64]:
    lengths = np.asarray(sent)
    if lengths.shape != (rows,) or lengths.dtype.kind not in "iu":
        shown = (lengths.dtype.name, lengths.shape)
        raise RecordError(name, shown, f"give whole numbers of shape ({rows},)")
    wrong = (lengths < 0) | (lengths > limit)
    if wrong.any():
        row = int(np.argmax(wrong))
        remedy = f"row {row}: give a whole number from 0 to {int(limit[row])}"
        raise RecordError(name, int(lengths[row]), remedy)
    return lengths.astype(np.int64)
