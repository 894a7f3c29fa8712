from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calib.errors import RecordError
from calib.tenant_weights import capped_weights


def test_r53_a_tenant_with_95_percent_is_capped_and_its_share_named() -> None:
    tenants = ["big"] * 95 + ["a"] * 3 + ["b"] * 2
    result = capped_weights(tenants, 0.5)
    assert result.shares["big"] == 0.95
    assert result.capped == ("big",)
    assert result.weighted_shares["big"] == pytest.approx(0.5)
    # 5 rows of weight 1 are half of the total, so 95 rows share another 5.
    assert result.weights[:95] == pytest.approx(5 / 95)
    assert result.weights[95:].tolist() == [1.0] * 5


def test_nobody_above_the_cap_means_weights_of_one() -> None:
    result = capped_weights(["a", "b", "a", "b"], 0.5)
    assert result.weights.tolist() == [1.0] * 4
    assert result.capped == ()


def test_a_cap_that_nobody_could_keep_becomes_equal_shares() -> None:
    result = capped_weights(["a"] * 90 + ["b"] * 10, 0.2)
    assert result.max_share == 0.5
    assert result.weighted_shares == pytest.approx({"a": 0.5, "b": 0.5})
    alone = capped_weights(["a"] * 4, 0.2)
    assert (alone.max_share, alone.weights.tolist()) == (1.0, [1.0] * 4)


def test_two_tenants_can_be_capped_at_once() -> None:
    result = capped_weights(["a"] * 60 + ["b"] * 30 + ["c"] * 10, 0.4)
    assert result.capped == ("a", "b")
    assert result.weighted_shares == pytest.approx({"a": 0.4, "b": 0.4, "c": 0.2})


def test_unknown_tenants_count_as_one() -> None:
    result = capped_weights(np.array([None] * 9 + ["a"], dtype=object), 0.5)
    assert result.shares[None] == 0.9
    assert result.capped == (None,)


def test_no_rows_have_no_weights() -> None:
    result = capped_weights([], 0.5)
    assert result.weights.shape == (0,)
    assert result.shares == {}


@pytest.mark.property
@given(
    counts=st.lists(st.integers(1, 60), min_size=1, max_size=8),
    max_share=st.floats(0.01, 1.0),
)
def test_the_cap_holds_and_small_tenants_keep_weight_one(
    counts: list[int], max_share: float
) -> None:
    tenants = [f"t{index}" for index, count in enumerate(counts) for _ in range(count)]
    result = capped_weights(tenants, max_share)
    assert result.max_share == max(max_share, 1 / len(counts))
    assert max(result.weighted_shares.values()) <= result.max_share * (1 + 1e-6)
    assert ((result.weights > 0) & (result.weights <= 1)).all()
    assert result.weights.max() == pytest.approx(1.0)
    assert sum(result.weighted_shares.values()) == pytest.approx(1.0)
    kept = [count * result.weights[tenants.index(f"t{i}")] for i, count in enumerate(counts)]
    assert all(
        a <= b * (1 + 1e-9)
        for (n, a) in zip(counts, kept, strict=True)
        for (m, b) in zip(counts, kept, strict=True)
        if n <= m
    )


@pytest.mark.parametrize("share", [0, -0.1, 1.5, float("nan"), True])
def test_a_share_outside_its_range_is_refused(share: Any) -> None:
    with pytest.raises(RecordError, match="max_share"):
        capped_weights(["a"], share)
