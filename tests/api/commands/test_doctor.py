"""``dspark-calib doctor`` against a real service: exit codes, JSON, remedies."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner, Result

from api.cli import app
from dspark_calib_client.plugins.common import joining
from dspark_calib_client.plugins.common.compatibility import AsideError
from dspark_calib_client.plugins.sglang.compatibility import KNOWN
from tests.service_process import ServiceProcess
from tests.support.service import KEY


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    folder = tmp_path_factory.mktemp("service")
    with ServiceProcess(f"sqlite:///{folder}/store.db") as service:
        place = f"{service.url}/v1/drafters/drafter"
        httpx.put(place, json={"key": KEY}, timeout=60.0).raise_for_status()
        yield service


def doctor(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["doctor", *arguments])


def status(folder: Path, **changes: Any) -> Path:
    path = folder / "status.json"
    usual = {
        "written_at": time.time(),
        "engine": "vllm",
        "attached": True,
        "applies": True,
        "gamma": 7,
        "source": "head",
        "publication": 1,
        "telemetry": True,
        "client": {"state": "fresh", "publication": 1},
    }
    path.write_text(json.dumps({**usual, **changes}))
    return path


@pytest.mark.slow
def test_an_engine_that_polls_and_applies(running: ServiceProcess, tmp_path: Path) -> None:
    """Identity is served: that is worth a warning, and no failure."""
    httpx.get(
        f"{running.url}/v1/drafters/drafter/temperatures",
        params={"gamma": 7, "engine": "e0", "applied_publication": 1, "applied_revision": 0},
        timeout=60.0,
    ).raise_for_status()
    found = doctor(
        *("--engine", "vllm", "--drafter", "drafter", "--url", running.url, "--json"),
        *("--status-file", str(status(tmp_path)), "--engine-id", "e0"),
    )
    assert found.exit_code == 0, found.output
    told = json.loads(found.stdout)
    assert told["worst"] == "warn"
    by_check = {entry["check"]: entry["level"] for entry in told["findings"]}
    assert by_check["served"] == "warn"
    assert (by_check["applied"], by_check["slots"], by_check["polls"]) == ("ok", "ok", "ok")


def test_another_gamma_is_a_failure_with_its_remedy(
    running: ServiceProcess, tmp_path: Path
) -> None:
    found = doctor(
        *("--engine", "vllm", "--drafter", "drafter", "--url", running.url),
        *("--status-file", str(status(tmp_path, gamma=9))),
    )
    assert found.exit_code == 1
    assert "FAIL  gamma: the engine runs gamma 9, the service calibrates gamma 7" in found.stdout
    assert "      -> run 7 draft positions" in found.stdout


def test_nothing_to_look_at_and_nobody_there_are_bad_input(tmp_path: Path) -> None:
    assert doctor("--engine", "sglang").exit_code == 2
    alone = doctor("--engine", "vllm", "--drafter", "d", "--url", "http://127.0.0.1:9")
    assert alone.exit_code == 2


def test_a_plugin_that_is_not_there_and_one_that_stepped_aside(tmp_path: Path) -> None:
    """The second leaves the reason and its remedy; only the first leaves nothing."""
    path = tmp_path / "status.json"
    nobody = doctor("--engine", "sglang", "--status-file", str(path))
    assert nobody.exit_code == 1
    assert "the engine has not come so far, has no plugin" in nobody.stdout
    environment = {"DSPARK_CALIB_STATUS_FILE": str(path)}
    error = AsideError("SGLang 0.5.24 is unknown to this plugin", "run SGLang 0.5.23")
    joining.step_aside(KNOWN, error, environment)
    aside = doctor("--engine", "sglang", "--status-file", str(path))
    assert aside.exit_code == 1
    assert (
        "FAIL  attached: the plugin stepped aside: SGLang 0.5.24 is unknown to this plugin\n"
        "      -> run SGLang 0.5.23\n"
    ) in aside.stdout


def test_a_checkpoint_is_looked_at_without_a_service(tmp_path: Path) -> None:
    entry = {"dtype": "BF16", "shape": [1, 12], "data_offsets": [0, 0]}
    header = json.dumps({"confidence_head.proj.weight": entry}).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    (tmp_path / "config.json").write_text(json.dumps({"block_size": 7}))
    found = doctor("--engine", "vllm", "--checkpoint", str(tmp_path), "--gamma", "9")
    assert found.exit_code == 1, found.output
    assert "ok    confidence_head: it reads 12 numbers, without bias" in found.stdout
    assert "gamma 9 is more than it drafts" in found.stdout
