"""The version the plugin knows, and what it relies on, against the source of the real wheel."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from dspark_calib_client.plugins.common import compatibility as common
from dspark_calib_client.plugins.vllm import compatibility, registration


def wheel() -> Path:
    """The unpacked wheel that ``DSPARK_VLLM_WHEEL`` names; ``tools/vllm_wheel.sh`` prints one."""
    named = os.environ.get("DSPARK_VLLM_WHEEL")
    if not named:
        pytest.skip("set DSPARK_VLLM_WHEEL to an unpacked wheel")
    return Path(named)


def source_in(folder: Path) -> Callable[[str], str | None]:
    def source_of(module: str) -> str | None:
        path = folder.joinpath(*module.split(".")).with_suffix(".py")
        return path.read_text(encoding="utf-8") if path.is_file() else None

    return source_of


@pytest.mark.parity
def test_the_real_wheel_has_everything_the_plugin_relies_on() -> None:
    assert compatibility.KNOWN.faults(source_in(wheel())) == []


@pytest.mark.parity
def test_every_dspark_model_uses_the_head_that_is_wrapped() -> None:
    """One class serves all models; a model with a head of its own would stay uncalibrated."""
    defined = [
        path.relative_to(wheel()).as_posix()
        for path in wheel().rglob("*dspark*.py")
        if "class DSparkConfidenceHead" in path.read_text(encoding="utf-8")
    ]
    assert defined == ["vllm/model_executor/models/qwen3_dspark.py"]


@pytest.mark.parity
def test_drafts_are_in_place_before_verdicts_and_after_confidences() -> None:
    """The order that the attachment builds on: sample, then propose, then record."""
    source = source_in(wheel())(compatibility.RUNNER) or ""
    body = source[source.index("def sample_tokens(") :]
    places = [
        body.index(text)
        for text in (
            "= self.sample(",
            "self.speculator.propose(",
            "self.req_states.draft_tokens[input_batch.idx_mapping] = draft_tokens",
            "self.adaptive_verification.record_confidences(",
        )
    ]
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("version", "known"),
    [("0.33.0", True), ("0.33.0+cu130", True), ("0.32.9", False), ("0.34.0", False)],
)
def test_the_ends_of_the_version_range(version: str, known: bool) -> None:
    assert (compatibility.KNOWN.version_fault(version) is None) == known


def test_an_unreadable_version_is_unknown() -> None:
    assert "no version" in (compatibility.KNOWN.version_fault("dev") or "")


def test_a_changed_signature_is_named() -> None:
    def source_of(module: str) -> str | None:
        if module != compatibility.HEAD:
            return None
        return (
            "class DSparkConfidenceHead:\n    def forward(self, hidden):\n        return hidden\n"
        )

    found = compatibility.KNOWN.faults(source_of)
    assert any("forward takes no 'markov_embed'" in fault for fault in found)
    assert any("has no 'return self.proj(x).squeeze(-1)'" in fault for fault in found)


@pytest.mark.parametrize("version", ["0.32.9", "0.33.1", "0.99.0"])
def test_an_unknown_vllm_gets_one_clear_line_and_leaves_word(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    version: str,
) -> None:
    monkeypatch.setattr(common, "version", lambda name: version)
    path = tmp_path / "status.json"
    environment = {"DSPARK_CALIB_URL": "http://127.0.0.1:1", "DSPARK_CALIB_STATUS_FILE": str(path)}
    assert not registration.register_hooks(environment)
    (record,) = caplog.records
    reason = f"vLLM {version} is unknown to this plugin, which knows 0.33.0"
    remedy = "update dspark-calib-client, or run vLLM 0.33.0"
    assert record.getMessage() == (
        f"dspark-calib steps aside: {reason}: {remedy}; vLLM runs as without it"
    )
    told = json.loads(path.read_text())
    assert (told["engine"], told["attached"]) == ("vllm", False)
    assert (told["reason"], told["remedy"]) == (reason, remedy)


@pytest.mark.parametrize("version", ["0.33.0", "0.33.0+cu130"])
def test_a_known_vllm_is_hooked_into(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str
) -> None:
    monkeypatch.setattr(common, "version", lambda name: version)
    monkeypatch.setattr(common, "faults_of", lambda relied_on, source_of: [])
    hooked: list[str] = []
    monkeypatch.setattr(registration, "install", hooked.extend)
    path = tmp_path / "status.json"
    environment = {"DSPARK_CALIB_URL": "http://127.0.0.1:1", "DSPARK_CALIB_STATUS_FILE": str(path)}
    assert registration.register_hooks(environment)
    assert compatibility.RUNNER in hooked
    assert not path.exists()


def test_nothing_happens_without_settings(caplog: pytest.LogCaptureFixture) -> None:
    assert not registration.register_hooks({})
    assert not caplog.records
