from __future__ import annotations

import sys
from typing import Any

import httpx
import pytest

from api.service_demo import engines as module
from api.service_demo.engines import Engines, client_package
from api.service_demo.replay import deal
from calib.errors import ConfigurationError
from tests.service_process import ServiceProcess
from tests.support.service import KEY
from tests.support.telemetry import synthetic_records


def test_the_client_is_found_installed_or_in_the_checkout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert client_package().__name__ == "dspark_calib_client"
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    monkeypatch.setattr(sys, "path", sys.path[:])
    assert client_package().CalibrationClient


def test_without_a_client_the_demo_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    monkeypatch.setattr(module, "__file__", str(tmp_path / "a" / "b" / "engines.py"))
    with pytest.raises(ConfigurationError, match="pip install dspark-calib-client"):
        client_package()


@pytest.mark.slow
def test_engines_poll_send_and_notice(tmp_path: Any) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    with ServiceProcess(url) as service, httpx.Client(timeout=60.0) as http:
        place = f"{service.url}/v1/drafters/d"
        tag = http.put(place, json={"key": KEY}).headers["ETag"]
        engines = Engines(service.url, "d", KEY, ("engine-1", "engine-2", "engine-3"))
        engines.start()
        try:
            first = engines.arrivals(1, 60.0)
            assert {arrival.engine for arrival in first} == {"engine-1", "engine-2", "engine-3"}
            assert {arrival.revision for arrival in first} == {0}
            seen: list[int] = []
            counted = engines.send(deal(synthetic_records(3000)), seen.append, seconds=60.0)
            assert (counted["rows_accepted"], counted["rows_lost"]) == (3000, 0)
            assert seen[-1] == 3000
            made = {"temperatures": [1.5] * 7}
            http.post(f"{place}/revisions", json=made, headers={"If-Match": tag})
            http.post(f"{place}/revisions/1/promote", headers={"If-Match": tag})
            second = engines.arrivals(2, 60.0)
            assert {arrival.values for arrival in second} == {(1.5,) * 7}
            assert len(second) == 3
            assert [a.at for a in second] == sorted(a.at for a in second)
            assert engines.next_arrival(0.01) is None
        finally:
            engines.stop()
