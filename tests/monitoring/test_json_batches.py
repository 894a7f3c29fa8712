"""JSON bodies: strict about types, exact about rows, kind to what is good."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from calib.errors import RecordError
from monitoring.json_batches import CHUNK_ROWS, parse_json_batch
from monitoring.parsed_batch import (
    BatchTooLargeError,
    InvalidBatchError,
    ParsedBatch,
    UnreadableBatchError,
)
from tests.calib.record_batches import plain_columns, plain_records
from tests.monitoring.batch_bodies import columns_of, json_columns, json_rows, records, row

REQUIRED = b'"confidence_logits":[1,2,3],"verified":2,"accepted":1'

_COLUMNS = json_columns(columns_of([row()]))


def parse(rows: list[object], **options: Any) -> ParsedBatch:
    return parse_json_batch(json_rows(rows), 3, **options)


def faults(parsed: ParsedBatch) -> list[tuple[int | None, str]]:
    return [(fault.row, fault.field) for fault in parsed.rejected]


def raw_rows(*rows: bytes) -> bytes:
    return b'{"gamma":3,"rows":[' + b",".join(rows) + b"]}"


class TestForms:
    def test_rows_and_columns_give_the_same_records(self) -> None:
        columns = plain_columns(6, 3)
        rows = [{name: cells[k] for name, cells in columns.items()} for k in range(6)]
        from_rows = parse_json_batch(json_rows(rows), 3)
        from_columns = parse_json_batch(json_columns(columns), 3)
        assert from_rows.records.equals(plain_records(6, 3))
        assert from_columns.records.equals(plain_records(6, 3))
        assert from_rows.rejected == from_columns.rejected == ()

    def test_a_column_that_only_some_rows_have_is_unknown_elsewhere(self) -> None:
        parsed = parse([row(domain="code", revision=4), row()])
        assert parsed.records.domain is not None
        assert parsed.records.domain.tolist() == ["code", None]
        # Defaults are per row: who sends no revision applied none.
        assert parsed.records.revision.tolist() == [4, 0]

    def test_a_null_revision_is_unknown_and_a_missing_one_is_identity(self) -> None:
        assert parse([row(revision=None), row()]).records.revision.tolist() == [-1, 0]

    def test_whole_numbers_may_stand_for_floats_and_not_the_other_way(self) -> None:
        parsed = parse([row(confidence_logits=[1, 2, 3]), row(verified=3.0)])
        assert parsed.records.confidence_logits.tolist() == [[1.0, 2.0, 3.0]]
        assert faults(parsed) == [(1, "verified")]

    def test_keys_and_texts_may_be_escaped(self) -> None:
        body = raw_rows(
            b'{"confidence_logits":[1,2,3],"verif\\u0069ed":2,"accepted":1,"domain":"a\\u003ab"}'
        )
        parsed = parse_json_batch(body, 3)
        assert parsed.rejected == ()
        assert parsed.records.domain is not None
        assert parsed.records.domain.tolist() == ["a:b"]

    def test_many_chunks_keep_order_and_numbers(self) -> None:
        count = 2 * CHUNK_ROWS + 5
        rows: list[Any] = [row(step=k) for k in range(count)]
        for bad in (0, CHUNK_ROWS - 1, CHUNK_ROWS, count - 1):
            rows[bad] = row(verified=True)
        parsed = parse(rows)
        assert [fault.row for fault in parsed.rejected] == [
            0,
            CHUNK_ROWS - 1,
            CHUNK_ROWS,
            count - 1,
        ]
        assert parsed.records.step is not None
        assert parsed.records.step.tolist() == [
            k for k in range(count) if rows[k]["verified"] is not True
        ]

    def test_many_chunks_of_columns(self) -> None:
        count = CHUNK_ROWS + 3
        rows = [row(step=k, domain="a:b") for k in range(count)]
        columns = columns_of(rows)
        columns["confidence_logits"][CHUNK_ROWS] = [1.0, 2.0]
        parsed = parse_json_batch(json_columns(columns), 3)
        assert faults(parsed) == [(CHUNK_ROWS, "confidence_logits")]
        assert len(parsed.records) == count - 1


class TestCells:
    @pytest.mark.parametrize(
        ("column", "cell"),
        [
            ("verified", True),
            ("verified", "2"),
            ("verified", 2.0),
            ("verified", None),
            ("verified", -1),
            ("verified", 4),
            ("verified", 10**30),
            ("verified", [2]),
            ("accepted", {"n": 1}),
            ("confidence_logits", "1.5"),
            ("confidence_logits", [1.0, 2.0]),
            ("confidence_logits", [1.0, 2.0, True]),
            ("confidence_logits", [1.0, 2.0, "1.5"]),
            ("confidence_logits", [1.0, 2.0, None]),
            ("confidence_logits", [1.0, 2.0, 1e39]),
            ("confidence_logits", [1.0, 2.0, float("nan")]),
            ("confidence_logits", [1.0, 2.0, float("inf")]),
            ("confidence_logits", [1.0, 2.0, 10**400]),
            ("propensity", float("nan")),
            ("propensity", 1.5),
            ("explored", 1),
            ("domain", ""),
            ("domain", "a\nb"),
            ("domain", "\ud800"),
            ("domain", 7),
            ("domain", "x" * 257),
            ("acceptance_rule", "magic"),
            ("flags", 32),
            ("timestamp", 1.7e12),
            ("step", 2**63),
        ],
    )
    def test_a_wrong_cell_costs_its_row_only(self, column: str, cell: object) -> None:
        parsed = parse([row(step=1), row() | {column: cell}, row(step=2)])
        assert faults(parsed) == [(1, column)]
        assert parsed.records.step is not None
        assert parsed.records.step.tolist() == [1, 2]

    def test_reasons_show_the_offending_text(self) -> None:
        body = raw_rows(
            b'{"confidence_logits":[1,2,1e400],"verified":2,"accepted":1}',
            b'{"confidence_logits":[1,NaN,2],"verified":2,"accepted":1}',
            b'{"verified":2,"accepted":1}',
            b"{" + REQUIRED + b"}",
        )
        parsed = parse_json_batch(body, 3)
        assert [fault.reason for fault in parsed.rejected] == [
            "got 1e400; position 3: give a finite number",
            "got NaN; position 2: give a finite number",
            "got nothing; give 3 values for gamma 3",
        ]
        assert len(parsed.records) == 1

    def test_a_foreign_word_in_a_column_costs_its_row_only(self) -> None:
        columns = columns_of([row(), row(), row(), row()])
        columns["confidence_logits"][1][0] = float("nan")
        columns["accepted"][2] = float("inf")
        parsed = parse_json_batch(json_columns(columns), 3)
        assert faults(parsed) == [(1, "confidence_logits"), (2, "accepted")]
        assert parsed.rejected[1].reason == "got Infinity; give a whole number"

    def test_a_number_out_of_range_in_a_column_costs_its_row_only(self) -> None:
        body = (
            b'{"gamma":3,"columns":{"confidence_logits":[[1,2,3],[1,2,1e999]],"verified":[2,2],'
            b'"accepted":[1,1],"sampling_temperature":[1e999,0.5]}}'
        )
        parsed = parse_json_batch(body, 3)
        assert faults(parsed) == [(0, "sampling_temperature"), (1, "confidence_logits")]


class TestRows:
    @pytest.mark.parametrize("bad", [5, None, "row", [], True, [1, 2]])
    def test_what_is_no_object_is_named(self, bad: object) -> None:
        parsed = parse([row(), bad, row()])
        assert faults(parsed) == [(1, "row")]
        assert len(parsed.records) == 2

    def test_an_unknown_column_costs_its_row_only(self) -> None:
        parsed = parse([row(), row(logits=1), row()])
        assert faults(parsed) == [(1, "logits")]

    def test_a_foreign_name_is_shown_harmlessly(self) -> None:
        parsed = parse([row(**{"evil\n\ud800" + "x" * 500: 1})])
        name = parsed.rejected[0].field
        assert name.startswith("evil\\n\\x00xxx")
        assert len(name) < 100
        assert name.isascii()

    @pytest.mark.parametrize(
        "doubled",
        [
            b'"accepted":1',
            b'"accepted":0',
            b'"acc\\u0065pted":0',
            b'"confidence_logits":[9,9,9]',
        ],
    )
    def test_a_key_that_comes_twice_costs_its_row(self, doubled: bytes) -> None:
        good = b"{" + REQUIRED + b"}"
        parsed = parse_json_batch(raw_rows(good, b"{" + REQUIRED + b"," + doubled + b"}", good), 3)
        assert [fault.row for fault in parsed.rejected] == [1]
        assert "twice" in parsed.rejected[0].reason
        assert len(parsed.records) == 2

    def test_an_escaped_colon_does_not_hide_a_doubled_key(self) -> None:
        """The doubled key adds a colon to the body, the escape adds one to the texts only."""
        doubled = b"{" + REQUIRED + b',"domain":"x\\u003ay","accepted":0}'
        parsed = parse_json_batch(raw_rows(doubled), 3)
        assert faults(parsed) == [(0, "accepted")]

    def test_colons_in_texts_are_no_doubled_keys(self) -> None:
        parsed = parse([row(prompt="sha256:ab"), row(domain="a::b", tenant=":")])
        assert parsed.rejected == ()
        assert parsed.records.prompt is not None
        assert parsed.records.prompt.tolist() == ["sha256:ab", None]

    def test_broken_utf8_costs_its_row_only(self) -> None:
        good = b"{" + REQUIRED + b"}"
        parsed = parse_json_batch(raw_rows(good, b"{" + REQUIRED + b',"domain":"\xff"}', good), 3)
        assert faults(parsed) == [(1, "row")]
        assert "no UTF-8" in parsed.rejected[0].reason
        assert len(parsed.records) == 2

    def test_blocks_that_come_twice_count_once(self) -> None:
        one = row(engine="e", request="r", step=1)
        parsed = parse([one, one, one | {"flags": 2}, row(), row()])
        assert (len(parsed.records), parsed.duplicates) == (3, 2)
        assert parsed.records.flags.tolist() == [0, 0, 0]

    def test_excluded_rows_are_kept_and_counted(self) -> None:
        rows: list[object] = [row(flags=flag) for flag in (0, 1, 2, 4, 8, 16)]
        parsed = parse([*rows, row(anticipating=True)])
        assert (len(parsed.records), parsed.excluded) == (7, 5)


class TestEngine:
    def test_fills_what_is_missing(self) -> None:
        parsed = parse([row(engine="a"), row(engine=None), row()], engine="b")
        assert parsed.records.engine is not None
        assert parsed.records.engine.tolist() == ["a", "b", "b"]

    def test_fills_columns_too(self) -> None:
        for columns in (columns_of([row(), row()]), columns_of([row(engine=None), row()])):
            parsed = parse_json_batch(json_columns(columns), 3, engine="b")
            assert parsed.records.engine is not None
            assert parsed.records.engine.tolist() == ["b", "b"]
            assert {type(name) for name in parsed.records.engine} == {str}

    def test_tells_blocks_apart(self) -> None:
        rows: list[object] = [row(request="r", step=1)] * 2
        assert parse(rows).duplicates == 0
        assert parse(rows, engine="e").duplicates == 1

    @pytest.mark.parametrize("name", ["", "a\nb", "x" * 257])
    def test_a_name_that_no_row_could_have_is_refused(self, name: str) -> None:
        with pytest.raises(RecordError, match="engine"):
            parse([row()], engine=name)


class TestAnchor:
    """R49: a drafter whose key says ``anchor_included`` sends γ + 1 slots."""

    def test_slot_zero_is_dropped_and_lengths_shrink(self) -> None:
        sent = row(confidence_logits=[9.0, 1.0, 2.0, 3.0], verified=3, accepted=2, scheduled=4)
        parsed = parse([sent], anchor_included=True)
        expected = row(confidence_logits=[1.0, 2.0, 3.0], verified=2, accepted=1, scheduled=3)
        assert parsed.records.equals(records([expected]))

    def test_a_row_of_gamma_slots_is_rejected_with_a_hint(self) -> None:
        parsed = parse([row()], anchor_included=True)
        assert faults(parsed) == [(0, "confidence_logits")]
        assert "anchor" in parsed.rejected[0].reason

    def test_a_missing_anchor_is_rejected(self) -> None:
        sent = row(confidence_logits=[9.0, 1.0, 2.0, 3.0], verified=0, accepted=0)
        assert faults(parse([sent], anchor_included=True)) == [(0, "verified")]


class TestWholeBatch:
    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"   \n",
            b"{",
            b"nul",
            b"\xef\xbb\xbf" + json_rows([row()]),
            json_rows([row()]).decode().encode("utf-16"),
            json_rows([row()]) + b"x",
            json_rows([row()])[:-1],
            b'{"gamma":3,"rows":[' + b"[" * 5000 + b"]" * 5000 + b"]}",
            b"PK\x03\x04",
        ],
    )
    def test_no_json_is_unreadable(self, body: bytes) -> None:
        with pytest.raises(UnreadableBatchError):
            parse_json_batch(body, 3)

    @pytest.mark.parametrize(
        ("body", "field"),
        [
            (b"{}", "body"),
            (b"[]", "body"),
            (b"[" * 100_000, "body"),
            (b"null", "body"),
            (b'"text"', "body"),
            (json_rows([]), "rows"),
            (b'{"gamma":3}', "body"),
            (b'{"gamma":3,"rows":{}}', "body"),
            (b'{"gamma":3,"rows":null}', "body"),
            (b'{"gamma":3,"columns":[]}', "body"),
            (b'{"gamma":3,"columns":{}}', "rows"),
            (json_rows([row()], extra=1), "body"),
            (json_rows([row()], columns={}), "body"),
            (json_rows([row()], gamma=4), "gamma"),
            (json_rows([row()], gamma=3.0), "gamma"),
            (json_rows([row()], gamma="3"), "gamma"),
            (json_rows([row()], gamma=True), "gamma"),
            (json_rows([row()], gamma=None), "gamma"),
            (json_rows([row()], gamma=[3]), "gamma"),
            (json_rows([row()], gamma=10**400), "gamma"),
            (json.dumps({"rows": [row()]}).encode(), "gamma"),
            (b'{"gamma":3,' + json_rows([row()])[1:], "body"),
            (b'{"gamma":3,"rows":[1],' + json_rows([row()])[1:], "body"),
            (b'{"gamma":3,"columns":{"verified":[1],' + _COLUMNS[25:], "body"),
        ],
    )
    def test_another_form_is_invalid(self, body: bytes, field: str) -> None:
        with pytest.raises(InvalidBatchError) as caught:
            parse_json_batch(body, 3)
        assert not isinstance(caught.value, UnreadableBatchError)
        assert caught.value.field == field

    def test_rows_of_a_refused_batch_are_counted(self) -> None:
        with pytest.raises(InvalidBatchError) as caught:
            parse_json_batch(json_rows([row()] * 5, gamma=4), 3)
        assert caught.value.rows == 5

    def test_too_many_rows(self) -> None:
        assert len(parse([row()] * 3, max_rows=3).records) == 3
        with pytest.raises(BatchTooLargeError) as caught:
            parse([row()] * 4, max_rows=3)
        assert (caught.value.limit, caught.value.found) == (3, 4)

    @pytest.mark.parametrize(
        ("change", "field"),
        [
            ({"verified": [1]}, "verified"),
            ({"verified": 1}, "verified"),
            ({"verified": "12"}, "verified"),
            ({"verified": None}, "verified"),
            ({"confidence_logits": 5}, "confidence_logits"),
            ({"confidence_logits": None}, "confidence_logits"),
            ({"logits": [1, 1]}, "logits"),
            ({"domain": {"a": 1}}, "domain"),
        ],
    )
    def test_a_wrong_column_refuses_every_row(self, change: dict[str, Any], field: str) -> None:
        columns = columns_of([row(), row()]) | change
        parsed = parse_json_batch(json_columns(columns), 3)
        assert (None, field) in faults(parsed)
        assert (len(parsed.records), parsed.rejected_total) == (0, 2)

    def test_a_null_optional_column_was_not_sent(self) -> None:
        columns = columns_of([row(), row()]) | {"domain": None}
        parsed = parse_json_batch(json_columns(columns), 3)
        assert (len(parsed.records), parsed.records.domain) == (2, None)


def test_reasons_are_capped_and_rows_are_not() -> None:
    parsed = parse([row(verified=9)] * 2500 + [row()])
    assert (len(parsed.rejected), parsed.rejected_total) == (1000, 2500)
    assert [fault.row for fault in parsed.rejected] == list(range(1000))
    assert len(parsed.records) == 1


def test_logits_keep_every_bit() -> None:
    values = np.random.default_rng(0).normal(size=(500, 3)).astype(np.float32)
    rows = [row(confidence_logits=[float(x) for x in line]) for line in values]
    assert np.array_equal(parse(rows).records.confidence_logits, values)


def test_r25_probabilities_are_kept_with_a_warning() -> None:
    parsed = parse([row(confidence_logits=[0.92, 0.88, 0.10])] * 40)
    assert (len(parsed.records), list(parsed.warnings)) == (40, ["looks_like_probabilities"])
