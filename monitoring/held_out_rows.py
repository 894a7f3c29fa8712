"""Which rows of a window a fit may see, and which it is judged on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from calib.errors import FitRefusedError
from calib.prompt_split import DEFAULT_SALT, SplitColumn, split_by_prompt
from calib.records import AcceptanceRecords
from calib.statuses import Refusal

__all__ = ["HeldOutRows", "SplitKind", "held_out_rows"]

SplitKind = Literal["prompt", "request", "later_rows"]

_NOTES: dict[SplitKind, str] = {
    "prompt": "judged on prompts that the fit did not see",
    "request": (
        "judged on requests that the fit did not see; not every row names its prompt, and two "
        "requests of one prompt may lie on both sides"
    ),
    "later_rows": (
        "judged on the later rows of the window: not every row names a prompt or a request, so "
        "one text may lie on both sides and the errors may look a little too small"
    ),
}


@dataclass(frozen=True, slots=True, eq=False)
class HeldOutRows:
    """Two parts of one window.

    Attributes:
        fit: rows to fit on.
        judged: rows to judge on.
        kind: what keeps them apart.
        share: share of prompts, requests or rows asked for on the judged side.
        salt: what drew the split; None where order did.
        fit_keys: prompts or requests fitted on; None where order split.
        judged_keys: prompts or requests judged on; None where order split.
    """

    fit: AcceptanceRecords
    judged: AcceptanceRecords
    kind: SplitKind
    share: float
    salt: str | None = None
    fit_keys: int | None = None
    judged_keys: int | None = None

    @property
    def note(self) -> str:
        """How the two were kept apart, in words."""
        return _NOTES[self.kind]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "kind": self.kind,
            "note": self.note,
            "share": self.share,
            "fit_rows": len(self.fit),
            "judged_rows": len(self.judged),
            "fit_keys": self.fit_keys,
            "judged_keys": self.judged_keys,
            "salt": self.salt,
        }


def held_out_rows(
    usable: AcceptanceRecords, *, share: float = 0.5, salt: str = DEFAULT_SALT
) -> HeldOutRows:
    """Split by prompt where every row names one, else by request, else the later rows.

    A single prompt cannot be split by prompt; then the next way is taken.

    Args:
        usable: rows that may enter a fit.
        share: expected share of rows to judge on, in (0, 1).
        salt: draws the split of prompts or requests.

    Raises:
        FitRefusedError: ``no_rows``: fewer than two rows.
    """
    columns: tuple[SplitColumn, ...] = ("prompt", "request")
    for column in columns:
        if not _known_everywhere(usable, column):
            continue
        try:
            parts = split_by_prompt(usable, evaluation_share=share, salt=salt, column=column)
        except FitRefusedError:
            continue  # one value alone
        # Requests may share a prompt: named on one side only, a report does not take it for a slip.
        fit = parts.fit if column == "prompt" else _without_prompts(parts.fit)
        keys = (parts.fit_keys, parts.evaluation_keys)
        return HeldOutRows(fit, parts.evaluation, column, share, salt, *keys)
    return _later_rows(usable, share)


def _known_everywhere(records: AcceptanceRecords, column: SplitColumn) -> bool:
    values = getattr(records, column)
    return values is not None and all(value is not None for value in values)


def _later_rows(usable: AcceptanceRecords, share: float) -> HeldOutRows:
    first = min(max(round(len(usable) * (1.0 - share)), 1), len(usable) - 1)
    if first < 1:
        raise FitRefusedError(
            Refusal.NO_ROWS, f"{len(usable)} usable rows cannot be fitted on and judged; send more"
        )
    fit = _without_prompts(usable.select(slice(0, first)))
    return HeldOutRows(fit, usable.select(slice(first, None)), "later_rows", share)


def _without_prompts(records: AcceptanceRecords) -> AcceptanceRecords:
    if records.prompt is None:
        return records
    columns = {name: array for name, array in records.columns().items() if name != "prompt"}
    return AcceptanceRecords.from_columns(records.gamma, columns)
