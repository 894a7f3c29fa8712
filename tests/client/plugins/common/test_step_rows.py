"""Columns of many steps at once; lengths are worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dspark_calib_client.plugins.common.request_tags import RequestTags, Said
from dspark_calib_client.plugins.common.step_rows import StepRows, columns_of

GAMMA = 3


def tags(name: str, *stops: int, domain: str | None = None, heat: float = 1.0) -> RequestTags:
    said = Said(name, heat, {"domain": domain}, "domain", "tenant", None, 0, frozenset(stops))
    return RequestTags(lambda: said)


def step(*people: RequestTags, ids: list[list[int]], **changes: Any) -> StepRows:
    rows = len(people)
    usual = StepRows(
        tags=people,
        logits=np.zeros((rows, GAMMA), np.float32),
        ids=np.array(ids).reshape(rows, GAMMA),
        scheduled=np.full(rows, GAMMA),
        accepted=np.full(rows, 1),
        kept=np.full(rows, 1),
        bonus=np.full(rows, 7),
        context=np.full(rows, 100),
        step=1,
        timestamp=2.0,
        propensity=float("nan"),
        explored=False,
        greedy_draft=False,
        block_rule=False,
        forced=False,
        revision=0,
        form="identity",
    )
    return usual._replace(**changes)


def test_each_request_has_its_own_stop_tokens() -> None:
    people = (tags("a", 2), tags("b", 3), tags("c"))
    found, past = columns_of([step(*people, ids=[[11, 2, 3]] * 3)])
    assert found["verified"].tolist() == [2, 3, 3]
    assert found["flags"].tolist() == [16, 16, 0]
    assert past == 0


def test_an_end_in_one_step_leaves_out_the_rows_of_the_next() -> None:
    ends, goes_on = tags("a", 7), tags("b")
    ids = [[11, 12, 13]] * 2
    found, past = columns_of([step(ends, goes_on, ids=ids), step(goes_on, ends, ids=ids, step=2)])
    assert found["step"].tolist() == [1, 1, 2]
    assert found["step_requests"].tolist() == [2, 2, 2]
    assert past == 1
    again, past = columns_of([step(ends, ids=ids[:1])])  # and it stays ended
    assert (len(again["verified"]), past) == (0, 1)


def test_a_request_that_cannot_be_read_costs_the_others_nothing() -> None:
    odd = RequestTags(lambda: Said(*"too few"))
    found, past = columns_of([step(tags("a"), odd, ids=[[11, 12, 13]] * 2)])
    assert (len(found["verified"]), past) == (1, 1)


def test_rows_of_one_step_may_differ_in_revision_and_form() -> None:
    changes = {"revision": np.array([-1, 4]), "form": [None, "affine"]}
    first = step(tags("a"), tags("b"), ids=[[11, 12, 13]] * 2, **changes)
    found, _ = columns_of([first, step(tags("c"), ids=[[11, 12, 13]], revision=4, form="affine")])
    assert found["revision"].tolist() == [-1, 4, 4]
    assert found["applied_form"].tolist() == [None, "affine", "affine"]


def test_columns_that_nothing_is_known_of_are_left_out() -> None:
    plain = step(tags("a"), ids=[[11, 12, 13]])
    found, _ = columns_of([plain])
    assert not {"propensity", "explored", "domain", "tenant", "adapter"} & set(found)
    known = step(tags("b", domain="code"), ids=[[11, 12, 13]], propensity=0.5, explored=True)
    found, _ = columns_of([plain, known])
    assert np.array_equal(found["propensity"], [np.nan, 0.5], equal_nan=True)
    assert found["explored"].tolist() == [False, True]
    assert found["domain"].tolist() == [None, "code"]


def test_no_rows_are_columns_of_no_rows() -> None:
    found, past = columns_of([step(ids=[])])
    assert {len(cells) for cells in found.values()} == {0}
    assert past == 0


def test_logits_of_other_positions_are_a_fault() -> None:
    wider = np.zeros((1, GAMMA + 1), np.float32)
    with pytest.raises(ValueError, match="logits of"):
        columns_of([step(tags("a"), ids=[[11, 12, 13]], logits=wider)])
