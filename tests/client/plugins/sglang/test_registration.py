"""From the entry point to an attached plugin, or to one clear line."""

from __future__ import annotations

import importlib.metadata
import json
import logging
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from dspark_calib_client.plugins.common import compatibility  # noqa: E402
from dspark_calib_client.plugins.sglang import register, registration  # noqa: E402
from dspark_calib_client.plugins.sglang.compatibility import OBSERVE, PLANNER  # noqa: E402
from tests.client.plugins.sglang.host import Engine, Head, environment_of  # noqa: E402

pytestmark = pytest.mark.torch

STATUS_FILE = "DSPARK_CALIB_STATUS_FILE"
SETTINGS = environment_of("http://127.0.0.1:9", "d", "ab" * 32)


def test_without_an_address_nothing_is_looked_at(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("DSPARK_CALIB_URL", raising=False)
    register()
    assert registration.register_hooks({}) is False
    assert caplog.text == ""


@pytest.mark.parametrize("version", ["0.5.21", "0.5.24", "0.6.0", "dev"])
def test_an_unknown_version_steps_aside_with_one_line_and_leaves_word(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    version: str,
) -> None:
    monkeypatch.setattr(compatibility, "version", lambda _: version)
    path = tmp_path / "status.json"
    with caplog.at_level(logging.DEBUG, "dspark_calib_client"):
        assert registration.register_hooks(SETTINGS | {STATUS_FILE: str(path)}) is False
    (record,) = caplog.records
    assert record.getMessage().startswith("dspark-calib steps aside: SGLang ")
    assert "0.5.22 to 0.5.23" in record.getMessage()
    told = json.loads(path.read_text())
    assert (told["engine"], told["attached"]) == ("sglang", False)
    assert told["reason"] in record.getMessage()
    assert told["remedy"] == "update dspark-calib-client, or run SGLang 0.5.22 to 0.5.23"


@pytest.mark.parametrize("version", ["0.5.22", "0.5.23"])
def test_the_versions_at_both_ends_are_hooked_into(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str
) -> None:
    monkeypatch.setattr(compatibility, "version", lambda _: version)
    monkeypatch.setattr(compatibility, "faults_of", lambda relied_on, source_of: [])
    hooked: list[str] = []
    registry = SimpleNamespace(register=lambda target, hook, kind: hooked.append(target))
    module = SimpleNamespace(HookRegistry=registry, HookType=SimpleNamespace(AFTER=1))
    monkeypatch.setattr(registration, "import_module", lambda name: module)
    path = tmp_path / "status.json"
    assert registration.register_hooks(SETTINGS | {STATUS_FILE: str(path)})
    assert hooked == [PLANNER, OBSERVE]
    assert not path.exists()


def test_a_known_version_with_other_source_steps_aside(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(compatibility, "version", lambda _: "0.5.23")
    monkeypatch.setattr(compatibility, "source_of", lambda _: None)
    assert registration.register_hooks(SETTINGS) is False
    assert "is missing" in caplog.text


def test_an_environment_without_sglang_steps_aside(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def unknown(_: str) -> str:
        raise importlib.metadata.PackageNotFoundError

    monkeypatch.setattr(compatibility, "version", unknown)
    assert registration.register_hooks(SETTINGS) is False
    assert "version" in caplog.text


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"DSPARK_CALIB_WAIT": "many"}, "DSPARK_CALIB_WAIT"),
        ({"DSPARK_CALIB_KEY": "short"}, "key"),
        ({"DSPARK_CALIB_URL": "nowhere"}, "base_url"),
        ({"DSPARK_CALIB_FORM": "exact"}, "DSPARK_CALIB_FORM"),
    ],
)
def test_wrong_settings_leave_the_engine_as_it_was(
    caplog: pytest.LogCaptureFixture, tmp_path: Path, changes: dict[str, str], reason: str
) -> None:
    engine = Engine(3)
    path = tmp_path / "status.json"
    assert engine.start(SETTINGS | changes | {STATUS_FILE: str(path)}) is None
    assert engine.head.sts_temperatures.ndim == 0
    assert reason in caplog.text
    assert reason in json.loads(path.read_text())["reason"]


def test_a_form_that_this_engine_cannot_apply_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its head divides and adds nothing; the plugin attaches all the same."""
    engine = Engine(3)
    attached = engine.start(SETTINGS | {"DSPARK_CALIB_FORM": "affine"})
    try:
        lines = [record for record in caplog.records if "DSPARK_CALIB_FORM" in record.getMessage()]
        assert [record.levelname for record in lines] == ["WARNING"]
        assert attached.status()["form_refused"] == "affine"
    finally:
        attached.stop(0.1)
    caplog.clear()
    plain = engine.start(SETTINGS | {"DSPARK_CALIB_FORM": "temperatures"})
    plain.stop(0.1)
    assert plain.status()["form_refused"] is None
    assert "DSPARK_CALIB_FORM" not in caplog.text


def test_an_engine_without_a_head_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    planner = SimpleNamespace(
        gamma=3, mode_value="static", is_verify_all=True, _confidence_head=None
    )
    group = SimpleNamespace(rank_in_group=0, world_size=1, ranks=[0])
    found = registration.attach(planner, group=group, device="cpu", environment=SETTINGS)
    assert found is None
    assert "no confidence head (mode static)" in caplog.text


def test_numbers_from_a_file_stay_until_the_service_has_better_ones() -> None:
    """The engine was started with a calibration file, and the service cannot be reached."""

    class Loaded(Head):
        def __init__(self) -> None:
            super().__init__()
            self.sts_temperatures = torch.tensor([1.5, 1.25, 0.75])

    planner: Any = SimpleNamespace(
        gamma=3, mode_value="compact", is_verify_all=False, _confidence_head=Loaded()
    )
    group = SimpleNamespace(rank_in_group=0, world_size=1, ranks=[0])
    attached = registration.attach(planner, group=group, device="cpu", environment=SETTINGS)
    assert attached is not None
    for step in range(1, 5):
        attached.at_verify_step(None, {"forward_ct": step, "confidence_raw": None})
    attached.stop(0.1)
    assert planner._confidence_head.sts_temperatures.tolist() == [1.5, 1.25, 0.75]
    assert attached.status()["revision"] == -1  # the file named none


def test_hooks_never_raise_into_the_engine(caplog: pytest.LogCaptureFixture) -> None:
    registration._after_planner(None, object())
    registration._after_verify_step(None, object())
    assert len(caplog.records) == 2


def test_importing_the_entry_point_imports_no_torch() -> None:
    code = (
        "import sys, dspark_calib_client.plugins.sglang.registration; "
        "sys.exit(bool({'torch', 'sglang', 'numpy'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=120).returncode == 0
