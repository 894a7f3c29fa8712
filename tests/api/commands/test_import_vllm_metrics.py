"""``dspark-calib import vllm-metrics`` on saved scrapes and on a real socket."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from typer.testing import CliRunner

from api.cli import app

BODY = """vllm:spec_decode_num_drafts_total{model_name="m",engine="0"} 10.0
vllm:spec_decode_num_accepted_tokens_total{model_name="m",engine="0"} 8.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{model_name="m",engine="0",position="0"} 6.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{model_name="m",engine="0",position="1"} 2.0
"""


def run(*arguments: str) -> tuple[int, str]:
    found = CliRunner().invoke(app, ["import", "vllm-metrics", *arguments])
    return found.exit_code, found.output


def test_a_saved_scrape_becomes_marked_rates(tmp_path: Path) -> None:
    scrape, out = tmp_path / "scrape.txt", tmp_path / "rates.json"
    scrape.write_text(BODY)
    code, said = run(str(scrape), "--out", str(out))
    assert code == 0
    assert "accepted length 1.800, marginal by position 0.600, 0.200" in said
    assert "not calibrated with" in said
    found = json.loads(out.read_text())
    assert (found["kind"], found["engines"][0]["drafts"]) == ("marginal_rates", 10)


def test_a_server_is_scraped() -> None:
    class Metrics(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/metrics" else 404)
            self.end_headers()
            self.wfile.write(BODY.encode())

        def log_message(self, *arguments: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Metrics) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        code, said = run(f"http://127.0.0.1:{server.server_port}", "--json")
        server.shutdown()
        thread.join(10)
    assert code == 0
    assert json.loads(said)["accepted_length"] == 1.8


def test_a_server_that_is_not_there_is_bad_input() -> None:
    code, said = run("http://127.0.0.1:9")
    assert code == 2
    assert "give http://host:port" in said


def test_a_page_that_is_no_scrape_is_bad_input(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text("<html>")
    code, said = run(str(page))
    assert code == 2
    assert "no line of metrics" in said
