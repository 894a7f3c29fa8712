"""Both plugins and the real service: whatever it says or does, the engine keeps what was good.

Hosts step as SGLang and vLLM do; the service is a process with its own database. Between the two
may stand a relay that lies.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

torch = pytest.importorskip("torch")

from tests.client.plugins.sglang import host as sglang  # noqa: E402
from tests.client.plugins.vllm import host as vllm  # noqa: E402
from tests.client.waiting import eventually  # noqa: E402
from tests.service_process import ServiceProcess  # noqa: E402
from tests.support.service import KEY, empty_database  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.slow]  # a service starts: seconds on a quiet machine
GAMMA = 7
GOOD = [1.5, 1.25, 1.0, 0.875, 0.75, 1.125, 2.0]
ONES = [1.0] * GAMMA


class Driven:
    """One engine of either kind; :meth:`step` gives the temperatures that its graph divided by."""

    def __init__(self, kind: str, gamma: int) -> None:
        self.kind, self.gamma = kind, gamma
        self.engine: Any = sglang.Engine(gamma) if kind == "sglang" else vllm.Engine(gamma)

    def start(self, url: str, drafter: str, key: str, **more: str) -> Any:
        settings = sglang.environment_of(url, drafter, key, **more)
        self.attached = self.engine.start(settings)
        if self.kind == "vllm":
            self.engine.add(vllm.request("a"))
        else:
            self.reqs = [sglang.Request("a")]
        return self.attached

    def step(self) -> list[float]:
        raw = [2.0] * self.gamma
        if self.kind == "sglang":
            block = sglang.Block(raw, list(range(11, 11 + self.gamma)), correct=1, verify_len=3)
            self.engine.step(self.reqs, [block])
            seen: list[float] = self.engine.seen[-1]
            return seen
        admitted = 2 if self.engine.steps else 0
        verdict = vllm.Verdict(raw, list(range(11, 11 + self.gamma)), admitted, admitted // 2)
        confidence = self.engine.step(["a"], [verdict])[0].double()
        found: list[float] = (2.0 / torch.logit(confidence)).tolist()
        return found

    def reaches(self, wanted: list[float]) -> bool:
        return eventually(lambda: self.step() == pytest.approx(wanted, rel=1e-3), 30.0)

    def stays(self, wanted: list[float], until: Callable[[], bool]) -> bool:
        """Whether it runs with these at every step until ``until`` holds, and that it comes."""
        always = True

        def over() -> bool:
            nonlocal always
            always &= self.step() == pytest.approx(wanted, rel=1e-3)
            return until()

        return eventually(over, 30.0) and always

    @property
    def client(self) -> dict[str, Any]:
        found: dict[str, Any] = self.attached.status()["client"]
        return found


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> str:
    return empty_database(tmp_path_factory.mktemp("service"))


@pytest.fixture(scope="module")
def service(database: str) -> Iterator[ServiceProcess]:
    with ServiceProcess(database, start_seconds=240.0) as running:
        yield running


@pytest.fixture(params=["sglang", "vllm"])
def driven(request: pytest.FixtureRequest) -> Iterator[Driven]:
    made = Driven(request.param, GAMMA)
    yield made
    if getattr(made, "attached", None) is not None:
        made.attached.stop(5.0)


class Drafter:
    """A drafter of the service, with revision 1 as champion."""

    def __init__(self, url: str, name: str) -> None:
        self.place = f"{url}/v1/drafters/{name}"
        self.url, self.name = url, name
        with httpx.Client(timeout=60.0) as http:
            answer = http.put(self.place, json={"key": {**KEY, "draft_model": name}})
            self.key = answer.raise_for_status().json()["key_digest"]
        self.create(GOOD)
        self.promote(1)

    def create(self, numbers: list[float]) -> None:
        self._post("revisions", {"temperatures": numbers})

    def promote(self, revision: int) -> None:
        self._post(f"revisions/{revision}/promote", None)

    def _post(self, path: str, body: Any) -> None:
        with httpx.Client(timeout=60.0) as http:
            etag = http.get(self.place).headers["ETag"]
            answer = http.post(f"{self.place}/{path}", json=body, headers={"If-Match": etag})
            answer.raise_for_status()


@contextmanager
def relay(url: str, change: Callable[[bytes], bytes]) -> Iterator[str]:
    """The address of a service whose every answer of numbers is ``change`` of the real one's."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

        def do_GET(self) -> None:
            answer = httpx.get(url + self.path, timeout=60.0)
            body = change(answer.content)
            self.send_response(answer.status_code)
            for name in ("ETag", "Content-Type"):
                if name in answer.headers:
                    self.send_header(name, answer.headers[name])
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join(10.0)


def test_a_gamma_that_the_service_does_not_have(service: ServiceProcess, driven: Driven) -> None:
    """Two positions more than were calibrated: identity, and no row is lost to another shape."""
    drafter = Drafter(service.url, f"gamma-{driven.kind}")
    driven = Driven(driven.kind, GAMMA + 2)
    driven.start(drafter.url, drafter.name, drafter.key)
    try:
        assert driven.stays([1.0] * (GAMMA + 2), lambda: driven.client["polls_failed"] > 2)
        assert driven.client["poll_failed_conflict"] > 2
        assert driven.client["state"] == "fallback"
    finally:
        driven.attached.stop(1.0)


def test_a_shorter_gamma_gets_the_first_numbers(service: ServiceProcess, driven: Driven) -> None:
    drafter = Drafter(service.url, f"prefix-{driven.kind}")
    driven = Driven(driven.kind, 3)
    driven.start(drafter.url, drafter.name, drafter.key)
    try:
        assert driven.reaches(GOOD[:3])
    finally:
        driven.attached.stop(5.0)


def test_another_drafters_key(service: ServiceProcess, driven: Driven) -> None:
    """Identity, not one row, and the status says why; a name nobody registered is no better."""
    drafter = Drafter(service.url, f"key-{driven.kind}")
    driven.start(drafter.url, drafter.name, "ab" * 32)
    assert driven.stays(ONES, lambda: driven.client["key_mismatch"] == 1)
    driven.attached.stop(5.0)
    assert driven.client["rows_delivered"] == 0
    driven.start(drafter.url, "nobody", drafter.key)
    assert driven.stays(ONES, lambda: driven.client["polls_failed"] > 2)


def test_a_service_that_dies_and_comes_back(database: str, driven: Driven, tmp_path: Path) -> None:
    """The last good numbers stay, over a restart of the engine too, until there are new ones."""
    with ServiceProcess(database, start_seconds=240.0) as service:
        drafter = Drafter(service.url, f"dies-{driven.kind}")
        driven.start(drafter.url, drafter.name, drafter.key, STATE_DIR=str(tmp_path))
        assert driven.reaches(GOOD)
        port = service.port
        service.kill()
        failed = driven.client["polls_failed"]
        assert driven.stays(GOOD, lambda: driven.client["polls_failed"] > failed + 2)
    driven.attached.stop(1.0)
    again = Driven(driven.kind, GAMMA)
    again.start(drafter.url, drafter.name, drafter.key, STATE_DIR=str(tmp_path))
    try:
        assert again.reaches(GOOD)
        assert again.client["state"] == "stale"
        with ServiceProcess(database, start_seconds=240.0, port=port):
            drafter.create([2.0] * GAMMA)
            drafter.promote(2)
            again.attached._client.poll_now()  # backs off by now
            assert again.reaches([2.0] * GAMMA)
            assert again.client["state"] == "fresh"
    finally:
        again.attached.stop(1.0)


def test_revisions_that_flap(service: ServiceProcess, driven: Driven) -> None:
    """A script that promotes to and fro is waited out, and the status says so."""
    drafter = Drafter(service.url, f"flaps-{driven.kind}")
    driven.start(drafter.url, drafter.name, drafter.key)
    assert driven.reaches(GOOD)
    drafter.create([2.0] * GAMMA)
    for turn in range(8):
        publication = driven.client["publication"]  # the answer may come after the next poll
        drafter.promote(1 + (turn + 1) % 2)
        assert eventually(
            lambda before=publication: driven.step() and driven.client["publication"] > before, 30.0
        )
    assert driven.attached.status()["holding"] is True
    held = driven.step()
    drafter.promote(2)
    drafter.promote(1)
    last = driven.client["polls"]
    assert driven.stays(held, lambda: driven.client["polls"] > last + 3)


LIES: dict[str, Callable[[dict[str, Any]], object]] = {
    "other numbers": lambda said: said.update(temperatures=[3.0] * GAMMA),
    "another drafter": lambda said: said.update(drafter="other"),
    "too few": lambda said: said.update(temperatures=GOOD[:2]),
    "no numbers": lambda said: said.update(temperatures=[None] * GAMMA),
}


def test_a_service_that_lies(service: ServiceProcess, driven: Driven) -> None:
    """Told the truth once, then every kind of lie with the headers of truth, then truth again."""
    drafter = Drafter(service.url, f"lies-{driven.kind}")
    lie: list[Callable[[dict[str, Any]], object]] = []

    def changed(body: bytes) -> bytes:
        if not lie or not body:
            return body
        said = json.loads(body)
        lie[0](said)
        return json.dumps(said).encode()

    with relay(drafter.url, changed) as url:
        driven.start(url, drafter.name, drafter.key)
        assert driven.reaches(GOOD)
        drafter.create([2.0] * GAMMA)
        lie.append(lambda said: None)
        for told in LIES.values():
            lie[0] = told
            drafter.promote(2)  # the answer changes, so that a body is sent
            failed = driven.client["polls_failed"]
            driven.attached._client.poll_now()
            assert driven.stays(GOOD, lambda before=failed: driven.client["polls_failed"] > before)
            drafter.promote(1)
        lie.clear()
        drafter.promote(2)
        driven.attached._client.poll_now()
        assert driven.reaches([2.0] * GAMMA)
