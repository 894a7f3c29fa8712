"""What the engines' own pages give away."""

from __future__ import annotations

import json
from typing import Any

import pytest

from api.doctor.findings import Level
from api.doctor.live_engine import engine_page, sglang_findings, vllm_findings
from calib.errors import ConfigurationError


def sglang(gamma: int | None = 7, record: Any = None, **found: Any) -> dict[str, Level]:
    usual = {"mode": "compact", "gamma": 7, "simulate_acc_len": None}
    states = [{"dspark_info_record": {**usual, **(record or {})}}]
    page = {"speculative_algorithm": "DSPARK", "internal_states": states, **found}
    return {entry.check: entry.level for entry in sglang_findings(json.dumps(page), gamma=gamma)}


def test_a_healthy_engine() -> None:
    assert set(sglang().values()) == {Level.OK}


def test_troubles_of_sglang() -> None:
    assert sglang(record={"mode": "static"})["mode"] is Level.FAIL
    assert sglang(gamma=5)["gamma"] is Level.FAIL
    assert sglang(record={"simulate_acc_len": 1.0})["simulated"] is Level.FAIL
    assert sglang(speculative_algorithm="EAGLE3") == {"speculation": Level.FAIL}
    assert sglang(internal_states=[])["mode"] is Level.UNKNOWN
    assert sglang(speculative_dspark_confidence_sts_path=None)["file"] is Level.WARN


def test_troubles_of_vllm() -> None:
    page = "".join(
        "vllm:spec_decode_num_accepted_tokens_per_pos_total"
        f'{{engine="0",model_name="m",position="{place}"}} 1\n'
        for place in range(3)
    )
    assert [entry.level for entry in vllm_findings(page, gamma=3)] == [Level.OK]
    assert [entry.level for entry in vllm_findings(page, gamma=2)] == [Level.FAIL]
    off = list(vllm_findings("vllm:num_requests_running 1\n", gamma=3))
    assert [entry.check for entry in off] == ["speculation"]


def test_an_engine_that_is_down_is_bad_input() -> None:
    with pytest.raises(ConfigurationError, match="is the engine up"):
        engine_page("sglang", "http://127.0.0.1:9")
