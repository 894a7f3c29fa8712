"""SGLang's own modules against our files, our reader and our plugin.

``DSPARK_SGLANG_WHEEL`` and ``DSPARK_SGLANG_OLDEST_WHEEL`` name unpacked wheels of both ends of the
supported range (``tools/sglang_wheel.sh``): loader, recorder and hook registry import as they are.
``DSPARK_SGLANG_PYTHON`` names an interpreter that can import the planner
(``tools/sglang_environment.sh``), which is run as a process.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from calib.formats.sglang_shards import read_shards  # noqa: E402
from calib.formats.sglang_sts import write_sts  # noqa: E402
from dspark_calib_client.plugins.common import joining  # noqa: E402
from dspark_calib_client.plugins.sglang import compatibility, registration  # noqa: E402
from tests.client.plugins.sglang.host import Engine, Request, plain_blocks  # noqa: E402
from tests.client.stand_in_service import DRAFTER, GAMMA, KEY, StandInService  # noqa: E402
from tests.client.waiting import eventually  # noqa: E402

pytestmark = [pytest.mark.parity, pytest.mark.torch]

PARTS = "sglang.srt.speculative.dspark_components"
_PACKAGES = ("sglang", "sglang.srt", "sglang.srt.plugins", "sglang.srt.speculative", PARTS)


@pytest.fixture(params=["DSPARK_SGLANG_WHEEL", "DSPARK_SGLANG_OLDEST_WHEEL"])
def wheel(request: pytest.FixtureRequest) -> Path:
    """Both ends of the supported range."""
    named = os.environ.get(request.param)
    if named is None:
        pytest.skip(f"set {request.param} to an unpacked wheel")
    return Path(named)


@pytest.fixture
def modules(wheel: Path) -> Iterator[Any]:
    """Imports a module of the wheel by name; empty packages stand in for those around it."""
    before = set(sys.modules)
    for name in _PACKAGES:
        package = types.ModuleType(name)
        package.__path__ = [str(wheel.joinpath(*name.split(".")))]
        sys.modules[name] = package
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if name.partition(".")[0] == "sglang":
            del sys.modules[name]


def test_its_loader_takes_every_number_we_may_publish(modules: Any, tmp_path: Path) -> None:
    load = modules(f"{PARTS}.dspark_sts").load_sts_calibration_from_path
    path = tmp_path / "sts.json"
    for numbers in ([1.0] * 7, [0.05, 20.0], [1.23456], [0.1 + 0.2, 1 / 3, 7.0]):
        rounded = [float(f"{number:.6g}") for number in numbers]
        extra = {"digest": "ab" * 32, "revision": 3, "status": "fitted", "key": "cd" * 32}
        write_sts(path, rounded, "d", 9, [None] * len(rounded), [0.01] * len(rounded), extra)
        found = load(str(path))
        assert found.temperatures == rounded
        assert (found.ece_before, found.ece_after) == ([], [0.01] * len(rounded))


def test_shards_of_its_recorder_come_back_as_the_same_records(modules: Any, tmp_path: Path) -> None:
    recorder = modules(f"{PARTS}.dspark_sts").StsDataRecorder(
        path_stem=str(tmp_path / "sts"), gamma=GAMMA, flush_every=2
    )
    draw = torch.Generator().manual_seed(3)
    logits, counts = [], []
    for _ in range(6):
        raw = torch.randn((5, GAMMA), generator=draw)
        correct = torch.randint(0, GAMMA + 1, (5,), generator=draw)
        recorder.record(confidence_raw=raw, num_correct_drafts=correct)
        logits.append(raw.numpy())
        counts.append(correct.numpy())
    read = read_shards(str(tmp_path / "sts.*.pt"), GAMMA)
    assert len(read.files) == 3
    assert np.array_equal(read.records.confidence_logits, np.concatenate(logits))
    assert np.array_equal(read.records.accepted, np.concatenate(counts))
    assert (read.records.verified == GAMMA).all()


def test_its_registry_drives_the_plugin(
    modules: Any, service: StandInService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real registry, stand-in planner and observers under SGLang's names."""
    hooks = modules("sglang.srt.plugins.hook_registry")
    engine = Engine(GAMMA)
    planner_module, observer_module = engine.as_modules(PARTS)
    monkeypatch.setitem(sys.modules, planner_module.__name__, planner_module)
    monkeypatch.setitem(sys.modules, observer_module.__name__, observer_module)
    for name, value in engine.settings(service.url, DRAFTER, KEY).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(joining, "check_installed", lambda known: None)
    assert registration.register_hooks()
    hooks.HookRegistry.apply_hooks()
    assert {compatibility.PLANNER, compatibility.OBSERVE} <= hooks.HookRegistry._patched
    engine.build(planner_module, observer_module)
    service.publish([2.0, 1.5, 1.25])

    def walked() -> bool:
        engine.step([Request("a")], plain_blocks(1, GAMMA, engine.steps))
        return bool(engine.head.sts_temperatures.tolist() == [2.0, 1.5, 1.25])

    try:
        assert eventually(walked)
    finally:
        attached = registration.attachment_of(engine.planner)
        if attached is not None:
            attached.stop(0.1)


@pytest.mark.slow
def test_its_planner_head_and_observers_run_with_the_plugin(
    wheel: Path, service: StandInService, tmp_path: Path
) -> None:
    """In a process of its own: importing the planner takes half a minute."""
    python = os.environ.get("DSPARK_SGLANG_PYTHON")
    if python is None:
        pytest.skip("set DSPARK_SGLANG_PYTHON (tools/sglang_environment.sh)")
    file = tmp_path / "sts.json"
    write_sts(file, [1.25, 0.5, 4.0], "d", extra={"revision": 8})
    published = [2.0, 1.5, 1.25]
    service.publish(published, revision=9)
    script = Path(__file__).with_name("drive_sglang.py")
    client = Path(registration.__file__).parents[3]
    done = subprocess.run(
        [python, str(script), str(wheel), service.url, DRAFTER, KEY, str(GAMMA), str(file)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env={**os.environ, "PYTHONPATH": str(client)},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["patched"] == sorted([compatibility.OBSERVE, compatibility.PLANNER])
    for name, first in (("plain", [1.0] * GAMMA), ("with_file", [1.25, 0.5, 4.0])):
        run = found[name]
        assert (run["attached"], run["same_tensor"], run["stopped"]) == (True, True, True)
        raw = np.array(run["raw"])
        for numbers, confidence in ((first, "confidence_before"), (published, "confidence")):
            expected = 1 / (1 + np.exp(-raw / numbers))
            assert run[confidence] == pytest.approx(expected, abs=1e-6), (name, confidence)
        assert run["temperatures"] == published
    rows = service.rows
    assert {row["acceptance_rule"] for row in rows} == {"greedy", "rejection"}
    assert {row["domain"] for row in rows if row["acceptance_rule"] == "rejection"} == {"code"}
    assert {0, 8} <= {row["revision"] for row in rows} <= {0, 8, 9}
    assert {(row["verified"], row["accepted"]) for row in rows} == {(GAMMA - 1, 1), (1, 1)}
