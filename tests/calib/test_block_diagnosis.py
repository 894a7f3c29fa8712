"""Diagnosis by hand, and the threshold sweep against brute force."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy.stats import binomtest

from calib.block_diagnosis import diagnose_blocks
from calib.errors import ConfigurationError, FitRefusedError
from calib.records import AcceptanceRecords, Flag
from tests.support.leaky_generator import simulate_leaky, trimmed_lengths


def by_hand() -> AcceptanceRecords:
    """γ = 2. Two domains; the last row is a warm-up and leaves."""
    columns = {
        "confidence_logits": [[1.0, 1.0], [1.0, -1.0], [-1.0, 2.0], [0.5, 0.5], [9.0, 9.0]],
        "verified": [2, 2, 2, 1, 2],
        "accepted": [2, 1, 0, 1, 0],
        "domain": ["code", "code", "chat", "code", "chat"],
        "flags": [0, 0, 0, 0, int(Flag.WARMUP)],
    }
    return AcceptanceRecords.from_columns(2, columns)


def test_positions_by_hand() -> None:
    found = diagnose_blocks(by_hand())
    assert [group.name for group in found.groups] == ["all", "code", "chat"]
    everything = found.groups[0]
    assert (everything.rows, everything.accepted_length) == (4, 2.0)
    assert everything.length_shares == (0.25, 0.5, 0.25)
    first, second = everything.positions
    assert (first.observed, first.acceptance) == (4, 0.75)
    assert (first.coverage, first.survival) == (1.0, 0.75)
    # Position 2: rows 0 and 1 reached it, row 2 verified it in vain, row 3 did not verify it.
    assert (second.observed, second.acceptance) == (2, 0.5)
    assert (second.coverage, second.survival) == (0.75, pytest.approx(1 / 3))
    fates = (second.accepted, second.rejected, second.in_vain, second.not_verified)
    assert fates == (0.25, 0.25, 0.25, 0.25)
    exact = binomtest(3, 4).proportion_ci(method="wilson")
    assert (first.acceptance_low, first.acceptance_high) == pytest.approx((exact.low, exact.high))
    assert second.confidence == pytest.approx(0.5)  # σ(1) and σ(−1)
    assert (found.excluded["warmup"], found.fully_verified) == (1, 0.75)
    # Four rows are too few to say what trimmed ones would have had.
    assert everything.sweep == ()
    assert "observed" in (everything.sweep_reason or "")
    json.dumps(found.to_dict(), allow_nan=False)


def test_a_position_that_nobody_reached_has_no_share() -> None:
    columns = {"confidence_logits": [[0.0, 0.0]] * 3, "verified": [2] * 3, "accepted": [0] * 3}
    found = diagnose_blocks(AcceptanceRecords.from_columns(2, columns)).groups[0]
    assert (found.positions[1].acceptance, found.positions[1].confidence) == (None, None)
    assert found.positions[1].in_vain == 1.0
    assert found.sweep[-1].acceptance_rate is None  # .95: nothing is verified
    assert found.sweep[-1].accepted_length == 1.0


def test_the_sweep_equals_counting() -> None:
    blocks = simulate_leaky(500, 4)
    found = diagnose_blocks(blocks.records(), thresholds=(0.0, 0.6, 0.9)).groups[0]
    for point in found.sweep:
        verified = accepted = 0
        for logits, reached in zip(blocks.logits.astype(float), blocks.accepted, strict=True):
            length = 0
            while length < 7 and 1.0 / (1.0 + np.exp(-logits[length])) >= point.threshold:
                length += 1
            verified += length
            accepted += min(length, reached)
        assert point.verified == pytest.approx(verified / 500)
        assert point.accepted == pytest.approx(accepted / 500)
        assert point.wasted == pytest.approx((verified - accepted) / 500)
    rates = [point.acceptance_rate for point in found.sweep]
    assert rates == sorted(rates)  # type: ignore[type-var]  # the rate rises, the length falls
    assert found.sweep[0].accepted_length > found.sweep[-1].accepted_length


def test_a_trimmed_log_sweeps_with_its_model_named() -> None:
    blocks = simulate_leaky(128 * 80, 5)
    trimmed = blocks.records(trimmed_lengths(blocks.logits))
    group = diagnose_blocks(trimmed, thresholds=(0.0, 0.9)).groups[0]
    whole = diagnose_blocks(blocks.records(), thresholds=(0.0, 0.9)).groups[0]
    assert group.sweep[0].modelled_share > 0.2
    assert group.sweep[1].modelled_share < group.sweep[0].modelled_share
    for mine, exact in zip(group.sweep, whole.sweep, strict=True):
        assert mine.accepted_length == pytest.approx(exact.accepted_length, rel=0.04)


def test_wrong_input_is_named() -> None:
    with pytest.raises(ConfigurationError, match="thresholds"):
        diagnose_blocks(by_hand(), thresholds=(0.5, 1.5))
    with pytest.raises(FitRefusedError, match="no_rows"):
        diagnose_blocks(by_hand().select([4]))
