"""Telemetry in memory: what engines observed, one row per draft block, as columns.

What a row teaches (it is right-censored survival data): with verified length ℓ and accepted
length n ≤ ℓ ≤ γ, the conditional label of position k is observed for k ≤ min(n + 1, ℓ) only.
Unobserved is never zero; :mod:`calib.labels` derives the labels and their masks.

Letters: N rows, γ (gamma) draft positions; arrays use index 0 for position 1.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib.cell_parsing import CellFault
from calib.coded_texts import CodedTexts
from calib.errors import RecordError
from calib.record_schema import (
    COLUMN_BY_NAME,
    COLUMNS,
    EXCLUDING_FLAGS,
    ColumnKind,
    Flag,
    Presence,
    check_gamma,
)
from calib.row_validation import Arrays, Cells, RejectedRow, check_columns

__all__ = ["AcceptanceRecords", "Flag", "RejectedRow", "validate_rows"]


@dataclass(frozen=True, eq=False)
class AcceptanceRecords:
    """Validated rows of one drafter; immutable, and so are its arrays.

    Build it with :meth:`from_columns`. The constructor takes the fields below and checks them in
    the same way. :data:`calib.record_schema.COLUMNS` gives range and meaning of every column; a
    column of None was not sent.

    Raises:
        RecordError: naming column, value, row and remedy.
    """

    gamma: int
    confidence_logits: NDArray[np.float32]  # [N, gamma] raw, finite
    verified: NDArray[np.uint8]  # [N] 0..gamma
    accepted: NDArray[np.uint8]  # [N] 0..verified
    revision: NDArray[np.int32]  # [N] 0 identity, -1 unknown
    explored: NDArray[np.bool_]  # [N]
    propensity: NDArray[np.float32]  # [N] 0..1, NaN unknown
    anticipating: NDArray[np.bool_]  # [N]
    flags: NDArray[np.uint8]  # [N] bit set of Flag
    soft_labels: NDArray[np.float32] | None = None  # [N, gamma] 0..1, NaN unknown
    token_acceptance: NDArray[np.float32] | None = None  # [N, gamma] 0..1, NaN unknown
    sampling_temperature: NDArray[np.float32] | None = None  # [N] >= 0, NaN unknown
    context_length: NDArray[np.int32] | None = None  # [N] -1 unknown
    domain: NDArray[np.object_] | None = None  # [N] text or None, as all below of this dtype
    adapter: NDArray[np.object_] | None = None
    acceptance_rule: NDArray[np.object_] | None = None
    draft_mode: NDArray[np.object_] | None = None
    scheduled: NDArray[np.uint8] | None = None  # [N] verified..gamma, 255 unknown
    engine: NDArray[np.object_] | None = None
    rank: NDArray[np.int32] | None = None  # [N] -1 unknown
    step: NDArray[np.int64] | None = None  # [N] -1 unknown
    request: NDArray[np.object_] | None = None
    step_requests: NDArray[np.int64] | None = None  # [N] -1 unknown
    timestamp: NDArray[np.float64] | None = None  # [N] seconds since 1970 UTC, NaN unknown
    tenant: NDArray[np.object_] | None = None
    prompt: NDArray[np.object_] | None = None
    applied_form: NDArray[np.object_] | None = None

    def __post_init__(self) -> None:
        gamma = check_gamma(self.gamma)
        sent = {column.name: getattr(self, column.name) for column in COLUMNS}
        checked = check_columns(gamma, sent)
        _raise_first(checked.faults, checked.rows)
        _fill(self, gamma, checked.cells)

    def __getstate__(self) -> dict[str, Any]:
        absent = dict.fromkeys(column.name for column in COLUMNS)
        return {"gamma": self.gamma, **absent, **self.cells()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Unpickled arrays are writeable; a worker process must not get mutable records.
        _fill(self, state["gamma"], {c.name: state[c.name] for c in COLUMNS})

    @classmethod
    def from_columns(cls, gamma: int, columns: Mapping[str, object]) -> Self:
        """Records from array-likes by column name; None stands for an absent column.

        Lists may hold None for unknown cells, as JSON does. Whole numbers may stand for floats;
        nothing else is converted: no booleans for numbers, no text for numbers, no floats for
        counts. Values that look like probabilities are kept (see
        :func:`calib.data_quality.looks_like_probabilities`).

        Raises:
            RecordError: the first fault, naming column, value, row and remedy: a missing, unknown
                or uneven column, a wrong dtype or width, a value out of range, no rows at all.
        """
        gamma = check_gamma(gamma)
        checked = check_columns(gamma, columns)
        _raise_first(checked.faults, checked.rows)
        if checked.rows == 0:
            raise RecordError("columns", "0 rows", "send at least one row")
        return cls._trusted(gamma, checked.cells)

    @classmethod
    def empty(cls, gamma: int) -> Self:
        """Records without rows."""
        checked = check_columns(
            check_gamma(gamma),
            {"confidence_logits": np.zeros((0, gamma)), "verified": [], "accepted": []},
        )
        return cls._trusted(int(gamma), checked.cells)

    @classmethod
    def _trusted(cls, gamma: int, cells: Mapping[str, NDArray[Any] | CodedTexts | None]) -> Self:
        """Records from columns that are known to keep the contract and to have no other owner."""
        records = object.__new__(cls)
        _fill(records, gamma, cells)
        return records

    def __len__(self) -> int:
        return len(self.verified)

    def __repr__(self) -> str:
        optional = [c.name for c in COLUMNS if c.presence is Presence.OPTIONAL]
        present = ", ".join(name for name in optional if getattr(self, name) is not None)
        return f"AcceptanceRecords(gamma={self.gamma}, rows={len(self)}, with=[{present}])"

    def columns(self) -> Arrays:
        """Every column that is present, in schema order; the arrays are not copies."""
        named = {column.name: getattr(self, column.name) for column in COLUMNS}
        return {name: array for name, array in named.items() if array is not None}

    def cells(self) -> Cells:
        """As :meth:`columns`, but texts as codes where they are held so."""
        coded, held = _coded(self), vars(self)
        named = {column.name: coded.get(column.name, held.get(column.name)) for column in COLUMNS}
        return {name: cells for name, cells in named.items() if cells is not None}

    def coded(self, name: str) -> CodedTexts | None:
        """A text column as codes, made at the first call where they are not held; None: absent.

        Raises:
            RecordError: ``name`` is no text column.
        """
        column = COLUMN_BY_NAME.get(name)
        if column is None or column.kind is not ColumnKind.TEXT:
            raise RecordError("name", name, "give the name of a text column")
        coded = _coded(self)
        if name not in coded and getattr(self, name) is not None:
            coded[name] = CodedTexts.of(getattr(self, name).tolist())
        return coded.get(name)

    def equals(self, other: AcceptanceRecords) -> bool:
        """Whether both hold the same γ, columns and values; unknown equals unknown."""
        mine, theirs = self.columns(), other.columns()
        if self.gamma != other.gamma or mine.keys() != theirs.keys():
            return False
        return all(
            np.array_equal(array, theirs[name], equal_nan=array.dtype.kind == "f")
            for name, array in mine.items()
        )

    def select(self, rows: slice | ArrayLike) -> Self:
        """The given rows, in the given order, as new records (possibly none).

        Args:
            rows: a slice, a boolean mask [N], or row numbers.

        Raises:
            RecordError: a mask of another length, or a row number that does not exist.
        """
        index = rows if isinstance(rows, slice) else _row_index(rows, len(self))
        chosen = {name: cells[index] for name, cells in self.cells().items()}
        return self._trusted(self.gamma, chosen)

    def restricted_to(self, names: Collection[str]) -> Self:
        """The same rows with these optional columns at most; other columns at their defaults."""
        kept: dict[str, NDArray[Any] | CodedTexts | None] = {}
        cells = self.cells()
        for column in COLUMNS:
            if column.presence is Presence.REQUIRED or column.name in names:
                kept[column.name] = cells.get(column.name)
            elif column.presence is Presence.DEFAULTED:
                kept[column.name] = np.full(len(self), column.absent_value, dtype=column.dtype)
        return self._trusted(self.gamma, kept)

    def with_flag(self, flag: Flag, rows: ArrayLike) -> Self:
        """A copy in which ``flag`` is also set on the given rows (a mask [N] or row numbers)."""
        flags = self.flags.copy()
        flags[_row_index(rows, len(self))] |= np.uint8(flag)
        return self._trusted(self.gamma, {**self.cells(), "flags": flags})

    @staticmethod
    def concatenate(parts: Sequence[AcceptanceRecords]) -> AcceptanceRecords:
        """All rows of all parts, in order. A column that only some parts have is unknown elsewhere.

        Raises:
            RecordError: no parts, or parts of different γ.
        """
        gammas = sorted({part.gamma for part in parts})
        if len(gammas) != 1:
            raise RecordError("parts", gammas, "give one part or more, all of one gamma")
        joined: Cells = {}
        held = [part.cells() for part in parts]
        for column in COLUMNS:
            pieces = [cells.get(column.name) for cells in held]
            if all(piece is None for piece in pieces):
                continue
            for place, piece in enumerate(pieces):
                if piece is None:
                    width = (gammas[0],) if column.per_position else ()
                    shape = (len(parts[place]), *width)
                    pieces[place] = np.full(shape, column.null_value, dtype=column.dtype)
            joined[column.name] = _concatenated(pieces)
        return AcceptanceRecords._trusted(gammas[0], joined)

    def usable(self) -> NDArray[np.bool_]:
        """Mask [N] of the rows that may enter fits and monitors.

        Out are rows with any flag but ``STOP_TRUNCATED`` and anticipating rows, whose ℓ their own
        later logits decided. Rows with ℓ = 0 stay: they carry no label, but no fault either.
        """
        excluding = np.uint8(sum(EXCLUDING_FLAGS))
        usable: NDArray[np.bool_] = ((self.flags & excluding) == 0) & ~self.anticipating
        return usable

    def exclusion_counts(self) -> dict[str, int]:
        """Rows that :meth:`usable` leaves out, by reason.

        A row with several reasons counts under the first of them in the order of the keys, so the
        counts add up to the number of excluded rows. Every reason is present, if only with 0.
        """
        reasons = {
            str(flag.name).lower(): (self.flags & np.uint8(flag)) != 0 for flag in EXCLUDING_FLAGS
        }
        reasons["anticipating"] = self.anticipating
        open_rows = np.full(len(self), True)
        counts = {}
        for reason, mask in reasons.items():
            counts[reason] = int(np.count_nonzero(mask & open_rows))
            open_rows &= ~mask
        return counts

    def fitting_rows(self) -> Self:
        """The rows of :meth:`usable`."""
        return self.select(self.usable())


class _TextsOnDemand:
    """Stands where an instance has no texts of a column yet, because it holds them as codes.

    What stands in the instance goes before it: objects are made once, and only if somebody looks.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, records: AcceptanceRecords | None, owner: type) -> Any:
        if records is None:
            return None  # as the default that it takes the place of
        texts = _coded(records)[self._name].texts()
        texts.flags.writeable = False
        object.__setattr__(records, self._name, texts)
        return texts


for _column in COLUMNS:
    if _column.kind is ColumnKind.TEXT:
        setattr(AcceptanceRecords, _column.name, _TextsOnDemand(_column.name))


def validate_rows(
    gamma: int, columns: Mapping[str, object], *, most_named: int | None = None
) -> tuple[AcceptanceRecords, list[RejectedRow]]:
    """Keep the good rows of a batch and name the bad ones; bad rows never raise.

    Each bad row is named once, with its first fault in schema order, by ascending row. Where a
    column as a whole is wrong (unknown, missing, of another length, dtype or width) no row can be
    trusted: the records are empty and each such column is named with ``row=None``.

    Args:
        gamma: block size.
        columns: array-likes by column name; None stands for an absent column.
        most_named: how many bad rows to name at most; None names all. The others are left out of
            the records all the same.

    Raises:
        RecordError: ``gamma`` is no block size or ``columns`` no mapping.
    """
    gamma = check_gamma(gamma)
    checked = check_columns(gamma, columns)
    if checked.whole_batch:
        rejected = [_rejected(fault) for fault in checked.whole_batch]
        return AcceptanceRecords.empty(gamma), rejected
    bad = checked.first_by_row
    records = AcceptanceRecords._trusted(gamma, checked.cells)
    if bad:
        keep = np.full(checked.rows, True)
        keep[list(bad)] = False
        records = records.select(keep)
    return records, [_rejected(fault) for fault in islice(bad.values(), most_named)]


def _rejected(fault: CellFault) -> RejectedRow:
    reason = str(_as_error(fault)).removeprefix(f"{fault.field}: ")
    return RejectedRow(fault.row, fault.field, reason)


def _as_error(fault: CellFault, where: str = "") -> RecordError:
    return RecordError(fault.field, fault.value, where + fault.remedy)


def _raise_first(faults: Sequence[CellFault], rows: int) -> None:
    if not faults:
        return
    fault = faults[0]
    where = "" if fault.row is None else f"row {fault.row} of {rows}: "
    raise _as_error(fault, where)


def _fill(
    records: AcceptanceRecords, gamma: int, cells: Mapping[str, NDArray[Any] | CodedTexts | None]
) -> None:
    coded: dict[str, CodedTexts] = {}
    object.__setattr__(records, "gamma", gamma)
    object.__setattr__(records, "_coded", coded)
    for column in COLUMNS:
        values = cells.get(column.name)
        if isinstance(values, CodedTexts):
            coded[column.name] = values
            vars(records).pop(column.name, None)
            continue
        if values is not None:
            values.flags.writeable = False
        object.__setattr__(records, column.name, values)


def _coded(records: AcceptanceRecords) -> dict[str, CodedTexts]:
    """The text columns of records that are held as codes."""
    coded: dict[str, CodedTexts] = vars(records)["_coded"]
    return coded


def _concatenated(
    pieces: Sequence[NDArray[Any] | CodedTexts | None],  # None is none of them any longer
) -> NDArray[Any] | CodedTexts:
    coded = [piece for piece in pieces if isinstance(piece, CodedTexts)]
    together = CodedTexts.joined(coded) if len(coded) == len(pieces) else None
    if together is not None:
        return together
    return np.concatenate([np.asarray(piece) for piece in pieces])


def _row_index(rows: ArrayLike, length: int) -> NDArray[Any]:
    """A checked mask or row numbers, fit to index an array of ``length`` rows."""
    index = np.atleast_1d(np.asarray(rows))
    if index.dtype == np.bool_:
        if index.shape != (length,):
            raise RecordError("rows", index.shape, f"give a mask of shape ({length},)")
        return index
    if index.size == 0:
        return np.zeros(0, dtype=np.intp)
    if index.ndim != 1 or index.dtype.kind not in "iu":
        shown = (index.dtype.name, index.shape)
        raise RecordError("rows", shown, "give a slice, a boolean mask or a list of row numbers")
    outside = (index < -length) | (index >= length)
    if outside.any():
        value = int(index[np.argmax(outside)])
        raise RecordError("rows", value, f"there are {length} rows, numbered from 0")
    return index
