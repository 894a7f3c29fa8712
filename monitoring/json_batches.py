"""Telemetry batches in JSON: an object a row, or a list a column.

::

    {"gamma": 7, "rows": [{"confidence_logits": [...], "verified": 5, "accepted": 3, ...}, ...]}
    {"gamma": 7, "columns": {"confidence_logits": [[...], ...], "verified": [5, ...], ...}}

The body is skimmed once for its structure, then decoded a thousand rows at a time: memory stays
near the size of the body, and other threads get their turn between chunks. Chunks that the fast
decoder cannot vouch for are read again by :mod:`monitoring.strict_json`, row by row.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from operator import itemgetter
from typing import Any, Final

import msgspec

from calib.record_schema import COLUMN_BY_NAME, COLUMNS, Column, ColumnKind, Presence
from calib.records import RejectedRow
from monitoring.parsed_batch import (
    MAX_BATCH_ROWS,
    BatchBuilder,
    BatchRules,
    BatchTooLargeError,
    InvalidBatchError,
    ParsedBatch,
    UnreadableBatchError,
    WholeColumnsError,
)
from monitoring.strict_json import FaultyJsonError, Word, mark_foreign_words, strict_value

__all__ = ["parse_json_batch"]

CHUNK_ROWS: Final = 1024  # about five milliseconds of one core
_COUNT_BYTES: Final = 2**20
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_FORM: Final = 'send {"gamma": …, "rows": [{…}, …]} or {"gamma": …, "columns": {…}}'
_NAMES: Final = frozenset(COLUMN_BY_NAME)
_TEXTS: Final = frozenset(c.name for c in COLUMNS if c.kind is ColumnKind.TEXT)
_LONGEST_NAME: Final = 64
_UNKNOWN: Final = "there is no such column; leave it out"
_NOTHING: Final = Word("nothing")

Raws = list[msgspec.Raw]


class _Envelope(msgspec.Struct, forbid_unknown_fields=True):
    gamma: msgspec.Raw = msgspec.Raw()
    rows: Raws | None = None
    columns: dict[str, msgspec.Raw] | None = None


_SKIM: Final = msgspec.json.Decoder(_Envelope)
_SKIM_LIST: Final = msgspec.json.Decoder(Raws)
_DECODE: Final = msgspec.json.Decoder()


def parse_json_batch(
    body: bytes,
    gamma: int,
    *,
    anchor_included: bool = False,
    engine: str | None = None,
    max_rows: int = MAX_BATCH_ROWS,
) -> ParsedBatch:
    """The rows of a JSON body, good and bad.

    Args:
        body: UTF-8 without a byte-order mark.
        gamma: the drafter's block size; the body must state the same.
        anchor_included: rows have γ + 1 slots, of which slot 0 is the anchor.
        engine: name for rows that name no engine.
        max_rows: most rows there may be.

    Raises:
        UnreadableBatchError: no JSON.
        BatchTooLargeError: more rows than ``max_rows``.
        InvalidBatchError: JSON of another form, another γ, no rows.
        RecordError: ``gamma`` is no block size, or ``engine`` a name that no row could have.
    """
    rules = BatchRules(gamma, anchor_included=anchor_included, engine=engine)
    body, envelope = _skimmed(body)
    try:
        if envelope.rows is not None:
            return _from_rows(body, envelope, rules, max_rows)
        return _from_columns(body, envelope, rules, max_rows)
    except RecursionError:
        raise UnreadableBatchError("body", "is nested too deeply", _FORM) from None


def _skimmed(body: bytes) -> tuple[bytes, _Envelope]:
    """The structure of the body, its rows and columns still undecoded."""
    if not body.strip():
        raise UnreadableBatchError("body", "is empty", _FORM)
    if body.startswith(_BYTE_ORDER_MARK):
        raise UnreadableBatchError("body", "begins with a byte-order mark", "send UTF-8 without")
    try:
        return body, _checked_form(_SKIM.decode(body))
    except msgspec.ValidationError as error:
        raise InvalidBatchError("body", f"has another form: {error}", _FORM) from None
    except (msgspec.DecodeError, RecursionError) as error:
        marked = mark_foreign_words(body)
        if marked is not None:
            # A second pass finds nothing left to mark, so this ends.
            return _skimmed(marked)
        reason = "nested too deeply" if isinstance(error, RecursionError) else error
        raise UnreadableBatchError("body", f"cannot be read: {reason}", _FORM) from None


def _checked_form(envelope: _Envelope) -> _Envelope:
    if (envelope.rows is None) == (envelope.columns is None):
        raise InvalidBatchError("body", "has not exactly one of rows and columns", _FORM)
    return envelope


def _check_gamma(envelope: _Envelope, rules: BatchRules, rows: int) -> None:
    raw = bytes(envelope.gamma)
    try:
        stated = strict_value(raw) if raw else None
    except FaultyJsonError as error:
        stated = Word(str(error))
    if type(stated) is not int or stated != rules.gamma:
        shown = "is not stated" if stated is None else f"is {stated!r:.40}, not {rules.gamma}"
        raise InvalidBatchError("gamma", shown, "state the drafter's block size", rows=rows)


def _check_rows(rows: int, max_rows: int) -> None:
    if rows == 0:
        raise InvalidBatchError("rows", "are none", "send at least one row")
    if rows > max_rows:
        raise BatchTooLargeError("rows", max_rows, found=rows)


def _check_single_keys(body: bytes, inside: int, keys: int, rows: int) -> None:
    """Refuse a key that comes twice above the rows: the decoder would keep the last silently.

    Every key above the rows has one colon, and no such key contains one; so the colons outside
    rows and columns are as many as the keys that were read, or a key was read over.
    """
    if _colons(body) - inside != keys:
        raise InvalidBatchError("body", "has a key twice", "send each key once", rows=rows)


def _colons(data: bytes | memoryview) -> int:
    """Colons of the data, counted a piece at a time so that other threads get their turn."""
    if len(data) <= _COUNT_BYTES:
        return bytes(data).count(b":")
    starts = range(0, len(data), _COUNT_BYTES)
    return sum(bytes(data[start : start + _COUNT_BYTES]).count(b":") for start in starts)


# Rows ----------------------------------------------------------------------------------------


def _from_rows(body: bytes, envelope: _Envelope, rules: BatchRules, max_rows: int) -> ParsedBatch:
    raws = envelope.rows or []
    _check_rows(len(raws), max_rows)
    _check_gamma(envelope, rules, len(raws))
    builder = BatchBuilder(rules)
    colons = 0
    for start in range(0, len(raws), CHUNK_ROWS):
        chunk = raws[start : start + CHUNK_ROWS]
        joined = b"".join((b"[", b",".join(chunk), b"]"))
        colons += joined.count(b":")
        rows = _fast_rows(joined)
        if rows is not None:
            builder.add(_columns_of(rows), range(start, start + len(rows)))
            continue
        numbers: list[int] = []
        faults: list[RejectedRow] = []
        rows = []
        for number, raw in enumerate(chunk, start):
            row = _strict_row(raw, number)
            if isinstance(row, RejectedRow):
                faults.append(row)
            else:
                rows.append(row)
                numbers.append(number)
        builder.add(_columns_of(rows), numbers, faults)
    _check_single_keys(body, colons, keys=2, rows=len(raws))
    return builder.finish()


def _fast_rows(joined: bytes) -> list[dict[str, Any]] | None:
    """The decoded rows of a chunk; None where one of them may not be what it seems."""
    try:
        rows: list[dict[str, Any]] = _DECODE.decode(joined)
    except (msgspec.DecodeError, RecursionError):
        return None
    if set(map(type, rows)) != {dict} or not set(chain.from_iterable(rows)) <= _NAMES:
        return None
    # A key that comes twice leaves one entry and two colons. Colons inside texts are counted too,
    # and an escaped one would hide the difference.
    colons = joined.count(b":") - sum(map(len, rows))
    if colons and (b"\\u003" in joined or colons != _colons_in_texts(rows)):
        return None
    return rows


def _colons_in_texts(rows: list[dict[str, Any]]) -> int:
    cells = (row[name] for row in rows for name in _TEXTS.intersection(row))
    return sum(cell.count(":") for cell in cells if type(cell) is str)


def _strict_row(raw: msgspec.Raw, number: int) -> dict[str, Any] | RejectedRow:
    try:
        row = strict_value(memoryview(raw))
    except FaultyJsonError as error:
        if error.field:
            return RejectedRow(number, _shown_name(error.field), "the row has this key twice")
        return RejectedRow(number, "row", f"the row {error}")
    if type(row) is not dict:
        return RejectedRow(number, "row", f"got {row!r:.40}; give an object, one cell a column")
    for name in row:
        if name not in _NAMES:
            return RejectedRow(number, _shown_name(name), _UNKNOWN)
    return row


def _shown_name(name: str) -> str:
    """A foreign name, fit for an answer and for a log line."""
    return name[:_LONGEST_NAME].encode("unicode_escape").decode("ascii") or "''"


def _columns_of(rows: list[dict[str, Any]]) -> dict[str, object]:
    """A list per column that any row has, the required ones always."""
    names = set(chain.from_iterable(rows))
    alike = sum(map(len, rows)) == len(rows) * len(names)
    columns: dict[str, object] = {}
    for column in COLUMNS:
        name = column.name
        if name in names and alike:
            columns[name] = list(map(itemgetter(name), rows))
        elif name in names or column.presence is Presence.REQUIRED:
            absent = _NOTHING if column.presence is Presence.REQUIRED else column.absent_value
            columns[name] = [row.get(name, absent) for row in rows]
    return columns


# Columns -------------------------------------------------------------------------------------


def _from_columns(
    body: bytes, envelope: _Envelope, rules: BatchRules, max_rows: int
) -> ParsedBatch:
    raws = envelope.columns or {}
    sent = {name: _shallow(COLUMN_BY_NAME[name], raws[name]) for name in raws if name in _NAMES}
    lists = {name: cells for name, cells in sent.items() if isinstance(cells, list)}
    rows = max(map(len, lists.values()), default=0)
    _check_rows(rows, max_rows)
    _check_gamma(envelope, rules, rows)
    builder = BatchBuilder(rules)
    unknown = [name for name in raws if name not in _NAMES]
    faults = [
        _whole(_shown_name(name), "there is no such column; leave it out") for name in unknown
    ]
    faults += [cells for cells in sent.values() if isinstance(cells, RejectedRow)]
    faults += _uneven(lists)
    if faults:
        return builder.refused(WholeColumnsError(faults), rows)
    inside = sum(_colons(memoryview(raw)) for raw in raws.values())
    _check_single_keys(body, inside, keys=2 + len(raws), rows=rows)
    try:
        for start in range(0, rows, CHUNK_ROWS):
            stop = min(start + CHUNK_ROWS, rows)
            chunk = {
                name: _deep(COLUMN_BY_NAME[name], cells[start:stop])
                for name, cells in lists.items()
            }
            builder.add(chunk, range(start, stop))
    except WholeColumnsError as error:
        return builder.refused(error, rows)
    return builder.finish()


def _whole(name: str, reason: str) -> RejectedRow:
    return RejectedRow(None, name, reason)


def _uneven(lists: dict[str, list[Any]]) -> list[RejectedRow]:
    reference = next((column.name for column in COLUMNS if column.name in lists), "")
    expected = len(lists.get(reference, ()))
    return [
        _whole(name, f"got {len(cells)} rows; give {expected} rows, as in {reference}")
        for name, cells in lists.items()
        if len(cells) != expected
    ]


def _shallow(column: Column, raw: msgspec.Raw) -> list[Any] | RejectedRow | None:
    """The cells of a column, those per position undecoded; None for null, a column not sent."""
    try:
        cells = _SKIM_LIST.decode(raw) if column.per_position else _fast_value(raw)
    except msgspec.DecodeError:
        try:
            cells = strict_value(memoryview(raw))
        except FaultyJsonError as error:
            return _whole(column.name, f"the column {error}; send a list of cells")
    if cells is None or isinstance(cells, list):
        return cells
    return _whole(column.name, f"got {cells!r:.40}; send a list with one cell a row")


def _deep(column: Column, cells: Sequence[Any]) -> list[Any]:
    if not column.per_position:
        return list(cells)
    try:
        decoded: list[Any] = _fast_value(b"".join((b"[", b",".join(cells), b"]")))
    except msgspec.DecodeError:
        return [_strict_cell(raw) for raw in cells]
    return decoded


def _fast_value(data: bytes | msgspec.Raw) -> Any:
    """The value of one JSON text.

    Raises:
        msgspec.DecodeError: only the strict reader can read it, if any.
    """
    if b"\\u0000" in bytes(data):  # a word that :func:`mark_foreign_words` has marked
        raise msgspec.DecodeError("marked")
    return _DECODE.decode(data)


def _strict_cell(raw: msgspec.Raw) -> Any:
    try:
        return strict_value(memoryview(raw))
    except FaultyJsonError as error:
        return Word(f"a cell that {error}")
