"""Streams built from recordings."""

from __future__ import annotations

import numpy as np
import pytest

from calib.errors import ConfigurationError, RecordError
from calib.records import AcceptanceRecords
from monitoring.replay import Stretch
from monitoring.replay_shifts import Stream, interleaved, shuffled
from tests.monitoring.loop_rows import rows


def recording() -> AcceptanceRecords:
    """Whole requests one after another, as the shipped recording is stored."""
    return AcceptanceRecords.from_columns(
        2,
        {
            "confidence_logits": np.arange(24, dtype=np.float32).reshape(12, 2),
            "verified": [2] * 12,
            "accepted": [1] * 12,
            "request": ["a"] * 4 + ["b"] * 4 + ["c"] * 4,
            "step": [0, 1, 2, 3] * 3,
            "step_requests": [3] * 12,
            "domain": ["math", "code"] * 6,
            "sampling_temperature": [1.0, 0.6, 0.0] * 4,
            "engine": ["e"] * 12,
        },
    )


def test_neighbours_in_the_stream_are_different_requests() -> None:
    found = interleaved(recording())
    assert found.request is not None
    assert found.request.tolist() == ["a", "b", "c"] * 4


def test_slices_come_one_after_another_in_the_order_asked_for() -> None:
    stream = Stream.of(recording()).ordered("sampling_temperature", ["1.0", "0"])
    assert stream.records.sampling_temperature is not None
    assert stream.records.sampling_temperature.tolist() == [1.0] * 4 + [0.0] * 4
    assert stream.stretches == (
        Stretch("sampling_temperature=1.0", 0, 4),
        Stretch("sampling_temperature=0", 4, 4),
    )


def test_a_swap_brings_another_engine_and_says_whether_it_was_announced() -> None:
    stream = Stream.of(recording()).then(recording(), "other", announced=True)
    assert len(stream.records) == 24
    assert stream.records.engine is not None
    assert stream.records.engine[12:].tolist() == ["other"] * 12
    assert stream.stretches[-1] == Stretch("other", 12, 12, announced=True)


def test_scaled_logits_are_told_as_synthetic() -> None:
    stream = Stream.of(recording()).scaled(1.6, 4)
    plain = interleaved(recording()).confidence_logits
    np.testing.assert_array_equal(stream.records.confidence_logits[:4], plain[:4])
    np.testing.assert_allclose(stream.records.confidence_logits[4:], 1.6 * plain[4:], rtol=1e-6)
    assert stream.synthetic == ("logits times 1.6 from row 4 on",)
    assert [stretch.rows for stretch in stream.stretches] == [4, 8]


def test_another_deal_keeps_each_request_whole_and_in_order() -> None:
    records = rows(1, 640, domain=["x"] * 640)
    dealt = shuffled(records, seed=5)
    assert dealt.step is not None
    assert dealt.request is not None
    order = interleaved(dealt)
    assert order.request is not None
    assert sorted(order.request[:64].tolist()) == sorted({f"r{k}" for k in range(64)})
    assert not np.array_equal(order.request[:64], records.request[:64])  # type: ignore[index]
    assert shuffled(records, seed=5).equals(dealt)


def test_what_cannot_be_built_is_refused() -> None:
    stream = Stream.of(recording())
    with pytest.raises(ConfigurationError, match="order by one of"):
        stream.ordered("tenant", ["x"])
    with pytest.raises(ConfigurationError, match="no row has this value"):
        stream.ordered("domain", ["law"])
    with pytest.raises(ConfigurationError, match="do not know it"):
        stream.ordered("adapter", ["x"])
    with pytest.raises(ConfigurationError, match="is a number"):
        stream.ordered("sampling_temperature", ["warm"])
    with pytest.raises(ConfigurationError, match="below 12"):
        stream.scaled(1.6, 12)
    with pytest.raises(ConfigurationError, match="above 0"):
        stream.scaled(0.0, 3)
    with pytest.raises(RecordError, match="another block size"):
        stream.then(rows(1, 10), "other", announced=False)
