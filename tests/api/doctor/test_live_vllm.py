"""What a running vLLM shows, from every page it may serve."""

from __future__ import annotations

import json
from typing import Any

import pytest

from api.doctor.findings import Level
from api.doctor.live_vllm import CONFIGURATION, METRICS, MODELS, VERSION, vllm_findings


def counters(width: int, drafts: int = 9) -> str:
    rates = "".join(
        "vllm:spec_decode_num_accepted_tokens_per_pos_total"
        f'{{engine="0",model_name="m",position="{place}"}} {min(1, drafts)}\n'
        for place in range(width)
    )
    return f'vllm:spec_decode_num_drafts_total{{engine="0",model_name="m"}} {drafts}\n{rates}'


def levels(gamma: int | None = 3, **pages: Any) -> dict[str, Level]:
    names = {"metrics": METRICS, "version": VERSION, "models": MODELS, "whole": CONFIGURATION}
    texts = {
        names[name]: page if isinstance(page, str) else json.dumps(page)
        for name, page in pages.items()
    }
    found = vllm_findings(texts, gamma=gamma, target="Qwen/Qwen3-8B")
    return {entry.check: entry.level for entry in found}


def whole(**changes: Any) -> dict[str, Any]:
    usual = {
        "method": "dspark",
        "num_speculative_tokens": 3,
        "enable_adaptive_verification": True,
        "rejection_sample_method": "standard",
        "draft_sample_method": "probabilistic",
    }
    return {"vllm_config": {"speculative_config": {**usual, **changes}, "parallel_config": {}}}


def test_a_healthy_engine() -> None:
    card = {"id": "chat", "root": "Qwen/Qwen3-8B", "parent": None}
    found = levels(
        metrics=counters(3),
        version={"version": "0.33.0"},
        models={"data": [card]},
        whole=whole(),
    )
    assert set(found) == {"version", "target", "mode", "gamma"}
    assert set(found.values()) == {Level.OK}


@pytest.mark.parametrize(
    ("changes", "check", "level"),
    [
        ({"enable_adaptive_verification": False}, "mode", Level.FAIL),
        ({"num_speculative_tokens": 5}, "gamma", Level.FAIL),
        ({"rejection_sample_method": "synthetic"}, "simulated", Level.FAIL),
        ({"draft_sample_method": "greedy"}, "draft_mode", Level.WARN),
    ],
)
def test_what_a_configuration_gives_away(changes: dict[str, Any], check: str, level: Level) -> None:
    assert levels(whole=whole(**changes))[check] is level


def test_no_speculation_at_all() -> None:
    assert levels(whole={"vllm_config": {"speculative_config": None}}) == {
        "speculation": Level.FAIL
    }
    off = levels(metrics="vllm:num_requests_running 1\n")
    assert off == {"speculation": Level.FAIL, "mode": Level.UNKNOWN}


def test_counters_alone_say_gamma_and_leave_the_mode_open() -> None:
    assert levels(metrics=counters(3)) == {"mode": Level.UNKNOWN, "gamma": Level.OK}
    assert levels(gamma=2, metrics=counters(3))["gamma"] is Level.FAIL
    assert levels(metrics=counters(3, drafts=0))["drafts"] is Level.UNKNOWN


def test_another_model_is_worth_a_look() -> None:
    """It may be a path or an alias, so it is no failure; adapters are no models of their own."""
    other = {"id": "chat", "root": "other/model", "parent": None}
    adapter = {"id": "sql", "root": "Qwen/Qwen3-8B", "parent": "chat"}
    found = levels(models={"data": [other, adapter]}, whole=whole())
    assert found["target"] is Level.WARN


def test_an_adapter_before_its_model_changes_nothing() -> None:
    adapter = {"id": "Qwen/Qwen3-8B", "root": "/adapters/sql", "parent": "chat"}
    other = {"id": "chat", "root": "other/model", "parent": None}
    assert levels(models={"data": [adapter, other]}, whole=whole())["target"] is Level.WARN
    model = {"id": "Qwen/Qwen3-8B", "root": "/models/8b", "parent": None}
    assert levels(models={"data": [adapter, model]}, whole=whole())["target"] is Level.OK
