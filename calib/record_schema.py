"""The columns of a telemetry row, as one table.

One row is one block: γ draft positions proposed by the drafter and checked, as far as the
scheduler allowed, by the target. Validation, the Arrow schema and the documentation are all read
from :data:`COLUMNS`, so that a new column is one more entry here and one more field of
:class:`calib.records.AcceptanceRecords`.

Letters: N rows, γ (gamma) draft positions, ℓ verified length, n accepted length.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntFlag, StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calib.errors import RecordError

MAX_GAMMA = 254  # lengths are uint8 and 255 is taken for "unknown"
UNKNOWN_LENGTH = 255
UNKNOWN_INTEGER = -1
UNKNOWN_FLOAT = float("nan")
MAX_TEXT_LENGTH = 256  # a tag, a hash or a request id; anything longer is a payload
_LAST_SECOND = 253_402_300_799.0  # end of the year 9999: milliseconds since 1978 lie beyond it


class Flag(IntFlag):
    """What sets a row apart. All but ``STOP_TRUNCATED`` keep it out of fits and monitors."""

    WARMUP = 1  # made while the engine warmed up
    REPLAY = 2  # sent again after a retry or a restart
    FORCED_ACCEPTANCE = 4  # acceptance was simulated or forced
    TARGET_ONLY_TRANSFORM = 8  # allow-list, penalty or grammar that the draft did not see
    STOP_TRUNCATED = 16  # a drafted stop token lies among the verified positions


EXCLUDING_FLAGS = (
    Flag.WARMUP,
    Flag.REPLAY,
    Flag.FORCED_ACCEPTANCE,
    Flag.TARGET_ONLY_TRANSFORM,
)
ALL_FLAGS = int(sum(Flag))


def pack_flags(
    rows: int,
    *,
    warmup: NDArray[np.bool_] | None = None,  # [rows]
    replay: NDArray[np.bool_] | None = None,  # [rows]
    forced_acceptance: NDArray[np.bool_] | None = None,  # [rows]
    target_only_transform: NDArray[np.bool_] | None = None,  # [rows]
    stop_truncated: NDArray[np.bool_] | None = None,  # [rows]
) -> NDArray[np.uint8]:
    """The ``flags`` column [rows] from one boolean mask per flag; a missing mask is all false.

    Raises:
        RecordError: a mask is not boolean or has another length than ``rows``.
    """
    masks = {
        Flag.WARMUP: warmup,
        Flag.REPLAY: replay,
        Flag.FORCED_ACCEPTANCE: forced_acceptance,
        Flag.TARGET_ONLY_TRANSFORM: target_only_transform,
        Flag.STOP_TRUNCATED: stop_truncated,
    }
    flags = np.zeros(rows, dtype=np.uint8)
    for flag, mask in masks.items():
        if mask is None:
            continue
        marked = np.asarray(mask)
        if marked.dtype != np.bool_ or marked.shape != (rows,):
            shown = (marked.dtype.name, marked.shape)
            name = (flag.name or "").lower()
            raise RecordError(name, shown, f"give a boolean mask of shape ({rows},)")
        flags[marked] |= np.uint8(flag)
    return flags


class ColumnKind(Enum):
    """What one cell holds."""

    FLOAT = "a finite number"
    INTEGER = "a whole number"
    BOOLEAN = "true or false"
    TEXT = f"printable text of 1 to {MAX_TEXT_LENGTH} characters"


class Presence(StrEnum):
    """Whether a batch must carry the column."""

    REQUIRED = "required"
    DEFAULTED = "defaulted"  # absent: every row gets ``absent_value``
    OPTIONAL = "optional"  # absent: the records hold None


@dataclass(frozen=True, slots=True)
class Column:
    """One column of the row contract.

    Attributes:
        name: key in a batch and field of the records.
        kind: what a cell holds.
        dtype: NumPy dtype in memory.
        doc: meaning, in one sentence.
        presence: whether a batch must carry it.
        per_position: True for shape [N, γ], False for [N].
        nullable: True where a cell may be unknown.
        null_value: how an unknown cell looks in memory.
        absent_value: value of every row when a defaulted column is not sent.
        low: least value, inclusive; None for no bound.
        high: largest value, inclusive; None for no bound.
        bounded_by_gamma: True where ``high`` is γ.
        choices: the only texts allowed; empty for any text.
    """

    name: str
    kind: ColumnKind
    dtype: np.dtype[Any]
    doc: str
    presence: Presence = Presence.OPTIONAL
    per_position: bool = False
    nullable: bool = True
    null_value: float | int | bool | None = None
    absent_value: float | int | bool | None = None
    low: float | int | None = None
    high: float | int | None = None
    bounded_by_gamma: bool = False
    choices: tuple[str, ...] = ()

    def upper(self, gamma: int) -> float | int | None:
        """Largest value a cell may hold at this γ, dtype included; None for no bound."""
        if self.bounded_by_gamma:
            return gamma
        if self.high is None and self.kind is ColumnKind.INTEGER:
            return int(np.iinfo(self.dtype).max)
        return self.high

    def remedy(self, gamma: int) -> str:
        """What to send instead of a bad cell, for an error message."""
        if self.choices:
            expected = "one of " + ", ".join(self.choices)
        else:
            expected = self.kind.value + self._range_text(gamma)
        return f"give {expected}" + (" or null where unknown" if self.nullable else "")

    def _range_text(self, gamma: int) -> str:
        high = self.upper(gamma)
        if self.low is None:
            return ""
        return f" of at least {self.low}" if high is None else f" from {self.low} to {high}"


def _float(name: str, doc: str, **options: Any) -> Column:
    options = {"dtype": np.dtype(np.float32), "null_value": UNKNOWN_FLOAT, **options}
    return Column(name=name, kind=ColumnKind.FLOAT, doc=doc, **options)


def _integer(name: str, doc: str, dtype: type[np.integer[Any]], **options: Any) -> Column:
    options = {"low": 0, "null_value": UNKNOWN_INTEGER, **options}
    return Column(name=name, kind=ColumnKind.INTEGER, dtype=np.dtype(dtype), doc=doc, **options)


def _boolean(name: str, doc: str) -> Column:
    return Column(
        name=name,
        kind=ColumnKind.BOOLEAN,
        dtype=np.dtype(np.bool_),
        doc=doc,
        presence=Presence.DEFAULTED,
        null_value=False,
        absent_value=False,
    )


def _text(name: str, doc: str, *choices: str) -> Column:
    kind, dtype = ColumnKind.TEXT, np.dtype(np.object_)
    return Column(name=name, kind=kind, dtype=dtype, doc=doc, choices=choices)


COLUMNS: tuple[Column, ...] = (
    _float(
        "confidence_logits",
        "Raw output z of the confidence source at each position, before any temperature.",
        presence=Presence.REQUIRED,
        per_position=True,
        nullable=False,
    ),
    _integer(
        "verified",
        "ℓ: draft positions the target really checked; the anchor is never counted.",
        np.uint8,
        presence=Presence.REQUIRED,
        nullable=False,
        bounded_by_gamma=True,
    ),
    _integer(
        "accepted",
        "n: draft positions accepted, at most `verified`; neither bonus nor anchor is counted.",
        np.uint8,
        presence=Presence.REQUIRED,
        nullable=False,
        bounded_by_gamma=True,
    ),
    _integer(
        "revision",
        "Calibration that was applied when the row was made; 0 is identity, −1 unknown.",
        np.int32,
        presence=Presence.DEFAULTED,
        absent_value=0,
    ),
    _boolean(
        "explored",
        "Full verification of this row was chosen by a coin, whatever its confidence.",
    ),
    _float(
        "propensity",
        "P(ℓ = γ decided before the block was drafted): 1 when load alone decided, ε for a coin.",
        presence=Presence.DEFAULTED,
        absent_value=UNKNOWN_FLOAT,
        low=0,
        high=1,
    ),
    _boolean(
        "anticipating",
        "The step's own logits beyond k could decide whether k was verified.",
    ),
    _integer(
        "flags",
        "Bit set of `Flag`: warm-up 1, replay 2, forced acceptance 4, target-only 8, stop 16.",
        np.uint8,
        presence=Presence.DEFAULTED,
        null_value=0,
        absent_value=0,
        high=ALL_FLAGS,
    ),
    _float(
        "soft_labels",
        "c*: overlap of the processed draft and target distributions at each position.",
        per_position=True,
        low=0,
        high=1,
    ),
    _float(
        "token_acceptance",
        "α: min(1, p/q) of the token that was drafted at each position.",
        per_position=True,
        low=0,
        high=1,
    ),
    _float("sampling_temperature", "Temperature the request sampled with; 0 is greedy.", low=0),
    _integer("context_length", "Tokens before the block.", np.int32),
    _text("domain", "Kind of traffic, such as code or chat."),
    _text("adapter", "Adapter (LoRA) the request ran with."),
    _text(
        "acceptance_rule",
        "Rule that decided acceptance of this block.",
        "rejection",
        "greedy",
        "exact_match",
        "block",
    ),
    _text("draft_mode", "How draft tokens were chosen.", "sampled", "greedy"),
    _integer(
        "scheduled",
        "The policy's ℓ before any stop-token cut; at least `verified`.",
        np.uint8,
        null_value=UNKNOWN_LENGTH,
        bounded_by_gamma=True,
    ),
    _text("engine", "Name of the engine that made the row."),
    _integer("rank", "Rank within the engine.", np.int32),
    _integer("step", "Decode step of the engine.", np.int64),
    _text("request", "Request id, hashed where it names a person."),
    _integer("step_requests", "Requests in the step's batch.", np.int64),
    _float(
        "timestamp",
        "Seconds since 1970-01-01 UTC.",
        dtype=np.dtype(np.float64),
        low=0,
        high=_LAST_SECOND,
    ),
    _text("tenant", "Tenant the request belongs to, hashed."),
    _text("prompt", "Hash of the prompt: rows of one prompt stay on one side of a split."),
    _text(
        "applied_form",
        "Form in which the engine applied the revision.",
        "temperatures",
        "affine",
        "identity",
    ),
)

COLUMN_BY_NAME: dict[str, Column] = {column.name: column for column in COLUMNS}


def check_gamma(gamma: object) -> int:
    """γ as a plain integer.

    Raises:
        RecordError: not a whole number from 1 to 254. γ is never inferred and never defaulted.
    """
    if isinstance(gamma, int | np.integer) and not isinstance(gamma, bool):
        whole = int(gamma)
        if 1 <= whole <= MAX_GAMMA:
            return whole
    remedy = f"state the drafter's block size, a whole number from 1 to {MAX_GAMMA}"
    raise RecordError("gamma", gamma, remedy)
