from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calib.errors import ConfigurationError, FitRefusedError, RecordError
from calib.prompt_split import DEFAULT_SALT, evaluation_keys, split_by_prompt
from calib.records import AcceptanceRecords
from calib.statuses import Refusal


def records(**columns: Any) -> AcceptanceRecords:
    rows = len(next(iter(columns.values())))
    required = {
        "confidence_logits": np.arange(2.0 * rows).reshape(rows, 2),
        "verified": [2] * rows,
        "accepted": [1] * rows,
    }
    return AcceptanceRecords.from_columns(2, required | columns)


def many(rows: int = 400, prompts: int = 50) -> AcceptanceRecords:
    return records(prompt=[f"p{row % prompts}" for row in range(rows)])


def test_no_prompt_lies_on_both_sides_and_no_row_is_lost() -> None:
    split = split_by_prompt(many())
    assert split.fit.prompt is not None
    assert split.evaluation.prompt is not None
    assert not set(split.fit.prompt) & set(split.evaluation.prompt)
    rows = np.concatenate([split.fit.confidence_logits, split.evaluation.confidence_logits])
    assert np.array_equal(np.sort(rows[:, 0]), many().confidence_logits[:, 0])
    assert split.fit_keys == len(set(split.fit.prompt))
    assert split.evaluation_keys == len(set(split.evaluation.prompt))
    assert (split.column, split.salt, split.evaluation_share) == ("prompt", DEFAULT_SALT, 0.5)


def test_membership_is_the_salted_sha256_and_nothing_else() -> None:
    keys = {f"p{index}" for index in range(200)}
    by_hand = {
        key
        for key in keys
        if int(hashlib.sha256(b"salt\x00" + key.encode()).hexdigest()[:16], 16) / 2**64 < 0.3
    }
    assert evaluation_keys(keys, 0.3, "salt") == by_hand


def test_order_and_other_rows_do_not_move_a_prompt() -> None:
    whole = split_by_prompt(many())
    part = split_by_prompt(many().select(np.arange(399, 99, -1)))
    assert whole.evaluation.prompt is not None
    assert part.evaluation.prompt is not None
    assert set(part.evaluation.prompt) == set(whole.evaluation.prompt)


def test_another_salt_is_another_split() -> None:
    first, second = (split_by_prompt(many(), salt=salt).evaluation for salt in ("a", "b"))
    assert first.prompt is not None
    assert second.prompt is not None
    assert set(first.prompt) != set(second.prompt)


@pytest.mark.parametrize("share", [0.1, 0.5, 2 / 3])
def test_share_is_met_over_many_prompts(share: float) -> None:
    keys = {str(index) for index in range(20_000)}
    # Four standard errors of a share of 20,000 coins.
    assert len(evaluation_keys(keys, share, "s")) / 20_000 == pytest.approx(share, abs=0.0142)


@given(st.sets(st.text(max_size=5), max_size=30), st.floats(0.05, 0.9))
def test_a_larger_share_only_adds_prompts(keys: set[str], share: float) -> None:
    assert evaluation_keys(keys, share, "s") <= evaluation_keys(keys, share + 0.05, "s")


def test_missing_prompts_name_the_fallback() -> None:
    with pytest.raises(RecordError, match=r"prompt: got None; .*column='request'"):
        split_by_prompt(records(request=["r"] * 4))


def test_request_is_an_explicit_fallback() -> None:
    split = split_by_prompt(records(request=[f"r{i % 9}" for i in range(90)]), column="request")
    assert split.column == "request"
    assert split.fit.request is not None
    assert split.evaluation.request is not None
    assert not set(split.fit.request) & set(split.evaluation.request)


def test_missing_request_has_no_further_fallback() -> None:
    with pytest.raises(RecordError, match=r"request: got None; .*recorded apart"):
        split_by_prompt(many(), column="request")


def test_a_row_of_unknown_prompt_is_named() -> None:
    with pytest.raises(RecordError, match=r"row 1 \(2 such rows\)"):
        split_by_prompt(records(prompt=["a", None, "b", None]))


@pytest.mark.parametrize("rows", [1, 5])
def test_one_prompt_is_refused(rows: int) -> None:
    with pytest.raises(FitRefusedError, match="1 distinct value") as caught:
        split_by_prompt(records(prompt=["only"] * rows))
    assert caught.value.status == Refusal.NO_ROWS


@pytest.mark.parametrize("share", [0.0, 1.0, -0.2, float("nan"), True, "half", None])
def test_share_outside_its_range(share: Any) -> None:
    with pytest.raises(ConfigurationError, match="evaluation_share"):
        split_by_prompt(many(), evaluation_share=share)


def test_rows_are_no_key() -> None:
    with pytest.raises(ConfigurationError, match="never split by row"):
        split_by_prompt(many(), column="row")  # type: ignore[arg-type]
