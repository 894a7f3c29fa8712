from __future__ import annotations

import itertools

import numpy as np
import pytest

from calib.errors import FormatError, InvalidInputError, RecordError
from calib.logit_sketch import LogitSketch
from calib.record_schema import Flag
from calib.records import AcceptanceRecords
from calib.segment_sketches import FOLDS, SegmentSketches, tenant_parts
from calib.segment_tags import POOL, SegmentBuckets, SegmentKey, SegmentLevels
from tests.support.telemetry import synthetic_records

LEVELS = SegmentLevels((("domain",), ("sampling_temperature", "domain")))


def sketched(records: AcceptanceRecords) -> SegmentSketches:
    return SegmentSketches.from_records(records, levels=LEVELS)


def total(folds: tuple[LogitSketch, ...]) -> LogitSketch:
    return LogitSketch.merged(folds)


def test_segments_are_the_sketches_of_their_rows() -> None:
    records = synthetic_records(2000).with_flag(Flag.WARMUP, np.arange(0, 2000, 9))
    found = sketched(records)
    assert total(found.segment(POOL)) == LogitSketch.from_records(records)
    code = records.select(np.array(records.domain) == "code")
    assert total(found.segment(SegmentKey.of({"domain": "code"}))) == LogitSketch.from_records(code)
    greedy = code.select(code.sampling_temperature == 0.0)
    fine = SegmentKey.of({"domain": "code", "sampling_temperature": "0"})
    assert total(found.segment(fine)) == LogitSketch.from_records(greedy)
    assert total(found.segment(SegmentKey.of({"domain": "law"}))) == LogitSketch.empty(7)
    assert found.seen("domain") == {"chat", "code", "math"}
    assert found.seen("sampling_temperature") == {"0", "0.5-0.85", "0.85-1.15"}
    assert found.seen("adapter") == frozenset()


def test_folds_share_no_prompt() -> None:
    records = synthetic_records(2000, prompts=40)
    folds = sketched(records).segment(POOL)
    assert len(folds) == FOLDS
    prompts = np.array(records.prompt)
    # A fold of whole prompts: its rows are those of some subset of the prompts.
    each = {p: int(LogitSketch.from_records(records.select(prompts == p)).rows[0])
            for p in set(prompts)}  # fmt: skip
    sizes = [int(fold.rows[0]) for fold in folds]
    assert sum(sizes) == sum(each.values())
    assert sizes[0] in {
        int(fold.rows[0])
        for fold in sketched(records.select(np.random.default_rng(0).permutation(2000))).segment(
            POOL
        )
    }
    alone = [sketched(records.select(prompts == p)).segment(POOL) for p in set(prompts)]
    assert all(0 in {int(fold.rows[0]) for fold in parts} for parts in alone)


def test_r26_any_order_and_split_gives_the_same_bytes() -> None:
    records = synthetic_records(1200)
    whole = sketched(records)
    order = np.random.default_rng(1).permutation(1200)
    thirds = [sketched(records.select(order[i::3])) for i in range(3)]
    for parts in itertools.permutations(thirds):
        joined = parts[0] + parts[1] + parts[2]
        assert joined == whole
        assert joined.to_bytes() == whole.to_bytes()


def test_bytes_round_trip() -> None:
    records = synthetic_records(800)
    found = sketched(records)
    assert SegmentSketches.from_bytes(found.to_bytes()) == found
    nothing = sketched(records.select(slice(0, 0)))
    assert SegmentSketches.from_bytes(nothing.to_bytes()) == nothing
    assert nothing + found == found


def test_damaged_bytes_are_refused() -> None:
    data = sketched(synthetic_records(50)).to_bytes()
    wrong = [
        b"",
        b"DSLS" + data[4:],
        data[:-3],
        data[:12] + b"\xff" + data[13:],
        data.replace(b'"gamma": 7', b'"gamma": 6'),
        data.replace(b'"segments"', b'"Segments"'),
    ]
    for each in wrong:
        with pytest.raises(FormatError):
            SegmentSketches.from_bytes(each)


def test_other_shapes_do_not_merge() -> None:
    records = synthetic_records(50)
    others = [
        SegmentSketches.from_records(synthetic_records(50, gamma=3), levels=LEVELS),
        SegmentSketches.from_records(records),
        SegmentSketches.from_records(
            records, levels=LEVELS, buckets=SegmentBuckets(context_length=(100,))
        ),
    ]
    for other in others:
        with pytest.raises(InvalidInputError, match="one shape"):
            sketched(records) + other
        assert sketched(records) != other


def test_soft_labels() -> None:
    records = synthetic_records(300)
    soft = SegmentSketches.from_records(records, levels=LEVELS, labels="soft")
    assert total(soft.segment(POOL)) == LogitSketch.from_records(records, labels="soft")
    columns = {"confidence_logits": [[0.5]], "verified": [1], "accepted": [1]}
    with pytest.raises(RecordError, match="soft_labels"):
        SegmentSketches.from_records(AcceptanceRecords.from_columns(1, columns), labels="soft")


def tenants(counts: dict[str | None, int]) -> AcceptanceRecords:
    names = [name for name, count in counts.items() for _ in range(count)]
    columns = {
        "confidence_logits": np.random.default_rng(0).normal(size=(len(names), 2)),
        "verified": [2] * len(names),
        "accepted": [1] * len(names),
        "tenant": names,
    }
    return AcceptanceRecords.from_columns(2, columns)


def test_r53_a_tenant_of_95_per_cent_is_capped_and_named() -> None:
    """Cap 50 %: 950 rows weigh as much as the other 50, 1/19 each."""
    parts, capped = tenant_parts(tenants({"big": 950, "a": 30, "b": 20}), 0.5)
    assert [(weight, len(rows)) for weight, rows in parts] == [
        (1.0, 50),
        (pytest.approx(50 / 950), 950),
    ]
    assert capped.shares["big"] == pytest.approx(0.95)
    assert capped.weighted_shares["big"] == pytest.approx(0.5)
    assert capped.capped == ("big",)


def test_without_tenants_or_above_the_cap_nothing_is_weighed() -> None:
    parts, capped = tenant_parts(synthetic_records(40), 0.5)
    assert [(weight, len(rows)) for weight, rows in parts] == [(1.0, 40)]
    assert capped.capped == ()
    with pytest.raises(RecordError, match="max_share"):
        tenant_parts(synthetic_records(40), 0.0)
    parts, _ = tenant_parts(tenants({"a": 10, "b": 10}), 0.5)
    assert [(weight, len(rows)) for weight, rows in parts] == [(1.0, 20)]
