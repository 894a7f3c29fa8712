from __future__ import annotations

import numpy as np
import pytest

from calib.errors import ConfigurationError
from calib.record_schema import Flag
from calib.records import AcceptanceRecords
from monitoring.store.database import Database
from monitoring.store.errors import NotFoundError
from monitoring.windows import records_digest, window_of
from tests.monitoring.worker_support import DRAFTER, registered, stored
from tests.support.telemetry import synthetic_columns

GAMMA = 2


def rows_of_engine(count: int, first_step: int = 0) -> AcceptanceRecords:
    """Rows that can be told apart, their step in the context length as well."""
    steps = np.arange(first_step, first_step + count)
    return AcceptanceRecords.from_columns(
        GAMMA,
        synthetic_columns(count, gamma=GAMMA)
        | {
            "engine": np.full(count, "engine-1", dtype=object),
            "step": steps,
            "request": ["r"] * count,
        }
        | {"context_length": steps.astype(np.int32)},
    )


def test_an_empty_window_is_no_error(database: Database) -> None:
    registered(database, GAMMA)
    window = window_of(database, DRAFTER, rows=100)
    assert (len(window.records), window.records.gamma) == (0, GAMMA)
    assert (window.first_batch, window.last_batch, window.batches) == (None, None, 0)
    assert window.to_dict()["usable"] == 0


def test_all_rows_come_back_in_the_order_they_were_stored(database: Database) -> None:
    registered(database, GAMMA)
    sent = rows_of_engine(90)
    ids = stored(database, sent, batches=3)
    window = window_of(database, DRAFTER, rows=1000)
    assert window.records.equals(sent)
    assert (window.first_batch, window.last_batch, window.batches) == (ids[0], ids[-1], 3)
    assert (window.duplicates_dropped, window.older_dropped) == (0, 0)


def test_only_the_newest_rows_are_read(database: Database) -> None:
    registered(database, GAMMA)
    ids = stored(database, rows_of_engine(100), batches=10)
    window = window_of(database, DRAFTER, rows=25)
    assert window.records.context_length is not None
    assert window.records.context_length.tolist() == list(range(75, 100))
    assert window.first_batch == ids[7]  # three batches of ten hold 25 rows
    assert window.older_dropped == 5


def test_rows_sent_again_in_another_batch_count_once(database: Database) -> None:
    registered(database, GAMMA)
    stored(database, rows_of_engine(30))
    stored(database, rows_of_engine(30, first_step=20))  # steps 20 … 29 for the second time
    window = window_of(database, DRAFTER, rows=1000)
    assert window.duplicates_dropped == 10
    assert window.records.context_length is not None
    assert window.records.context_length.tolist() == list(range(50))


def test_excluded_rows_stay_and_are_counted(database: Database) -> None:
    registered(database, GAMMA)
    stored(database, rows_of_engine(40).with_flag(Flag.REPLAY, [3, 5]))
    found = window_of(database, DRAFTER, rows=1000).to_dict()
    assert (found["rows"], found["usable"], found["excluded"]["replay"]) == (40, 38, 2)


def test_batches_up_to_a_given_one_can_be_left_out(database: Database) -> None:
    registered(database, GAMMA)
    ids = stored(database, rows_of_engine(40), batches=4)
    later = window_of(database, DRAFTER, rows=1000, after_batch=ids[1])
    assert (later.first_batch, len(later.records)) == (ids[2], 20)
    assert len(window_of(database, DRAFTER, rows=1000, after_batch=ids[3]).records) == 0


def test_columns_that_only_some_engines_send_are_unknown_elsewhere(database: Database) -> None:
    registered(database, GAMMA)
    columns = synthetic_columns(10, gamma=GAMMA)
    stored(database, AcceptanceRecords.from_columns(GAMMA, columns))
    del columns["prompt"]
    stored(database, AcceptanceRecords.from_columns(GAMMA, columns))
    prompts = window_of(database, DRAFTER, rows=100).records.prompt
    assert prompts is not None
    assert [prompt is None for prompt in prompts] == [False] * 10 + [True] * 10


def test_wrong_questions_are_refused(database: Database) -> None:
    registered(database, GAMMA)
    with pytest.raises(ConfigurationError, match="rows"):
        window_of(database, DRAFTER, rows=0)
    with pytest.raises(NotFoundError):
        window_of(database, "nobody", rows=10)


def test_a_frozen_window_is_the_same_rows_however_much_came_later(database: Database) -> None:
    registered(database, GAMMA)
    ids = stored(database, rows_of_engine(100), batches=10)
    asked = {"rows": 35, "after_batch": ids[4], "through_batch": ids[8]}
    frozen = window_of(database, DRAFTER, **asked)
    assert frozen.records.context_length is not None
    assert frozen.records.context_length.tolist() == list(range(55, 90))
    assert (frozen.first_batch, frozen.last_batch) == (ids[5], ids[8])
    stored(database, rows_of_engine(50, 100))
    again = window_of(database, DRAFTER, **asked)
    assert again.to_dict() == frozen.to_dict()
    assert again.to_dict()["digest"] == records_digest(frozen.records)


def test_digest_is_of_the_content_in_its_order() -> None:
    rows = rows_of_engine(10)
    assert records_digest(rows) == records_digest(rows.select(slice(None)))
    assert records_digest(rows) != records_digest(rows.select(np.arange(10)[::-1]))
    assert records_digest(rows) != records_digest(rows.with_flag(Flag.WARMUP, [3]))
    assert records_digest(rows.select(slice(0, 0))) != records_digest(AcceptanceRecords.empty(3))
