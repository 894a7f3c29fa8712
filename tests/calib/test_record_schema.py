from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from calib.errors import RecordError
from calib.record_schema import (
    ALL_FLAGS,
    COLUMN_BY_NAME,
    COLUMNS,
    EXCLUDING_FLAGS,
    MAX_GAMMA,
    Column,
    ColumnKind,
    Flag,
    Presence,
    check_gamma,
    pack_flags,
)
from calib.records import AcceptanceRecords


def test_every_column_is_a_field_of_the_records_and_documented() -> None:
    fields = {field.name for field in dataclasses.fields(AcceptanceRecords)} - {"gamma"}
    assert {column.name for column in COLUMNS} == fields
    assert all(column.doc.endswith(".") for column in COLUMNS)


def test_columns_are_those_of_the_design() -> None:
    assert list(COLUMN_BY_NAME) == [
        "confidence_logits",
        "verified",
        "accepted",
        "revision",
        "explored",
        "propensity",
        "anticipating",
        "flags",
        "soft_labels",
        "token_acceptance",
        "sampling_temperature",
        "context_length",
        "domain",
        "adapter",
        "acceptance_rule",
        "draft_mode",
        "scheduled",
        "engine",
        "rank",
        "step",
        "request",
        "step_requests",
        "timestamp",
        "tenant",
        "prompt",
        "applied_form",
    ]


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: column.name)
def test_unknown_and_absent_values_fit_the_dtype(column: Column) -> None:
    if column.nullable and column.kind is not ColumnKind.TEXT:
        assert np.array([column.null_value]).astype(column.dtype)[0] == pytest.approx(
            column.null_value, nan_ok=True
        )
    assert (column.absent_value is not None) == (column.presence is Presence.DEFAULTED)


def test_remedies_say_range_null_and_choices() -> None:
    assert COLUMN_BY_NAME["verified"].remedy(7) == "give a whole number from 0 to 7"
    assert COLUMN_BY_NAME["soft_labels"].remedy(7) == (
        "give a finite number from 0 to 1 or null where unknown"
    )
    assert COLUMN_BY_NAME["step"].remedy(7) == (
        "give a whole number from 0 to 9223372036854775807 or null where unknown"
    )
    assert COLUMN_BY_NAME["sampling_temperature"].remedy(7) == (
        "give a finite number of at least 0 or null where unknown"
    )
    assert COLUMN_BY_NAME["draft_mode"].remedy(7) == (
        "give one of sampled, greedy or null where unknown"
    )


def test_flags_are_distinct_bits_that_fit_a_byte() -> None:
    assert [int(flag) for flag in Flag] == [1, 2, 4, 8, 16]
    assert ALL_FLAGS == 31
    assert set(Flag) - set(EXCLUDING_FLAGS) == {Flag.STOP_TRUNCATED}


def test_pack_flags_joins_masks() -> None:
    first, last = np.array([True, False, False]), np.array([True, False, True])
    flags = pack_flags(3, warmup=first, stop_truncated=last)
    assert flags.tolist() == [17, 0, 16]
    assert flags.dtype == np.uint8
    assert pack_flags(2).tolist() == [0, 0]


def test_pack_flags_refuses_what_is_no_mask() -> None:
    with pytest.raises(RecordError, match=r"replay: got .*boolean mask of shape \(2,\)"):
        pack_flags(2, replay=np.array([0, 1]))
    with pytest.raises(RecordError, match="warmup"):
        pack_flags(2, warmup=np.array([True]))


def test_gamma_is_a_stated_whole_number() -> None:
    assert check_gamma(np.int64(7)) == 7
    assert type(check_gamma(np.int64(7))) is int
    for wrong in (0, -1, MAX_GAMMA + 1, True, 7.0, "7", None):
        with pytest.raises(RecordError, match="gamma: got"):
            check_gamma(wrong)
