"""The plugin and the real service: rows pass its checks, its numbers reach the captured graph."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

torch = pytest.importorskip("torch")

from tests.client.plugins.sglang.host import (  # noqa: E402
    EOS,
    Block,
    Engine,
    Request,
    environment_of,
    plain_blocks,
)
from tests.client.waiting import eventually  # noqa: E402
from tests.service_process import ServiceProcess  # noqa: E402
from tests.support.service import KEY, empty_database  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.slow]  # a service starts: seconds on a quiet machine

GAMMA = 7
NUMBERS = [1.5, 1.25, 1.0, 0.875, 0.75, 1.125, 2.0]


def requests() -> list[Request]:
    """Every kind of row that the plugin sends."""
    return [
        Request("plain"),
        Request("greedy", top_k=1, custom_params={"dspark_domain": "code", "dspark_tenant": "t"}),
        Request("bound", regex="a*", temperature=0.5),
    ]


def test_a_drafter_lives_through_the_real_service(tmp_path: Path) -> None:
    with (
        ServiceProcess(empty_database(tmp_path), start_seconds=240.0) as service,
        httpx.Client(timeout=60.0) as http,
    ):
        place = f"{service.url}/v1/drafters/d"
        state = http.put(place, json={"key": KEY}).raise_for_status()
        engine = Engine(GAMMA)
        attached = engine.start(environment_of(service.url, "d", state.json()["key_digest"]))
        etag = state.headers["ETag"]
        for path in ("revisions", "revisions/1/promote"):
            body = {"temperatures": NUMBERS} if path == "revisions" else None
            http.post(f"{place}/{path}", json=body, headers={"If-Match": etag}).raise_for_status()
            etag = http.get(place).headers["ETag"]
        reqs = requests()

        def walked() -> bool:
            engine.step(reqs, plain_blocks(len(reqs), GAMMA, engine.steps))
            return engine.seen[-1] == pytest.approx(NUMBERS, rel=1e-3)

        assert eventually(walked)
        stop = Block([1.0] * GAMMA, [11, EOS, 12, 13, 14, 15, 16], correct=3, verify_len=6)
        for _ in range(3):
            engine.step(reqs, [stop, *plain_blocks(2, GAMMA)])

        def reported() -> bool:
            (sighting,) = http.get(f"{place}/engines").json()["engines"]
            return bool(sighting["applied_revision"] == 1)

        assert eventually(reported)
        assert attached.stop(60.0)
        counted = attached.status()["client"]
        assert counted["rows_accepted"] == attached.counters["rows"] > 6
        assert (counted["rows_rejected"], counted["rows_duplicate"]) == (0, 0)
        assert attached.counters["rows_after_stop"] == 2
