from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from calib.errors import ConfigurationError, FitRefusedError
from calib.record_schema import Flag
from calib.records import AcceptanceRecords
from calib.replay_steps import ReplaySteps, group_steps
from tests.calib.record_batches import plain_records


def log(**columns: Any) -> AcceptanceRecords:
    rows = len(next(iter(columns.values())))
    base = {
        "confidence_logits": [[0.5, 0.25]] * rows,
        "verified": [2] * rows,
        "accepted": [1] * rows,
    }
    return AcceptanceRecords.from_columns(2, {**base, **columns})


def grouped(records: AcceptanceRecords, known: Any = None, **options: Any) -> ReplaySteps:
    mask = np.ones(len(records), dtype=np.bool_) if known is None else np.array(known)
    return group_steps(records, mask, **options)


def steps_of(found: ReplaySteps) -> list[list[int]]:
    ends = found.starts.tolist()
    return [found.rows[a:b].tolist() for a, b in pairwise(ends)]


def test_rows_of_one_engine_and_step_ran_together() -> None:
    records = log(engine=["b", "a", "b", "a", "b"], step=[1, 1, 0, 1, 1])
    found = grouped(records)
    # Engines are numbered as they appear; steps ascend, rows keep their order.
    assert steps_of(found) == [[2], [0, 4], [1, 3]]
    assert found.streams.tolist() == [0, 0, 1]
    assert (found.steps, found.sizes.tolist(), found.left_out) == (3, [1, 2, 2], 0)
    assert found.step_of_row.tolist() == [0, 1, 1, 2, 2]


def test_ranks_are_streams_of_their_own() -> None:
    assert steps_of(grouped(log(rank=[0, 1, 0, 1], step=[5, 5, 5, 5]))) == [[0, 2], [1, 3]]


@pytest.mark.parametrize(
    ("columns", "known"),
    [
        ({"step_requests": [2, 2, 3, 3, 1]}, None),  # step 1 had three requests and shows two
        ({"flags": [0, 0, int(Flag.WARMUP), 0, 0]}, None),
        ({"anticipating": [False, False, False, True, False]}, None),
        ({}, [True, True, True, False, True]),
    ],
)
def test_a_step_that_lost_rows_is_not_replayed(columns: dict[str, Any], known: Any) -> None:
    found = grouped(log(step=[0, 0, 1, 1, 2], **columns), known)
    assert steps_of(found) == [[0, 1], [4]]
    assert found.left_out == 2


def test_rows_of_unknown_step_are_left_out() -> None:
    found = grouped(log(step=[0, None, 0, None]))
    assert steps_of(found) == [[0, 2]]
    assert found.left_out == 2


def test_requests_tell_rows_of_different_steps_apart() -> None:
    found = grouped(log(step=[0, 0, 1, 1, 2], request=["x", "y", "y", "z", "z"]))
    assert found.requests_named
    assert found.slots.tolist() == [0, 1, 1, 2, 2]
    assert found.mean_stay == 2  # five rows, three requests
    unnamed = grouped(log(step=[0, 0, 1, 1, 2]))
    assert unnamed.slots.tolist() == [0, 1, 0, 1, 0]
    assert unnamed.mean_stay == 1


def test_batches_of_a_stated_size_follow_time() -> None:
    found = grouped(log(step=[2, 0, 1, 0, 3]), batch_size=2)
    assert steps_of(found) == [[1, 3], [2, 0]]
    assert found.left_out == 1
    assert not found.requests_named
    plain = grouped(log(accepted=[1] * 5), [True, False, True, True, True], batch_size=2)
    assert steps_of(plain) == [[0, 2], [3, 4]]
    assert plain.left_out == 1


def test_nothing_to_replay_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="batch_size"):
        grouped(log(accepted=[1, 1]))
    with pytest.raises(ConfigurationError, match="batch_size"):
        grouped(log(accepted=[1, 1]), batch_size=0)
    with pytest.raises(FitRefusedError, match="complete step"):
        grouped(log(step=[0, 0]), [True, False])
    with pytest.raises(FitRefusedError):
        grouped(log(accepted=[1, 1]), batch_size=3)
    with pytest.raises(FitRefusedError):
        grouped(AcceptanceRecords.empty(2), batch_size=1)
    assert grouped(plain_records(), batch_size=1).steps > 0
