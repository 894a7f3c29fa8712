"""The exploration share in the answer that engines poll: by setting, and more under a warning."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import httpx

from dspark_calib_client.validation import Expected, read_publication
from monitoring.store.publications import raise_exploration
from tests.support.publications import publish
from tests.support.service import Service, empty_database, running_service

STS = {"Accept": "application/vnd.sglang.dspark-sts+json"}
PATIENCE = 30.0


def raised(service: Service, more: bool = True, publication: int = 1) -> None:
    """What the loop asks for, and what of it this process knows at once."""

    def work(connection: Any) -> bool:
        return raise_exploration(connection, "drafter", more, publication=publication)

    assert service.database.run(work)
    assert service.client.portal is not None
    service.client.portal.call(service.app.state.feed.refresh)


def test_engines_are_told_the_share(tmp_path: Path) -> None:
    with running_service(empty_database(tmp_path), exploration_share=0.005) as service:
        service.register()
        for gamma in (7, 3):
            answer = service.poll(gamma=gamma)
            expected = Expected("drafter", gamma, None)
            found = read_publication(answer.content, answer.headers["ETag"], expected)
            assert found.exploration == 0.005
        assert "exploration" not in json.loads(service.poll(headers=STS).content)


def test_a_warning_raises_it_under_the_same_publication(tmp_path: Path) -> None:
    address = empty_database(tmp_path)
    with running_service(address) as service, running_service(address) as replica:
        service.register()
        before, file = service.poll(), service.poll(headers=STS)
        version = service.etag()
        raised(service)
        raised_there = _polled_until(replica, before.headers["ETag"])
        after = service.poll(headers={"If-None-Match": before.headers["ETag"]})
        assert after.status_code == 200
        assert after.content == raised_there.content
        assert after.json() == before.json() | {"exploration": 0.005}
        assert after.headers["ETag"] != before.headers["ETag"]
        assert after.headers["Publication"] == before.headers["Publication"] == "1"
        assert service.poll(headers={"If-None-Match": after.headers["ETag"]}).status_code == 304
        assert service.poll(headers=STS).content == file.content
        assert service.etag() == version
    with running_service(address, exploration_share=0.02) as restarted:
        assert restarted.poll().json()["exploration"] == 0.02  # never lowered
    with running_service(address) as restarted:
        assert restarted.poll().content == after.content
        raised(restarted, more=False)
        assert restarted.poll().content == before.content
        raised(restarted)
        publish(restarted.database, [1.5] * 7)
        assert "exploration" not in _polled_until(restarted, after.headers["ETag"]).json()


def test_a_held_poll_hears_of_it(tmp_path: Path) -> None:
    with running_service(empty_database(tmp_path)) as service:
        service.register()
        tag = service.poll().headers["ETag"]
        asked = threading.Thread(target=_when_held, args=(service,))
        asked.start()
        answer = service.poll(wait=30, headers={"If-None-Match": tag})
        asked.join(PATIENCE)
        assert answer.json()["exploration"] == 0.005


def _polled_until(service: Service, tag: str) -> httpx.Response:
    """The first answer that is news to who holds ``tag``."""
    return service.poll(wait=30, headers={"If-None-Match": tag})


def _when_held(service: Service) -> None:
    ends = threading.Event()
    for _ in range(int(PATIENCE / 0.01)):
        if service.app.state.feed.waiting or ends.wait(0.01):
            break
    with service.database.write() as connection:
        raise_exploration(connection, "drafter", True, publication=1)
