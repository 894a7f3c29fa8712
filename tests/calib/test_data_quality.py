from __future__ import annotations

import numpy as np

from calib.data_quality import (
    QualityFlag,
    first_position_always_accepted,
    looks_like_probabilities,
    quality_flags,
)
from calib.record_schema import Flag
from calib.records import AcceptanceRecords
from calib.statuses import Refusal
from tests.calib.record_batches import lengths


def test_r25_probabilities_sent_as_logits_are_seen() -> None:
    values = [0.92, 0.88, 0.10] * 34
    assert len(values) == 102
    assert looks_like_probabilities(values)
    assert looks_like_probabilities(np.array(values).reshape(34, 3))
    assert looks_like_probabilities([0.0, 1.0] * 50)


def test_r25_the_word_is_that_of_the_refusal() -> None:
    assert str(QualityFlag.LOOKS_LIKE_PROBABILITIES) == str(Refusal.LOOKS_LIKE_PROBABILITIES)


def test_logits_and_few_values_are_not_suspected() -> None:
    assert not looks_like_probabilities([0.5] * 99)
    assert not looks_like_probabilities([0.5] * 200 + [1.0001])
    assert not looks_like_probabilities([0.5] * 200 + [-1e-6])
    assert not looks_like_probabilities(np.random.default_rng(0).normal(size=1000))
    assert not looks_like_probabilities([])


def test_unknown_values_are_not_counted() -> None:
    nan = float("nan")
    assert looks_like_probabilities([0.5] * 100 + [nan] * 50)
    assert not looks_like_probabilities([0.5] * 99 + [nan] * 50)


def test_r49_a_first_position_that_is_always_accepted_is_flagged() -> None:
    always = AcceptanceRecords.from_columns(2, lengths(*[(2, 1)] * 100, gamma=2))
    assert first_position_always_accepted(always)
    assert not first_position_always_accepted(always.select(slice(0, 99)))
    mixed = AcceptanceRecords.from_columns(2, lengths(*[(2, 1)] * 100, (2, 0), gamma=2))
    assert not first_position_always_accepted(mixed)


def test_rows_that_are_excluded_or_unverified_prove_nothing() -> None:
    always = AcceptanceRecords.from_columns(2, lengths(*[(2, 1)] * 100, (0, 0), gamma=2))
    assert first_position_always_accepted(always)
    assert not first_position_always_accepted(always.with_flag(Flag.FORCED_ACCEPTANCE, [3]))


def test_quality_flags_name_every_suspicion() -> None:
    records = AcceptanceRecords.from_columns(1, lengths(*[(1, 1)] * 100, gamma=1))
    assert quality_flags(records) == (QualityFlag.FIRST_POSITION_ALWAYS_ACCEPTED,)
    columns = lengths(*[(1, 1)] * 100, gamma=1) | {"confidence_logits": [[0.9]] * 100}
    assert quality_flags(AcceptanceRecords.from_columns(1, columns)) == (
        QualityFlag.LOOKS_LIKE_PROBABILITIES,
        QualityFlag.FIRST_POSITION_ALWAYS_ACCEPTED,
    )
    columns = lengths(*[(1, 0)] * 100, gamma=1)
    assert quality_flags(AcceptanceRecords.from_columns(1, columns)) == ()
