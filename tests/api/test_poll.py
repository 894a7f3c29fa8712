from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.types import Message

from api.poll import Poll
from api.problems import ProblemError
from api.publication_feed import PublicationFeed
from tests.support.publications import publish
from tests.support.service import Service

PATIENCE = 30.0


@pytest.fixture
def feed(service: Service) -> PublicationFeed:
    service.register()
    found: PublicationFeed = service.app.state.feed
    return found


class Client:
    """One request, straight to the application, with a client that may go away."""

    def __init__(self, service: Service, query: str, tag: str | None = None) -> None:
        headers = [(b"host", b"127.0.0.1")]
        if tag is not None:
            headers.append((b"if-none-match", tag.encode()))
        self.scope: dict[str, Any] = {
            "type": "http",
            "method": "GET",
            "path": "/v1/drafters/drafter/temperatures",
            "query_string": query.encode(),
            "headers": headers,
            "path_params": {"drafter": "drafter"},
            "state": {},
            "app": service.app,
        }
        self.sent: list[Message] = []
        self.poll: Poll = service.app.state.poll
        self.left = asyncio.Event()
        self._asked = False

    async def receive(self) -> Message:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        self.sent.append(message)

    async def run(self) -> int | None:
        await self.poll(self.scope, self.receive, self.send)
        return self.sent[0]["status"] if self.sent else None


def on_loop(service: Service, story: Any) -> Any:
    """Run a coroutine on the application's own event loop."""
    portal = service.client.portal
    assert portal is not None
    return portal.call(story)


def test_a_client_that_goes_away_is_let_go(service: Service, feed: PublicationFeed) -> None:
    tag = service.poll().headers["ETag"]

    async def story() -> None:
        client = Client(service, "gamma=7&wait=60", tag)
        task = asyncio.create_task(client.run())
        async with asyncio.timeout(PATIENCE):
            while not feed.waiting:
                await asyncio.sleep(0)
            client.left.set()
            assert await task is None
        assert feed.waiting == 0

    on_loop(service, story)


def test_a_release_answers_what_is_held_with_304(service: Service, feed: PublicationFeed) -> None:
    tag = service.poll().headers["ETag"]

    async def story() -> None:
        clients = [Client(service, "gamma=7&wait=60", tag) for _ in range(20)]
        tasks = [asyncio.create_task(client.run()) for client in clients]
        async with asyncio.timeout(PATIENCE):
            while feed.waiting < 20:
                await asyncio.sleep(0)
            feed.release()
            assert await asyncio.gather(*tasks) == [304] * 20
            # And nobody else is held.
            assert await Client(service, "gamma=7&wait=60", tag).run() == 304

    on_loop(service, story)


def test_more_polls_than_may_be_held_are_told_to_come_back(
    service: Service, feed: PublicationFeed
) -> None:
    tag = service.poll().headers["ETag"]
    service.app.state.poll._most_waiting = 3

    async def story() -> None:
        clients = [Client(service, "gamma=7&wait=60", tag) for _ in range(3)]
        tasks = [asyncio.create_task(client.run()) for client in clients]
        async with asyncio.timeout(PATIENCE):
            while feed.waiting < 3:
                await asyncio.sleep(0)
            with pytest.raises(ProblemError) as caught:
                await Client(service, "gamma=7&wait=60", tag).run()
            assert caught.value.kind.slug == "overloaded"
            assert caught.value.headers["Retry-After"] == "60"
            assert await Client(service, "gamma=7", tag).run() == 304
            for client in clients:
                client.left.set()
            await asyncio.gather(*tasks)

    on_loop(service, story)


def test_a_token_revoked_while_a_poll_is_held_gets_nothing_new(
    service: Service, feed: PublicationFeed, monkeypatch: pytest.MonkeyPatch
) -> None:
    tag = service.poll().headers["ETag"]
    revoked = False
    poll: Poll = service.app.state.poll
    really = poll._auth.remembered

    def remembered(header: bytes | None) -> Any:
        if revoked:
            raise ProblemError("unauthenticated", "revoked")
        return really(header)

    monkeypatch.setattr(poll._auth, "remembered", remembered)

    async def story() -> None:
        nonlocal revoked
        await poll._auth.principal(None)
        client = Client(service, "gamma=7&wait=60", tag)
        task = asyncio.create_task(client.run())
        async with asyncio.timeout(PATIENCE):
            while not feed.waiting:
                await asyncio.sleep(0)
            revoked = True
            await asyncio.to_thread(publish, service.database, [1.5] * 7)
            with pytest.raises(ProblemError):
                await task

    on_loop(service, story)


@pytest.fixture
def waiter(service: Service) -> Iterator[list[tuple[float, Any]]]:
    """Polls with ``wait`` in a thread of its own; what it was answered, and after how long."""
    service.register()
    answers: list[tuple[float, Any]] = []
    tag = service.poll().headers["ETag"]

    def ask() -> None:
        started = time.monotonic()
        answer = service.poll(wait=30, headers={"If-None-Match": tag})
        answers.append((time.monotonic() - started, answer))

    thread = threading.Thread(target=ask)
    thread.start()
    deadline = time.monotonic() + PATIENCE
    while not service.app.state.feed.waiting and time.monotonic() < deadline:
        time.sleep(0.01)
    yield answers
    thread.join(PATIENCE)


def test_a_promotion_through_this_replica_wakes_the_poll(
    service: Service, waiter: list[tuple[float, Any]]
) -> None:
    service.publish([1.5] * 7)
    _wait_for(waiter)
    seconds, answer = waiter[0]
    assert seconds < 25
    assert answer.status_code == 200
    assert answer.json()["temperatures"] == [1.5] * 7
    assert answer.headers["Publication"] == "2"


def test_a_promotion_by_another_process_wakes_the_poll(
    service: Service, waiter: list[tuple[float, Any]]
) -> None:
    publish(service.database, [1.25] * 7)  # past the feed of this process
    _wait_for(waiter)
    assert json.loads(waiter[0][1].content)["temperatures"] == [1.25] * 7


def _wait_for(answers: list[tuple[float, Any]]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not answers and time.monotonic() < deadline:
        time.sleep(0.01)
    assert answers
