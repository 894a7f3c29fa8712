"""Promises of ingest as a whole: nothing valid lost, nothing invalid kept, every bit kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calib.duplicates import drop_duplicates
from calib.labels import conditional_labels, coverage, observed_mask
from calib.record_schema import Flag
from calib.records import AcceptanceRecords
from monitoring.ingest import parse_arrow_batch, parse_json_batch, payload_of, records_of
from tests.monitoring.batch_bodies import (
    arrow_stream,
    columns_of,
    json_columns,
    json_rows,
    records,
    row,
    stream_of,
    table,
)

GAMMA = 3

_logit = st.floats(-(2.0**100), 2.0**100, allow_nan=False, width=32)
_good_rows = st.fixed_dictionaries(
    {
        "confidence_logits": st.lists(_logit, min_size=GAMMA, max_size=GAMMA),
        "verified": st.integers(0, GAMMA),
        "accepted": st.just(0),
        "flags": st.integers(0, 31),
        "engine": st.sampled_from(["e1", "e2"]),
        "request": st.sampled_from(["r1", "r2", "γ:3"]),
        "step": st.integers(0, 3) | st.none(),
    },
    optional={
        "domain": st.text("abγ: ", min_size=1, max_size=3) | st.none(),
        "propensity": st.floats(0, 1, width=32) | st.none(),
        "timestamp": st.floats(0, 2e9),
    },
)
# One fault each, of a kind of its own; the row is good otherwise.
_faults: list[dict[str, Any]] = [
    {"verified": True},
    {"verified": "2"},
    {"verified": 2.5},
    {"verified": -1},
    {"accepted": 200},
    {"accepted": 10**25},
    {"confidence_logits": [1.0, 2.0]},
    {"confidence_logits": [1.0, float("nan"), 2.0]},
    {"confidence_logits": [1.0, True, 2.0]},
    {"flags": 99},
    {"domain": ""},
    {"domain": "\ud800"},
    {"propensity": -0.5},
    {"unknown": 1},
]
_bad_rows = st.builds(lambda good, fault: good | fault, _good_rows, st.sampled_from(_faults))
_no_rows = st.sampled_from([None, 5, "row", [1], True])
_mixed = st.lists(
    st.tuples(st.just(True), _good_rows) | st.tuples(st.just(False), _bad_rows | _no_rows),
    min_size=1,
    max_size=12,
)


@pytest.mark.property
@settings(max_examples=60)
@given(_mixed)
def test_good_rows_are_kept_bit_for_bit_and_every_row_is_accounted_for(
    sent: list[tuple[bool, Any]],
) -> None:
    parsed = parse_json_batch(json_rows([content for _, content in sent]), GAMMA)
    assert len(parsed.records) + parsed.duplicates + parsed.rejected_total == len(sent)
    bad = [number for number, (good, _) in enumerate(sent) if not good]
    assert [fault.row for fault in parsed.rejected] == bad
    good = [content for is_good, content in sent if is_good]
    if not good:
        assert len(parsed.records) == 0
        return
    expected = drop_duplicates(records(good, GAMMA))
    stored = records_of(payload_of(parsed.records))
    assert _same_rows(stored, expected)


def _same_rows(found: AcceptanceRecords, expected: AcceptanceRecords) -> bool:
    """Equal bit for bit; a column that one of them lacks must be unknown in the other."""
    names = found.columns().keys() | expected.columns().keys()
    both = AcceptanceRecords.concatenate([found, expected])
    half = len(found)
    return half == len(expected) and all(
        np.array_equal(values[:half], values[half:], equal_nan=values.dtype.kind == "f")
        for name, values in both.columns().items()
        if name in names
    )


@pytest.mark.property
@settings(max_examples=30)
@given(st.lists(_good_rows, min_size=1, max_size=8))
def test_every_form_gives_the_same_rows(rows: list[dict[str, Any]]) -> None:
    columns = columns_of(rows)
    whole = [{name: cells[k] for name, cells in columns.items()} for k in range(len(rows))]
    bodies = [
        parse_json_batch(json_rows(whole), GAMMA),
        parse_json_batch(json_columns(columns), GAMMA),
        parse_arrow_batch(arrow_stream(whole), GAMMA),
        parse_arrow_batch(stream_of(table(whole), compression="zstd", rows=2), GAMMA),
    ]
    first = bodies[0]
    assert first.rejected_total == 0
    for other in bodies[1:]:
        assert other.records.equals(first.records)
        assert (other.duplicates, other.excluded) == (first.duplicates, first.excluded)


def test_r36_unobserved_positions_are_not_zeros() -> None:
    sent = row(5, verified=2, accepted=2)
    stored = records_of(payload_of(parse_json_batch(json_rows([sent], 5), 5).records))
    labels = conditional_labels(stored)[0]
    assert labels[:2].tolist() == [1.0, 1.0]
    assert np.isnan(labels[2:]).all()


def test_r37_rate_among_verified_and_coverage_survive_storage() -> None:
    """Position 3: 60 of 100 blocks verified, 54 accepted."""
    rows = [row(verified=3, accepted=3)] * 54 + [row(verified=3, accepted=2)] * 6
    rows += [row(verified=2, accepted=2)] * 40
    stored = records_of(payload_of(parse_json_batch(json_rows(rows), 3).records))
    observed = observed_mask(stored)[:, 2]
    assert conditional_labels(stored)[observed, 2].mean() == pytest.approx(0.9)
    assert coverage(stored)[2] == pytest.approx(0.6)


def test_r38_a_row_cut_at_a_stop_token_is_kept_for_fits() -> None:
    sent = row(6, verified=3, accepted=3, scheduled=6, flags=int(Flag.STOP_TRUNCATED))
    parsed = parse_json_batch(json_rows([sent], 6), 6)
    assert (len(parsed.records), parsed.excluded) == (1, 0)
    assert observed_mask(parsed.records)[0].sum() == 3


def test_r39_a_block_of_two_drafts_teaches_two_positions_at_most() -> None:
    parsed = parse_json_batch(json_rows([row(4, verified=2, accepted=1)], 4), 4)
    assert observed_mask(parsed.records)[0].tolist() == [True, True, False, False]


def test_r40_impossible_lengths_are_rejected_and_good_rows_kept() -> None:
    impossible = [
        {"verified": 4, "accepted": -1},
        {"verified": 4, "accepted": 5},
        {"verified": 9, "accepted": 1},
    ]
    for lengths in impossible:
        alone = parse_json_batch(json_rows([row(7, **lengths)], 7), 7)
        assert (len(alone.records), alone.rejected_total) == (0, 1)
    mixed = [row(7), *(row(7, **lengths) for lengths in impossible), row(7)]
    parsed = parse_json_batch(json_rows(mixed, 7), 7)
    assert len(parsed.records) == 2
    assert [(fault.row, fault.field) for fault in parsed.rejected] == [
        (1, "accepted"),
        (2, "accepted"),
        (3, "verified"),
    ]


def test_r41_the_same_block_twice_and_replayed_counts_once() -> None:
    one = row(engine="e", request="r", step=9)
    rows = [one, one, one | {"flags": int(Flag.REPLAY)}]
    for parsed in (
        parse_json_batch(json_rows(rows), 3),
        parse_arrow_batch(arrow_stream(rows), 3),
    ):
        assert (len(parsed.records), parsed.duplicates, parsed.excluded) == (1, 2, 0)


def test_r49_eight_slots_for_gamma_seven() -> None:
    """500 blocks with the anchor in slot 0, which is always accepted."""
    lengths = np.random.default_rng(1).integers(0, 8, size=500)
    sent = [
        row(
            7,
            confidence_logits=[9.0] + [1.5 - k for k in range(7)],
            verified=8,
            accepted=1 + int(n),
        )
        for n in lengths
    ]
    known = parse_json_batch(json_rows(sent, 7), 7, anchor_included=True)
    assert known.records.accepted.tolist() == lengths.tolist()
    assert set(known.records.verified.tolist()) == {7}
    assert known.warnings == ()
    # Without the convention the rows do not fit the drafter's block size at all.
    unknown = parse_json_batch(json_rows(sent, 7), 7)
    assert (len(unknown.records), unknown.rejected_total) == (0, 500)
    # And cut to seven slots, the anchor shows as a rate of exactly one.
    cut = [row(7, verified=7, accepted=min(1 + int(n), 7)) for n in lengths]
    flagged = parse_json_batch(json_rows(cut, 7), 7)
    assert len(flagged.records) == 500
    assert "first_position_always_accepted" in flagged.warnings


def test_r51_warm_up_rows_are_accepted_and_excluded() -> None:
    warm = [row(accepted=0, flags=int(Flag.WARMUP))] * 50
    normal = [row(accepted=k % 4) for k in range(500)]
    parsed = parse_json_batch(json_rows(warm + normal), 3)
    assert (len(parsed.records), parsed.excluded) == (550, 50)
    assert len(records_of(payload_of(parsed.records)).fitting_rows()) == 500


def test_r52_forced_acceptance_never_reaches_a_fit() -> None:
    parsed = parse_json_batch(json_rows([row(flags=int(Flag.FORCED_ACCEPTANCE))] * 3), 3)
    assert (len(parsed.records), parsed.excluded) == (3, 3)
    assert len(records_of(payload_of(parsed.records)).fitting_rows()) == 0
