"""What the engines' own pages give away."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from api.doctor.findings import Level
from api.doctor.live_engine import engine_pages, sglang_findings
from calib.errors import ConfigurationError


def sglang(gamma: int | None = 7, record: Any = None, **found: Any) -> dict[str, Level]:
    usual = {"mode": "compact", "gamma": 7, "simulate_acc_len": None}
    states = [{"dspark_info_record": {**usual, **(record or {})}}]
    page = {"speculative_algorithm": "DSPARK", "internal_states": states, **found}
    pages = {"/server_info": json.dumps(page)}
    return {entry.check: entry.level for entry in sglang_findings(pages, gamma=gamma)}


def test_a_healthy_engine() -> None:
    assert set(sglang().values()) == {Level.OK}


def test_troubles_of_sglang() -> None:
    assert sglang(record={"mode": "static"})["mode"] is Level.FAIL
    assert sglang(gamma=5)["gamma"] is Level.FAIL
    assert sglang(record={"simulate_acc_len": 1.0})["simulated"] is Level.FAIL
    assert sglang(speculative_algorithm="EAGLE3") == {"speculation": Level.FAIL}
    assert sglang(internal_states=[])["mode"] is Level.UNKNOWN
    assert sglang(speculative_dspark_confidence_sts_path=None)["file"] is Level.WARN
    assert sglang(version="0.5.99")["version"] is Level.FAIL


class _Pages(BaseHTTPRequestHandler):
    """vLLM without its development mode: no ``/server_info``."""

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        served = {"/metrics": b"m", "/version": b"v", "/v1/models": b"l"}
        self.send_response(200 if self.path in served else 404)
        self.end_headers()
        self.wfile.write(served.get(self.path, b"no such page"))


@pytest.mark.parametrize("path", ["", "/", "/metrics", "/server_info?config_format=json"])
def test_every_page_that_is_served_is_fetched(path: str) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Pages) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            place = f"http://127.0.0.1:{server.server_address[1]}{path}"
            assert engine_pages("vllm", place) == {
                "/metrics": "m",
                "/version": "v",
                "/v1/models": "l",
            }
            with pytest.raises(ConfigurationError, match="404"):
                engine_pages("sglang", place)
        finally:
            server.shutdown()
            thread.join(10.0)


def test_a_saved_page_is_told_by_its_looks(tmp_path: Path) -> None:
    for text, page in (("vllm:x 1", "/metrics"), (" {}", "/server_info?config_format=json")):
        (tmp_path / "page").write_text(text)
        assert engine_pages("vllm", str(tmp_path / "page")) == {page: text}
        assert engine_pages("sglang", str(tmp_path / "page")) == {"/server_info": text}


def test_an_engine_that_is_down_is_bad_input() -> None:
    with pytest.raises(ConfigurationError, match="is the engine up"):
        engine_pages("sglang", "http://127.0.0.1:9")
