from __future__ import annotations

import copy
import dataclasses
import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from calib.coded_texts import CodedTexts
from calib.errors import RecordError
from calib.record_schema import COLUMNS, ColumnKind, Flag, Presence
from calib.records import AcceptanceRecords, validate_rows
from tests.calib.record_batches import lengths, plain_columns, plain_records


def flagged(*flags: int) -> AcceptanceRecords:
    columns = lengths(*[(2, 1)] * len(flags), gamma=2)
    return AcceptanceRecords.from_columns(2, columns | {"flags": list(flags)})


def test_columns_arrive_in_their_dtypes() -> None:
    records = plain_records(rows=6, gamma=3)
    assert len(records) == 6
    assert list(records.columns()) == [column.name for column in COLUMNS]
    for column in COLUMNS:
        array = records.columns()[column.name]
        assert array.dtype == column.dtype
        assert array.shape == ((6, 3) if column.per_position else (6,))
    assert records.step is not None
    assert records.step[:2].tolist() == [-1, 2**40]
    assert records.scheduled is not None
    assert records.scheduled[0] == 255
    assert records.domain is not None
    assert records.domain[:3].tolist() == ["code", None, "chat"]


def test_columns_that_were_not_sent_have_their_stated_defaults() -> None:
    records = AcceptanceRecords.from_columns(2, lengths((2, 1), gamma=2))
    assert records.revision.tolist() == [0]
    assert records.explored.tolist() == [False]
    assert records.anticipating.tolist() == [False]
    assert records.flags.tolist() == [0]
    assert np.isnan(records.propensity).all()
    optional = [column.name for column in COLUMNS if column.presence is Presence.OPTIONAL]
    assert all(getattr(records, name) is None for name in optional)
    explicit = lengths((2, 1), gamma=2) | {"soft_labels": None}
    assert AcceptanceRecords.from_columns(2, explicit).equals(records)


def test_an_unknown_revision_is_not_identity() -> None:
    columns = lengths((2, 1), (2, 1), gamma=2) | {"revision": [None, 0]}
    assert AcceptanceRecords.from_columns(2, columns).revision.tolist() == [-1, 0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"verified": [2, 9]}, "verified: got 9; row 1 of 2: give a whole number from 0 to 2"),
        ({"accepted": [1, 2], "verified": [2, 1]}, "accepted: got 2; row 1 of 2: give at most the"),
        ({"accepted": [-1, 1]}, "accepted: got -1; row 0 of 2"),
        ({"confidence_logits": [[0.0, float("nan")]] * 2}, "row 0 of 2: position 2: give a finite"),
        ({"confidence_logits": [[0.0], [0.0, 1.0]]}, "give 2 values for gamma 2, not 1"),
        ({"soft_labels": [[0.5, 1.2]] * 2}, "soft_labels: got 1.2; row 0 of 2: position 2"),
        ({"verified": [True, 1]}, "verified: got True; row 0 of 2: give a whole number"),
        (
            {"verified": [1, 1, 1], "confidence_logits": [[0.0, 0.0]] * 3},
            "accepted: got '2 rows'; give 3 rows, as in confidence_logits",
        ),
        ({"accept": [1, 1]}, "accept: got 'an unknown column'; leave this column out"),
        ({"flags": [0, 32]}, "flags: got 32; row 1 of 2: give a whole number from 0 to 31"),
    ],
)
def test_errors_name_column_value_row_and_remedy(change: dict[str, Any], message: str) -> None:
    columns = lengths((2, 1), (1, 1), gamma=2) | change
    with pytest.raises(RecordError) as caught:
        AcceptanceRecords.from_columns(2, columns)
    assert message in str(caught.value)
    assert caught.value.field in columns
    assert caught.value.remedy


def test_no_rows_are_refused_but_can_be_selected() -> None:
    empty = {"confidence_logits": np.zeros((0, 2)), "verified": [], "accepted": []}
    with pytest.raises(RecordError, match="0 rows"):
        AcceptanceRecords.from_columns(2, empty)
    assert len(AcceptanceRecords.empty(2)) == 0
    assert len(plain_records().select([])) == 0
    good, rejected = validate_rows(2, empty)
    assert (len(good), rejected) == (0, [])


def test_the_constructor_checks_like_from_columns() -> None:
    records = plain_records()
    fields = {field.name: getattr(records, field.name) for field in dataclasses.fields(records)}
    assert AcceptanceRecords(**fields).equals(records)
    fields["accepted"] = np.full(6, 3, dtype=np.uint8)
    with pytest.raises(RecordError, match="accepted: got 3; row 0 of 6"):
        AcceptanceRecords(**fields)
    with pytest.raises(RecordError, match="gamma"):
        dataclasses.replace(records, gamma=0)


def test_records_are_immutable_and_own_their_memory() -> None:
    logits = np.zeros((1, 2), dtype=np.float32)
    columns = {"confidence_logits": logits, "verified": [2], "accepted": [1]}
    records = AcceptanceRecords.from_columns(2, columns)
    logits[0, 0] = 9.0
    assert records.confidence_logits[0, 0] == 0.0
    assert logits.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        records.confidence_logits[0, 0] = 1.0
    with pytest.raises(dataclasses.FrozenInstanceError):
        records.gamma = 3  # type: ignore[misc]
    for copied in (pickle.loads(pickle.dumps(records)), copy.deepcopy(records)):
        assert copied.equals(records)
        assert not copied.verified.flags.writeable


def test_texts_that_came_as_codes_are_objects_for_whoever_looks() -> None:
    plain = plain_records()
    texts = {c.name for c in COLUMNS if c.kind is ColumnKind.TEXT}
    coded = {
        name: CodedTexts.of(values.tolist()) if name in texts else values
        for name, values in plain.columns().items()
    }

    def fresh() -> AcceptanceRecords:
        return AcceptanceRecords.from_columns(3, coded)

    assert isinstance(fresh().cells()["engine"], CodedTexts)
    assert fresh().equals(plain)
    assert plain.equals(AcceptanceRecords(gamma=3, **coded))  # type: ignore[arg-type]
    engine = fresh().engine
    assert engine is not None
    assert engine.dtype == np.object_
    assert not engine.flags.writeable
    assert repr(fresh()) == repr(plain)
    assert fresh().select([4, 1]).equals(plain.select([4, 1]))
    assert fresh().restricted_to({"engine"}).equals(plain.restricted_to({"engine"}))
    assert fresh().with_flag(Flag.REPLAY, [1]).equals(plain.with_flag(Flag.REPLAY, [1]))
    assert dataclasses.replace(fresh()).equals(plain)
    for copied in (pickle.loads(pickle.dumps(fresh())), copy.deepcopy(fresh())):
        assert copied.equals(plain)
    whole = plain.concatenate([plain, plain])
    assert plain.concatenate([fresh(), fresh()]).equals(whole)
    assert plain.concatenate([fresh(), plain]).equals(whole)
    shared = fresh()
    assert isinstance(plain.concatenate([shared, shared]).cells()["engine"], CodedTexts)
    bare = plain.restricted_to(())
    assert bare.concatenate([bare, fresh()]).equals(bare.concatenate([bare, plain]))


def test_codes_of_a_text_column() -> None:
    records = plain_records()
    assert records.engine is not None
    coded = records.coded("engine")
    assert coded is not None
    assert coded.texts().tolist() == records.engine.tolist()
    assert records.coded("engine") is coded
    assert records.restricted_to(()).coded("engine") is None
    with pytest.raises(RecordError, match="step"):
        records.coded("step")


def test_select_by_mask_numbers_and_slice() -> None:
    records = plain_records()
    mask = np.array([False, True, False, True, False, False])
    assert records.select(mask).equals(records.select([1, 3]))
    assert records.select(slice(1, 4, 2)).equals(records.select(mask))
    assert records.select([3, 1, 1]).verified.tolist() == records.verified[[3, 1, 1]].tolist()
    assert records.select(-1).equals(records.select([5]))
    assert not records.select([0]).verified.flags.writeable


@pytest.mark.parametrize("rows", [[6], [-7], [0.5], [True, False], [[0]], ["0"]])
def test_select_refuses_rows_that_do_not_exist(rows: Any) -> None:
    with pytest.raises(RecordError, match=r"^rows: "):
        plain_records().select(rows)


def test_concatenate_joins_and_fills_what_a_part_lacks() -> None:
    full = plain_records()
    bare = AcceptanceRecords.from_columns(3, lengths((3, 1), gamma=3))
    joined = AcceptanceRecords.concatenate([full, bare, full.select([])])
    assert joined.select(slice(0, 6)).equals(full)
    tail = joined.select([6])
    assert tail.scheduled is not None
    assert tail.scheduled[0] == 255
    assert tail.soft_labels is not None
    assert np.isnan(tail.soft_labels).all()
    assert tail.engine is not None
    assert tail.engine[0] is None
    halves = [full.select(slice(0, 2)), full.select(slice(2, 6))]
    assert AcceptanceRecords.concatenate(halves).equals(full)


def test_concatenate_refuses_nothing_and_mixed_gamma() -> None:
    with pytest.raises(RecordError, match=r"parts: got \[\]"):
        AcceptanceRecords.concatenate([])
    with pytest.raises(RecordError, match=r"parts: got \[2, 3\]"):
        AcceptanceRecords.concatenate([plain_records(gamma=2), plain_records(gamma=3)])


def test_equals_sees_values_columns_and_gamma() -> None:
    records = plain_records()
    assert records.equals(plain_records())
    assert not records.equals(plain_records(gamma=2))
    assert not records.equals(records.select(slice(0, 5)))
    assert not records.equals(records.with_flag(Flag.WARMUP, [0]).with_flag(Flag.REPLAY, [0]))
    bare = AcceptanceRecords.from_columns(3, lengths((3, 1), gamma=3))
    assert not bare.equals(plain_records(rows=2).select([0]))


def test_restricted_rows_keep_what_is_named_and_default_the_rest() -> None:
    columns = plain_columns() | {"domain": ["code"] * len(plain_columns()["verified"])}
    full = AcceptanceRecords.from_columns(plain_records().gamma, columns)
    slim = full.restricted_to({"domain"})
    needed = ("confidence_logits", "verified", "accepted", "domain")
    wanted = {name: getattr(full, name) for name in needed}
    assert slim.equals(AcceptanceRecords.from_columns(full.gamma, wanted))
    assert slim.restricted_to(()).domain is None


def test_with_flag_adds_to_the_flags_of_a_copy() -> None:
    records = flagged(0, 16, 0)
    marked = records.with_flag(Flag.WARMUP, [True, True, False])
    assert marked.flags.tolist() == [1, 17, 0]
    assert records.flags.tolist() == [0, 16, 0]


def test_r52_forced_acceptance_never_enters_fits_or_monitors() -> None:
    records = flagged(0, int(Flag.FORCED_ACCEPTANCE), int(Flag.STOP_TRUNCATED))
    assert records.usable().tolist() == [True, False, True]
    assert len(records.fitting_rows()) == 2
    assert records.exclusion_counts()["forced_acceptance"] == 1


def test_anticipating_rows_leave_fits() -> None:
    columns = lengths((2, 1), (2, 1), gamma=2) | {"anticipating": [True, False]}
    records = AcceptanceRecords.from_columns(2, columns)
    assert records.usable().tolist() == [False, True]
    assert records.exclusion_counts()["anticipating"] == 1


def test_exclusion_counts_add_up_to_the_excluded_rows() -> None:
    columns = lengths(*[(2, 1)] * 32, gamma=2)
    columns |= {"flags": list(range(32)), "anticipating": [row % 3 == 0 for row in range(32)]}
    records = AcceptanceRecords.from_columns(2, columns)
    counts = records.exclusion_counts()
    assert list(counts) == [
        "warmup",
        "replay",
        "forced_acceptance",
        "target_only_transform",
        "anticipating",
    ]
    assert counts["warmup"] == 16
    assert counts["replay"] == 8
    # Left are flags 0 and 16 with no other flag; of these 0 is anticipating.
    assert counts["anticipating"] == 1
    assert sum(counts.values()) == 32 - len(records.fitting_rows()) == 31


def test_repr_is_short() -> None:
    records = AcceptanceRecords.from_columns(2, lengths((2, 1), gamma=2) | {"domain": ["code"]})
    assert repr(records) == "AcceptanceRecords(gamma=2, rows=1, with=[domain])"


def test_validation_still_raises_without_asserts() -> None:
    script = (
        "from calib.errors import RecordError\n"
        "from calib.records import AcceptanceRecords\n"
        "columns = {'confidence_logits': [[0.0]], 'verified': [1], 'accepted': [2]}\n"
        "try:\n"
        "    AcceptanceRecords.from_columns(1, columns)\n"
        "except RecordError as error:\n"
        "    print(__debug__, error)\n"
    )
    answer = subprocess.run(
        [sys.executable, "-O", "-c", script], capture_output=True, text=True, check=True
    )
    assert answer.stdout.startswith("False accepted: got 2; row 0 of 1: ")


def test_plain_columns_are_not_changed_by_reading_them() -> None:
    columns = plain_columns()
    before = copy.deepcopy(columns)
    AcceptanceRecords.from_columns(3, columns)
    assert columns == before


def test_the_named_rows_of_a_batch_may_be_limited() -> None:
    columns = lengths((2, 1), (2, 2), (1, 0), (2, 0), gamma=2) | {"accepted": [3, 2, 2, 9]}
    good, rejected = validate_rows(2, columns, most_named=2)
    assert [row.row for row in rejected] == [0, 2]
    assert good.accepted.tolist() == [2]
    assert len(validate_rows(2, columns)[1]) == 3
    assert validate_rows(2, columns, most_named=0)[1] == []
