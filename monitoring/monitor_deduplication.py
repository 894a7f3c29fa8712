"""Rows that came before: a bounded memory of recent row keys, and high-water marks beyond it.

A row is known by (engine, request, step): every rank of an engine sees the same block, and replicas
run different requests. The newest keys are remembered exactly. Keys that fell out of memory leave
the largest step of their (engine, rank) behind; a row at or below that mark cannot be told from an
old one and is dropped as late. An engine that restarts counts its steps from the start again: after
:data:`RESTART_ROWS` late rows without a fresh one its mark is lifted.

Rows of an unknown engine, request or step are never duplicates. Letters: N rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from calib.record_schema import UNKNOWN_INTEGER, Flag
from calib.records import AcceptanceRecords

__all__ = ["MAXIMUM_SENDERS", "RESTART_ROWS", "Freshness", "RecentRows", "request_keys"]

RESTART_ROWS: Final = 512
MAXIMUM_SENDERS: Final = 4096  # beyond it the oldest marks go: their late rows would count again

_MIX: Final = np.uint64(0x9E3779B97F4A7C15)

Keys = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Mark:
    """What is known of one (engine, rank) beyond the remembered keys.

    Attributes:
        step: largest step among forgotten keys; -1 for none.
        late: rows at or below it since the last fresh row.
    """

    step: int = -1
    late: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """Keys of one fold, and how far each sender had come in it.

    Attributes:
        keys: [n] 64-bit row keys, ascending.
        steps: largest step by sender.
    """

    keys: Keys
    steps: Mapping[str, int]

    def without(self, senders: Set[str]) -> Chunk:
        """The same keys, without how far these senders had come."""
        if not senders & self.steps.keys():
            return self
        return Chunk(
            self.keys, {name: at for name, at in self.steps.items() if name not in senders}
        )


@dataclass(frozen=True, slots=True, eq=False)
class Freshness:
    """Which rows of a batch count.

    Attributes:
        fresh: [N] rows that are new.
        duplicates: rows whose key is known, in the batch or before it.
        late: rows too old to be told from known ones.
    """

    fresh: NDArray[np.bool_]
    duplicates: int
    late: int


@dataclass(frozen=True, slots=True, eq=False)
class RecentRows:
    """Memory of one drafter; immutable.

    Attributes:
        limit: keys remembered.
        chunks: remembered keys, oldest first.
        marks: by sender, ``engine/rank``.
    """

    limit: int
    chunks: tuple[Chunk, ...] = ()
    marks: Mapping[str, Mark] = field(default_factory=dict)

    def admit(self, records: AcceptanceRecords) -> tuple[RecentRows, Freshness]:
        """The memory with the batch in it, and which of its rows are new.

        Among equal keys of one batch the first stays, and a row that is no replay before one that
        is: a replay that overtook its original must not displace it.
        """
        rows = len(records)
        keys, known, senders = _row_keys(records)
        if not known.any():
            return self, Freshness(np.ones(rows, dtype=np.bool_), 0, 0)
        order = np.argsort(keys)
        ascending = keys[order]  # neighbours fall into neighbouring places of a chunk
        found = np.zeros(rows, dtype=np.bool_)
        for chunk in self.chunks:
            place = np.minimum(np.searchsorted(chunk.keys, ascending), len(chunk.keys) - 1)
            found |= chunk.keys[place] == ascending
        seen = np.empty(rows, dtype=np.bool_)
        seen[order] = found
        seen &= known
        if (ascending[1:] == ascending[:-1]).any():
            seen |= _repeated(keys, known & ~seen, records)
        late, marks = self._late(records, senders, known & ~seen)
        # Steps from before a restart must not come back as a mark when their keys are forgotten.
        restarted = self.marks.keys() - marks.keys()
        chunks = tuple(chunk.without(restarted) for chunk in self.chunks)
        fresh = ~seen & ~late
        entered = fresh & known
        memory = RecentRows(self.limit, chunks, marks)._with(
            ascending[entered[order]], _largest_steps(records, senders, entered)
        )
        counts = (int(np.count_nonzero(seen)), int(np.count_nonzero(late)))
        return memory, Freshness(fresh, *counts)

    def _late(
        self, records: AcceptanceRecords, senders: _Senders, open_rows: NDArray[np.bool_]
    ) -> tuple[NDArray[np.bool_], dict[str, Mark]]:
        late = np.zeros(len(records), dtype=np.bool_)
        marks = dict(self.marks)
        if not marks or records.step is None:
            return late, marks
        steps = np.array([marks[name].step if name in marks else -1 for name in senders.names])
        late = open_rows & (records.step <= steps[senders.codes])
        behind = np.bincount(senders.codes[late], minlength=len(steps)).tolist()
        own = np.bincount(senders.codes[open_rows], minlength=len(steps)).tolist()
        for code, name in enumerate(senders.names):
            if name not in marks or not own[code]:
                continue
            mark, count = marks[name], behind[code]
            if count < own[code]:
                marks[name] = Mark(mark.step, 0)
            elif mark.late + count >= RESTART_ROWS:
                del marks[name]  # it counts from the start again
                late &= senders.codes != code
            else:
                marks[name] = Mark(mark.step, mark.late + count)
        return late, marks

    def _with(self, keys: Keys, steps: Mapping[str, int]) -> RecentRows:
        """With these keys, which ascend."""
        if not len(keys):
            return self
        chunks = [*self.chunks, Chunk(keys, steps)]
        marks = dict(self.marks)
        held = sum(len(chunk.keys) for chunk in chunks)
        while held > self.limit and len(chunks) > 1:
            oldest = chunks.pop(0)
            held -= len(oldest.keys)
            for sender, step in oldest.steps.items():
                before = marks.pop(sender, Mark())
                marks[sender] = Mark(max(before.step, step), before.late)
        # Small folds leave few, larger pieces: they are searched faster.
        while len(chunks) > 1 and _mergeable(chunks[-2], chunks[-1], self.limit):
            chunks[-2:] = [_joined(chunks[-2:])]
        kept = list(marks.items())[-MAXIMUM_SENDERS:]
        return RecentRows(self.limit, tuple(chunks), dict(kept))


def _mergeable(older: Chunk, newer: Chunk, limit: int) -> bool:
    together = len(older.keys) + len(newer.keys)
    return len(older.keys) <= 2 * len(newer.keys) and together <= max(limit // 8, 1)


def _joined(chunks: list[Chunk]) -> Chunk:
    steps: dict[str, int] = {}
    for chunk in chunks:
        for sender, step in chunk.steps.items():
            steps[sender] = max(step, steps.get(sender, -1))
    keys = np.concatenate([chunk.keys for chunk in chunks])
    keys.sort(kind="stable")  # merges runs that are sorted already
    return Chunk(keys, steps)


def request_keys(records: AcceptanceRecords) -> tuple[NDArray[np.intp], Keys] | None:
    """Request of every row [N], -1 where unknown, into 64-bit keys; None where nobody names any.

    Engines may name requests alike, so a key stands for a request of an engine.
    """
    if records.request is None:
        return None
    codes, names = _codes(records.request)
    keys = _hashes(names)
    if records.engine is not None:
        engines, engine_names = _codes(records.engine)
        engine_keys = _hashes(engine_names)
        engine_keys = np.where(engine_keys != 0, _mixed(engine_keys + _MIX), 0)  # nobody's: as is
        engine, request = np.zeros(len(names), dtype=np.intp), np.arange(len(names))
        if len(engine_names) > 1:
            used, codes = np.unique(engines * len(names) + codes, return_inverse=True)
            engine, request = np.divmod(used, len(names))
        keys = np.where(keys[request] != 0, engine_keys[engine] ^ keys[request], 0)
    return _without_unknown(codes.astype(np.intp), keys)


def _without_unknown(codes: NDArray[np.intp], keys: Keys) -> tuple[NDArray[np.intp], Keys]:
    known = keys != 0
    if known.all():
        return codes, keys
    numbers = np.where(known, np.cumsum(known) - 1, -1)
    return numbers[codes], keys[known]


@dataclass(frozen=True, slots=True, eq=False)
class _Senders:
    """Sender of every row.

    Attributes:
        codes: [N] into ``names``.
        names: ``engine/rank``, or the engine where no rank is known.
    """

    codes: NDArray[np.intp]
    names: list[str]


def _row_keys(records: AcceptanceRecords) -> tuple[Keys, NDArray[np.bool_], _Senders]:
    """Keys [N], where a row has one [N], and its sender."""
    rows = len(records)
    if records.engine is None or records.request is None or records.step is None:
        nobody = _Senders(np.zeros(rows, dtype=np.intp), [])
        return np.zeros(rows, dtype=np.uint64), np.zeros(rows, dtype=np.bool_), nobody
    engines, engine_names = _codes(records.engine)
    requests, request_names = _codes(records.request)
    first, second = _hashes(engine_names)[engines], _hashes(request_names)[requests]
    known = (first != 0) & (second != 0) & (records.step != UNKNOWN_INTEGER)
    keys = _mixed(_mixed(first + _MIX) ^ second)
    keys = _mixed(keys ^ records.step.astype(np.uint64))
    if records.rank is None:
        return keys, known, _Senders(engines, [str(name) for name in engine_names])
    ranks, rank_codes = np.unique(records.rank, return_inverse=True)
    present, codes = np.unique(engines * len(ranks) + rank_codes, return_inverse=True)
    pairs = [divmod(pair, len(ranks)) for pair in present.tolist()]
    names = [f"{engine_names[engine]}/{ranks[rank]}" for engine, rank in pairs]
    return keys, known, _Senders(codes.astype(np.intp), names)


def _codes(values: NDArray[np.object_]) -> tuple[NDArray[np.intp], list[str | None]]:
    """Number of each value, and the values."""
    listed = values.tolist()
    numbers = {name: code for code, name in enumerate(dict.fromkeys(listed))}
    return np.fromiter(map(numbers.__getitem__, listed), np.intp, len(listed)), list(numbers)


def _hashes(names: list[str | None]) -> Keys:
    return np.array([0 if name is None else _hash(name) for name in names], dtype=np.uint64)


def _repeated(
    keys: Keys, candidates: NDArray[np.bool_], records: AcceptanceRecords
) -> NDArray[np.bool_]:
    """Rows that repeat another candidate of the batch."""
    replay = (records.flags & np.uint8(Flag.REPLAY)) != 0
    order = np.concatenate(
        [np.flatnonzero(candidates & ~replay), np.flatnonzero(candidates & replay)]
    )
    _, first = np.unique(keys[order], return_index=True)
    repeated = candidates.copy()
    repeated[order[first]] = False
    return repeated


def _largest_steps(
    records: AcceptanceRecords, senders: _Senders, rows: NDArray[np.bool_]
) -> dict[str, int]:
    if records.step is None or not rows.any():
        return {}
    largest = np.full(len(senders.names), -1, dtype=np.int64)
    np.maximum.at(largest, senders.codes[rows], records.step[rows])
    pairs = zip(senders.names, largest.tolist(), strict=True)
    return dict(sorted((name, step) for name, step in pairs if step >= 0))


@lru_cache(maxsize=16_384)  # the same names come fold after fold
def _hash(name: str) -> int:
    digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") | 1  # never 0, which stands for unknown


def _mixed(value: Keys) -> Keys:
    """Finaliser of SplitMix: every bit of the key depends on every bit of the value."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))
