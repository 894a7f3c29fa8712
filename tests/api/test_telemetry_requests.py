"""From a received body to a batch, or to the reason why there is none."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from api.pending_bytes import PendingBytes
from api.problems import ProblemError
from api.request_bodies import BodyForm
from api.telemetry_requests import (
    ARROW,
    JSON,
    BatchLimits,
    PreparedBatch,
    RefusedBatchError,
    SentBatch,
    prepare_batch,
    stored_answer,
)
from monitoring.ingest import records_of
from monitoring.store.database import Database
from monitoring.store.telemetry import StoredAnswer, store_batches
from tests.monitoring.batch_bodies import arrow_stream, json_rows, row
from tests.monitoring.store.conftest import (  # noqa: F401 - fixtures are found by their names
    sqlite_template,
    sqlite_url,
)
from tests.monitoring.store.store_fixtures import KEY, START, ManualClock, registered

LIMITS = BatchLimits(rows=1000, bytes=2**20)


@pytest.fixture
def store(sqlite_url: str, tmp_path: Path) -> Iterator[Database]:  # noqa: F811
    opened = Database.open(sqlite_url, clock=ManualClock())
    registered(opened)
    yield opened
    opened.close()


def sent(store: Database, **changes: Any) -> SentBatch:
    drafter = registered(store)
    plain = SentBatch(drafter, BodyForm(JSON, "identity"), None, "token", None)
    return replace(plain, **changes)


def prepare(store: Database, body: bytes, **changes: Any) -> PreparedBatch:
    found = prepare_any(store, body, **changes)
    assert isinstance(found, PreparedBatch)
    return found


def prepare_any(
    store: Database,
    body: bytes,
    *,
    limits: BatchLimits = LIMITS,
    pending: int = 2**24,
    **changes: Any,
) -> PreparedBatch | StoredAnswer:
    with PendingBytes(pending).reserve() as held:
        return prepare_batch(store, sent(store, **changes), body, limits, held)


def test_a_batch_holds_rows_and_answer(store: Database) -> None:
    body = json_rows([row(flags=1), row(verified=9), row(engine="e")])
    found = prepare(store, body)
    batch = found.batch
    assert (batch.drafter, batch.rows, batch.excluded, found.rejected) == ("code", 2, 1, 1)
    assert batch.received_at == START
    assert batch.idempotency is None
    assert len(records_of(batch.payload)) == 2
    assert json.loads(batch.answer) == {
        "accepted": 2,
        "duplicates": 0,
        "excluded": 1,
        "rejected": [
            {"row": 1, "field": "verified", "reason": "got 9; give a whole number from 0 to 3"}
        ],
        "rejected_total": 1,
        "warnings": [],
    }


def test_arrow_and_codings(store: Database) -> None:
    arrow = prepare(store, arrow_stream([row()]), form=BodyForm(ARROW, "identity"))
    zipped = gzip.compress(json_rows([row()]))
    packed = prepare(store, zipped, form=BodyForm(JSON, "gzip"))
    assert arrow.batch.payload == packed.batch.payload


@pytest.mark.parametrize(
    ("rows", "query", "expected"),
    [
        ([row()], None, None),
        ([row()], "q", "q"),
        ([row(engine="a"), row(engine="a")], None, "a"),
        ([row(engine="a"), row(engine="b")], None, None),
        ([row(engine="a"), row()], None, None),
    ],
)
def test_the_engine_of_a_batch(
    store: Database, rows: list[Any], query: str | None, expected: str | None
) -> None:
    assert prepare(store, json_rows(rows), engine=query).batch.engine == expected


def test_the_slot_convention_is_the_drafters(store: Database) -> None:
    """R49."""
    key = replace(KEY, slot_convention="anchor_included")
    drafter = registered(store, "anchored", key)
    body = json_rows([row(confidence_logits=[9.0, 1.0, 2.0, 3.0], verified=4, accepted=2)])
    found = prepare(store, body, drafter=drafter)
    records = records_of(found.batch.payload)
    assert records.confidence_logits.tolist() == [[1.0, 2.0, 3.0]]
    assert (records.verified.tolist(), records.accepted.tolist()) == ([3], [1])


def test_a_repeated_request_finds_its_answer(store: Database) -> None:
    body = json_rows([row()])
    first = prepare(store, body, key="k")
    assert first.digest
    store.run(lambda connection: store_batches(connection, [first.batch]))
    again = prepare_any(store, body, key="k")
    assert isinstance(again, StoredAnswer)
    assert again.answer == first.batch.answer
    packed = prepare_any(store, gzip.compress(body), key="k", form=BodyForm(JSON, "gzip"))
    assert isinstance(packed, StoredAnswer)


@pytest.mark.parametrize(
    "changes", [{"engine": "e"}, {"form": BodyForm(ARROW, "identity")}, {"body": b"other"}]
)
def test_another_request_with_the_key_is_refused(store: Database, changes: dict[str, Any]) -> None:
    body = json_rows([row()])
    first = prepare(store, body, key="k")
    store.run(lambda connection: store_batches(connection, [first.batch]))
    with pytest.raises(ProblemError) as caught:
        prepare_any(store, changes.pop("body", body), key="k", **changes)
    assert caught.value.kind.slug == "idempotency-key-reused"


def test_keys_belong_to_a_drafter_and_a_token_for_a_day(store: Database) -> None:
    body = json_rows([row()])
    first = prepare(store, body, key="k")
    store.run(lambda connection: store_batches(connection, [first.batch]))
    chat = registered(store, "chat")
    for changes in ({"drafter": chat}, {"token": "other"}, {"key": "K"}):
        assert isinstance(prepare_any(store, body, **{"key": "k"} | changes), PreparedBatch)
    clock: Any = store.clock
    clock.seconds += 24 * 3600 - 1
    assert isinstance(prepare_any(store, body, key="k"), StoredAnswer)
    clock.seconds += 2
    assert isinstance(prepare_any(store, body, key="k"), PreparedBatch)
    assert stored_answer(store, sent(store), "") is None


@pytest.mark.parametrize(
    ("body", "slug", "rejected"),
    [
        (b"{", "unreadable-request", 0),
        (json_rows([row()], 4), "invalid-request", 1),
        (json_rows([row(verified=9)] * 3), "no-valid-rows", 3),
        (json_rows([row()] * 1001), "content-too-large", 0),
    ],
)
def test_refused_batches(store: Database, body: bytes, slug: str, rejected: int) -> None:
    with pytest.raises(RefusedBatchError) as caught:
        prepare(store, body)
    assert (caught.value.problem.kind.slug, caught.value.rejected) == (slug, rejected)


def test_reasons_in_a_problem_are_capped_and_counted(store: Database) -> None:
    with pytest.raises(RefusedBatchError) as caught:
        prepare(store, json_rows([row(verified=9)] * 1500), limits=BatchLimits(2000, 2**20))
    extensions = caught.value.problem.extensions
    assert (len(extensions["rejected"]), extensions["rejected_total"]) == (1000, 1500)


def test_what_a_body_unfolds_to_is_limited_and_reserved(store: Database) -> None:
    body = gzip.compress(json_rows([row()] * 500))
    form = BodyForm(JSON, "gzip")
    with pytest.raises(ProblemError) as caught:
        prepare(store, body, form=form, limits=BatchLimits(1000, 1000))
    assert caught.value.kind.slug == "content-too-large"
    with pytest.raises(ProblemError) as caught:
        prepare(store, body, form=form, pending=1000)
    assert caught.value.kind.slug == "content-too-large"
    assert caught.value.extensions == {"limit_bytes": 1000}
