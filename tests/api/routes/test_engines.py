from __future__ import annotations

from monitoring.store.engines import EngineSighting, record_sightings
from tests.support.service import Service

PATH = "/v1/drafters/drafter/engines"


def test_the_fleet_is_told_apart(service: Service) -> None:
    service.register()
    service.publish([1.5] * 7)
    service.poll(engine="new", client="0.1.0", applied_publication=2, applied_revision=1)
    service.poll(engine="old", applied_publication=1, state="stale")
    service.poll(engine="plain")
    long_ago = service.database.clock() - 1000.0
    sighting = EngineSighting("drafter", "gone", None, 2, 1, "fresh", long_ago)
    with service.database.write() as connection:
        record_sightings(connection, [sighting])
    body = service.client.get(PATH).json()
    assert (body["publication"], body["revision"]) == (2, 1)
    found = {engine["engine"]: engine["status"] for engine in body["engines"]}
    assert found == {"gone": "silent", "new": "on_champion", "old": "behind", "plain": "unreported"}
    counts = (body["on_champion"], body["behind"], body["silent"], body["unreported"])
    assert counts == (1, 1, 1, 1)
    gone, new, *_ = body["engines"]
    assert gone["silent_seconds"] >= 1000.0
    assert (new["client_version"], new["applied_publication"], new["applied_revision"]) == (
        "0.1.0",
        2,
        1,
    )


def test_an_engine_catches_up(service: Service) -> None:
    service.register()
    service.poll(engine="a", applied_publication=1)
    assert service.client.get(PATH).json()["on_champion"] == 1
    service.publish([1.5] * 7)
    assert service.client.get(PATH).json()["behind"] == 1
    service.poll(engine="a", applied_publication=2)
    assert service.client.get(PATH).json()["on_champion"] == 1


def test_engines_that_are_refused_are_not_counted(service: Service) -> None:
    service.register()
    service.poll(engine="wrong", key="0" * 64)
    service.poll(engine="long", gamma=9)
    service.poll("nobody", engine="lost")
    assert service.client.get(PATH).json()["engines"] == []


def test_an_unknown_drafter_is_404(service: Service) -> None:
    assert service.client.get("/v1/drafters/nobody/engines").status_code == 404
