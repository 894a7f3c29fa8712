"""POST …/telemetry: durable before it is acknowledged, once however often it is sent."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import zstandard

from calib.calibration_key import CalibrationKey
from calib.record_schema import Flag
from monitoring.store.telemetry import BatchToStore, store_batches
from monitoring.store.tokens import create_token
from tests.api.ingest_service import (
    ARROW,
    DRAFTER,
    JSON,
    PATH,
    IngestService,
    ingest_service,
    key,
)
from tests.calib.record_batches import plain_records
from tests.monitoring.batch_bodies import arrow_stream, columns_of, json_columns, json_rows, row

KEYED = {"Idempotency-Key": "8e03978e-40d5"}


@pytest.fixture
def service(tmp_path: Path) -> Iterator[IngestService]:
    with ingest_service(f"sqlite:///{tmp_path / 'store.db'}") as running:
        yield running


def accepted(answer: httpx.Response) -> dict[str, Any]:
    assert answer.status_code == 202, answer.text
    assert answer.headers["content-type"] == JSON
    found: dict[str, Any] = answer.json()
    return found


def problem(answer: httpx.Response) -> tuple[int, str]:
    assert answer.headers["content-type"] == "application/problem+json"
    return answer.status_code, answer.json()["type"].removeprefix("/problems/")


class TestRows:
    def test_good_rows_are_kept_and_bad_ones_named(self, service: IngestService) -> None:
        rows = [row(step=1), row(verified=9), row(step=2), row(confidence_logits=[True, 1, 2])]
        answer = accepted(service.post(json_rows(rows)))
        assert answer == {
            "accepted": 2,
            "duplicates": 0,
            "excluded": 0,
            "rejected": [
                {"row": 1, "field": "verified", "reason": "got 9; give a whole number from 0 to 3"},
                {
                    "row": 3,
                    "field": "confidence_logits",
                    "reason": "got True; position 1: give a finite number",
                },
            ],
            "rejected_total": 2,
            "warnings": [],
        }
        stored = service.stored()
        assert stored.step is not None
        assert stored.step.tolist() == [1, 2]
        counters = service.counters()
        assert (counters.rows, counters.rejected, counters.batches) == (2, 2, 1)

    def test_every_form_stores_the_same_rows(self, service: IngestService) -> None:
        sent = plain_records(6, 3)
        columns = columns_of([row(domain="γ:ß", engine="e")])
        accepted(service.post(arrow_stream([row()]), media_type=ARROW))
        accepted(service.post(json_columns(columns)))
        body = json_columns(columns)
        for coding, packed in (
            ("gzip", gzip.compress(body)),
            ("zstd", zstandard.compress(body)),
            ("identity", body),
        ):
            accepted(service.post(packed, {"Content-Encoding": coding}))
        batches = service.batches()
        assert len({batch.payload for batch in batches[1:]}) == 1
        assert [batch.engine for batch in batches] == [None, "e", "e", "e", "e"]
        assert len(sent) == 6

    def test_a_batch_without_a_good_row_is_refused(self, service: IngestService) -> None:
        answer = service.post(json_rows([row(verified=9)] * 1200))
        assert problem(answer) == (422, "no-valid-rows")
        body = answer.json()
        assert (len(body["rejected"]), body["rejected_total"]) == (1000, 1200)
        assert body["rejected"][0]["field"] == "verified"
        counters = service.counters()
        assert (counters.rows, counters.rejected, counters.batches) == (0, 1200, 0)

    def test_r40_impossible_lengths(self, service: IngestService) -> None:
        for lengths in (
            {"verified": 2, "accepted": -1},
            {"verified": 2, "accepted": 3},
            {"verified": 9, "accepted": 1},
        ):
            assert problem(service.post(json_rows([row(**lengths)])))[0] == 422
        assert service.counters().rows == 0
        mixed = accepted(service.post(json_rows([row(), row(verified=2, accepted=3)])))
        assert (mixed["accepted"], mixed["rejected_total"]) == (1, 1)

    def test_r41_the_same_block_counts_once(self, service: IngestService) -> None:
        one = row(engine="e", request="r", step=1)
        rows = [one, one, one | {"flags": int(Flag.REPLAY)}]
        answer = accepted(service.post(json_rows(rows)))
        assert (answer["accepted"], answer["duplicates"]) == (1, 2)
        counters = service.counters()
        assert (counters.rows, counters.duplicates) == (1, 2)

    def test_r49_the_slot_convention_is_the_drafters(self, service: IngestService) -> None:
        service.register("anchored", slot_convention="anchor_included")
        sent = row(confidence_logits=[9.0, 1.0, 2.0, 3.0], verified=4, accepted=2)
        path = PATH.replace(DRAFTER, "anchored")
        accepted(service.post(json_rows([sent]), path=path))
        stored = service.stored("anchored")
        assert stored.confidence_logits.tolist() == [[1.0, 2.0, 3.0]]
        assert problem(service.post(json_rows([sent]))) == (422, "no-valid-rows")
        assert problem(service.post(json_rows([row()]), path=path)) == (422, "no-valid-rows")

    def test_r51_r52_excluded_rows_are_accepted_and_counted(self, service: IngestService) -> None:
        rows = [row(accepted=0, flags=int(Flag.WARMUP))] * 50
        rows += [row(flags=int(Flag.FORCED_ACCEPTANCE))] * 5 + [row()] * 500
        answer = accepted(service.post(json_rows(rows)))
        assert (answer["accepted"], answer["excluded"]) == (555, 55)
        counters = service.counters()
        assert (counters.rows, counters.excluded) == (555, 55)
        assert len(service.stored().fitting_rows()) == 500

    def test_r25_probabilities_are_taken_with_a_warning(self, service: IngestService) -> None:
        rows = [row(confidence_logits=[0.92, 0.88, 0.1])] * 40
        assert accepted(service.post(json_rows(rows)))["warnings"] == ["looks_like_probabilities"]
        assert service.counters().rows == 40

    @pytest.mark.parametrize("gamma", [2, 4])
    def test_another_gamma_is_refused(self, service: IngestService, gamma: int) -> None:
        for answer in (
            service.post(json_rows([row(gamma)], gamma)),
            service.post(arrow_stream([row(gamma)], gamma), media_type=ARROW),
        ):
            assert problem(answer) == (422, "invalid-request")
            assert answer.json()["errors"][0]["pointer"] == "#/gamma"
        assert service.counters().rejected == 2

    def test_the_query_names_the_engine_of_rows_that_do_not(self, service: IngestService) -> None:
        rows = [row(engine="a"), row()]
        accepted(service.post(json_rows(rows), path=f"{PATH}?engine=b"))
        stored = service.stored()
        assert stored.engine is not None
        assert stored.engine.tolist() == ["a", "b"]
        assert service.batches()[0].engine == "b"

    def test_r64_rows_of_another_key_never_mix_in(self, service: IngestService) -> None:
        own = CalibrationKey.from_dict(key(3))
        bodies = ((json_rows([row()]), JSON), (arrow_stream([row()]), ARROW))
        for body, media_type in bodies:
            accepted(service.post(body, path=f"{PATH}?key={own.digest}", media_type=media_type))
        before = service.counters()
        changes = ({"target_revision": "w2"}, {"draft_model": "another"}, {"gamma": 2})
        for given in (replace(own, **change).digest for change in changes):
            for query in (f"key={given}", f"key={given}&key={own.digest}"):
                for body, media_type in bodies:
                    answer = service.post(
                        body, KEYED, path=f"{PATH}?{query}", media_type=media_type
                    )
                    assert problem(answer) == (409, "calibration-key-mismatch")
                    said = answer.json()
                    assert (said["expected_key"], said["given_key"]) == (own.digest, given)
        assert service.counters() == before
        # The refusal is not an answer to keep: the same request may come with the right key.
        accepted(service.post(bodies[0][0], KEYED, path=f"{PATH}?key={own.digest}"))

    @pytest.mark.parametrize("given", ["", "none", "A" * 64, "0" * 63])
    def test_a_key_that_is_no_digest(self, service: IngestService, given: str) -> None:
        answer = service.post(json_rows([row()]), path=f"{PATH}?key={given}")
        assert problem(answer) == (422, "invalid-request")
        assert answer.json()["errors"][0]["pointer"] == "query:key"
        assert service.counters().rows == 0

    @pytest.mark.slow
    def test_the_key_is_described(self, service: IngestService) -> None:
        paths = service.run(service.client.get("/openapi.json")).json()["paths"]
        call = paths["/v1/drafters/{drafter}/telemetry"]["post"]
        given = next(entry for entry in call["parameters"] if entry["name"] == "key")
        assert (given["in"], given["required"]) == ("query", False)
        assert given["schema"]["pattern"] == "^[0-9a-f]{64}$"
        examples = call["responses"]["409"]["content"]["application/problem+json"]["examples"]
        assert "calibration-key-mismatch" in examples

    def test_an_unknown_drafter(self, service: IngestService) -> None:
        answer = service.post(json_rows([row()]), path="/v1/drafters/nobody/telemetry")
        assert problem(answer) == (404, "drafter-not-found")


class TestLimits:
    @pytest.fixture
    def service(self, tmp_path: Path) -> Iterator[IngestService]:
        url = f"sqlite:///{tmp_path / 'store.db'}"
        limits = {"max_body_bytes": 2000, "max_decompressed_bytes": 5000, "max_batch_rows": 20}
        with ingest_service(url, **limits) as running:
            yield running

    def test_bodies(self, service: IngestService) -> None:
        body = json_rows([row()] * 19)
        assert len(body) < 2000
        accepted(service.post(body))
        large = json_rows([row()] * 60)
        answer = service.post(large)
        assert problem(answer) == (413, "content-too-large")
        assert answer.json()["limit_bytes"] == 2000
        assert problem(service.post(gzip.compress(large), {"Content-Encoding": "gzip"})) == (
            413,
            "content-too-large",
        )
        assert service.counters().rows == 19

    def test_decompressed_bodies(self, service: IngestService) -> None:
        bomb = gzip.compress(b" " * 1_000_000)
        assert len(bomb) < 2000
        answer = service.post(bomb, {"Content-Encoding": "gzip"})
        assert problem(answer) == (413, "content-too-large")
        assert answer.json()["limit_bytes"] == 5000

    def test_rows(self, service: IngestService) -> None:
        answer = service.post(gzip.compress(json_rows([row()] * 21)), {"Content-Encoding": "gzip"})
        assert problem(answer) == (413, "content-too-large")
        assert answer.json()["limit_rows"] == 20


def test_a_full_memory_answers_429_and_recovers(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    with ingest_service(url, ingest_pending_bytes=3000) as service:
        pending = service.app.state.ingest.pending
        body = json_rows([row()] * 20)
        # What it unfolds to counts as well.
        packed = gzip.compress(json_rows([row()] * 40))
        assert len(packed) < 1000 < 3000 - len(body)
        with pending.reserve() as others:
            others.grow(2000)
            for sent, headers in ((body, {}), (packed, {"Content-Encoding": "gzip"})):
                answer = service.post(sent, headers)
                assert problem(answer) == (429, "too-many-requests")
                assert int(answer.headers["Retry-After"]) >= 1
        accepted(service.post(body))
        # What is larger than the memory will never fit: no reason to come again.
        for sent, headers in (
            (json_rows([row()] * 60), {}),
            (gzip.compress(json_rows([row()] * 60)), {"Content-Encoding": "gzip"}),
        ):
            answer = service.post(sent, headers)
            assert problem(answer) == (413, "content-too-large")
            assert "Retry-After" not in answer.headers
        assert pending.used == 0
        accepted(service.post(body))
        assert service.counters().rows == 40


class TestIdempotency:
    def test_the_same_request_is_done_once_and_answered_twice(self, service: IngestService) -> None:
        body = json_rows([row(), row(verified=9)])
        first = service.post(body, KEYED)
        again = service.post(body, KEYED)
        assert accepted(first) == accepted(again)
        assert first.content == again.content
        assert "Idempotency-Replayed" not in first.headers
        assert again.headers["Idempotency-Replayed"] == "true"
        counters = service.counters()
        assert (counters.rows, counters.batches, counters.rejected) == (1, 1, 1)

    def test_another_body_is_refused(self, service: IngestService) -> None:
        accepted(service.post(json_rows([row()]), KEYED))
        answer = service.post(json_rows([row(), row()]), KEYED)
        assert problem(answer) == (422, "idempotency-key-reused")
        assert service.counters().rows == 1

    def test_without_a_key_every_request_counts(self, service: IngestService) -> None:
        body = json_rows([row()])
        accepted(service.post(body))
        accepted(service.post(body))
        assert service.counters().rows == 2

    def test_a_refused_request_does_not_use_up_its_key(self, service: IngestService) -> None:
        assert service.post(json_rows([row(verified=9)]), KEYED).status_code == 422
        assert service.post(b"{", KEYED).status_code == 400
        accepted(service.post(json_rows([row()]), KEYED))

    def test_requests_that_overlap(self, service: IngestService) -> None:
        body = json_rows([row()])

        async def both() -> list[httpx.Response]:
            headers = {"Content-Type": JSON, **KEYED}
            posts = [service.client.post(PATH, content=body, headers=headers) for _ in range(8)]
            return await asyncio.gather(*posts)

        answers = service.run(both())
        statuses = [answer.status_code for answer in answers]
        assert statuses.count(202) >= 1
        assert set(statuses) <= {202, 409}
        running = [answer for answer in answers if answer.status_code == 409]
        assert all(problem(answer)[1] == "request-in-progress" for answer in running)
        assert all("Retry-After" in answer.headers for answer in running)
        assert service.counters().rows == 1
        accepted(service.post(body, KEYED))

    def test_another_replica_was_faster(self, service: IngestService) -> None:
        """The same request is stored elsewhere between the look for its answer and the commit."""
        queue = service.app.state.ingest
        submit = queue.submit

        async def late(batch: BatchToStore, **options: Any) -> int:
            elsewhere = replace(batch, answer=b'{"accepted":1,"by":"another"}')
            service.database.run(lambda connection: store_batches(connection, [elsewhere]))
            found: int = await submit(batch, **options)
            return found

        queue.submit = late
        answer = service.post(json_rows([row()]), KEYED)
        assert accepted(answer) == {"accepted": 1, "by": "another"}
        assert answer.headers["Idempotency-Replayed"] == "true"
        assert service.counters().rows == 1


class TestInterruption:
    def test_a_request_that_is_cancelled_after_its_body_commits_once(
        self, service: IngestService
    ) -> None:
        body = json_rows([row()])

        async def cancelled() -> None:
            headers = {"Content-Type": JSON, **KEYED}
            task = asyncio.ensure_future(service.client.post(PATH, content=body, headers=headers))
            queue = service.app.state.ingest
            while not queue._tasks:
                await asyncio.sleep(0.001)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            while queue._tasks:
                await asyncio.sleep(0.001)

        service.run(cancelled())
        assert service.counters().rows == 1
        accepted(service.post(body, KEYED))
        assert service.counters().rows == 1

    def test_two_tokens_may_use_one_key(self, service: IngestService) -> None:
        secrets = [
            service.database.run(lambda c, name=name: create_token(c, name, ["write:telemetry"]))[1]
            for name in ("one", "two")
        ]
        service.app.state.auth._answers.clear()
        for secret in secrets:
            headers = {"Authorization": f"Bearer {secret}", **KEYED}
            accepted(service.post(json_rows([row()]), headers))
        assert service.counters().rows == 2


def test_tokens_need_the_scope(service: IngestService) -> None:
    secret = service.database.run(lambda c: create_token(c, "reader", ["read:temperatures"]))[1]
    service.app.state.auth._answers.clear()
    body = json_rows([row()])
    assert problem(service.post(body)) == (401, "unauthenticated")
    answer = service.post(body, {"Authorization": f"Bearer {secret}"})
    assert problem(answer) == (403, "missing-scope")
    assert service.counters().rows == 0


def test_answers_are_valid_json_whatever_the_reason_holds(service: IngestService) -> None:
    body = b'{"gamma":3,"rows":[{"\\ud800\\u0000":NaN,"verified":1e999},{"domain":"\\u202e"}]}'
    answer = service.post(body)
    assert problem(answer) == (422, "no-valid-rows")

    def refuse(word: str) -> None:
        raise AssertionError(word)

    json.loads(answer.content, parse_constant=refuse)
    answer.content.decode("ascii")


def test_parallel_senders_lose_and_double_nothing(service: IngestService) -> None:
    async def send(number: int) -> httpx.Response:
        rows = [row(engine=f"e{number}", request="r", step=step) for step in range(5)]
        headers = {"Content-Type": JSON, "Idempotency-Key": f"key-{number}"}
        return await service.client.post(PATH, content=json_rows(rows), headers=headers)

    async def all_of_them() -> list[httpx.Response]:
        return await asyncio.gather(*[send(number) for number in range(100)])

    answers = service.run(all_of_them())
    assert {answer.status_code for answer in answers} == {202}
    stored = service.stored()
    assert stored.engine is not None
    assert stored.step is not None
    blocks = set(zip(stored.engine.tolist(), stored.step.tolist(), strict=True))
    assert len(blocks) == len(stored) == 500
