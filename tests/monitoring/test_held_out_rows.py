from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from calib.errors import FitRefusedError
from calib.records import AcceptanceRecords
from calib.statuses import Refusal
from monitoring.held_out_rows import held_out_rows
from tests.support.telemetry import synthetic_columns

ROWS = 600


def records(**changed: Any) -> AcceptanceRecords:
    columns = synthetic_columns(ROWS, gamma=3, prompts=40) | changed
    present = {name: values for name, values in columns.items() if values is not None}
    return AcceptanceRecords.from_columns(3, present)


def partly_unknown(name: str) -> list[str | None]:
    values: list[str | None] = list(synthetic_columns(ROWS, gamma=3, prompts=40)[name])
    values[17] = None
    return values


def test_prompts_never_lie_on_both_sides() -> None:
    rows = held_out_rows(records())
    assert (rows.kind, rows.salt is None) == ("prompt", False)
    assert rows.fit.prompt is not None
    assert rows.judged.prompt is not None
    assert set(rows.fit.prompt) & set(rows.judged.prompt) == set()
    assert len(rows.fit) + len(rows.judged) == ROWS
    assert rows.to_dict()["fit_keys"] == len(set(rows.fit.prompt))


@pytest.mark.parametrize("prompts", [None, partly_unknown("prompt")], ids=["none", "one unknown"])
def test_without_prompts_requests_are_kept_apart(prompts: Any) -> None:
    rows = held_out_rows(records(prompt=prompts))
    assert rows.kind == "request"
    assert rows.fit.request is not None
    assert rows.judged.request is not None
    assert set(rows.fit.request) & set(rows.judged.request) == set()
    assert rows.fit.prompt is None  # a prompt on both sides is no slip here
    assert "requests that the fit did not see" in rows.note


def test_without_either_the_later_rows_judge() -> None:
    whole = records(prompt=None, request=partly_unknown("request"))
    rows = held_out_rows(whole, share=0.25)
    assert (rows.kind, rows.salt, rows.fit_keys) == ("later_rows", None, None)
    assert len(rows.judged) == ROWS / 4
    joined = AcceptanceRecords.concatenate([rows.fit, rows.judged])
    assert np.array_equal(joined.confidence_logits, whole.confidence_logits)
    assert "later rows" in rows.note
    assert "a little too small" in rows.note


def test_one_prompt_alone_is_split_by_request() -> None:
    rows = held_out_rows(records(prompt=["same"] * ROWS))
    assert rows.kind == "request"
    only = held_out_rows(records(prompt=["same"] * ROWS, request=["r"] * ROWS))
    assert only.kind == "later_rows"
    assert len(only.fit) == ROWS / 2


def test_two_rows_are_enough_and_one_is_not() -> None:
    rows = held_out_rows(records(prompt=None, request=None).select([0, 1]))
    assert (len(rows.fit), len(rows.judged)) == (1, 1)
    for count in (0, 1):
        with pytest.raises(FitRefusedError) as caught:
            held_out_rows(records().select(slice(0, count)))
        assert caught.value.status == Refusal.NO_ROWS
