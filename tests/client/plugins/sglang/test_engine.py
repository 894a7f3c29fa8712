from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from dspark_calib_client.plugins.sglang.engine import facts_of

PLANNER = SimpleNamespace(gamma=7, mode_value="compact", is_verify_all=True)
GROUP = SimpleNamespace(rank_in_group=1, world_size=2, ranks=[4, 5])


def context(monkeypatch: pytest.MonkeyPatch, **parts: object) -> None:
    """SGLang's runtime context."""
    for name in ("sglang", "sglang.srt"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    module = ModuleType("sglang.srt.runtime_context")
    for name, part in parts.items():
        setattr(module, name, lambda part=part: part)
    monkeypatch.setitem(sys.modules, module.__name__, module)


def test_facts_without_a_context_are_unknown() -> None:
    found = facts_of(PLANNER, GROUP, {})
    assert (found.gamma, found.mode, found.verify_all) == (7, "compact", True)
    assert (found.rank, found.ranks, found.group_name) == (1, 2, "4-5")
    assert (found.replica, found.block_rule, found.file_revision) == (None, False, -1)
    assert not found.collecting


def test_facts_come_from_the_context(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "sts.json"
    file.write_text(json.dumps({"temperatures": [1.0], "revision": 12}))
    spec = SimpleNamespace(
        speculative_use_block_verification=True, speculative_dspark_confidence_sts_path=str(file)
    )
    parallel = SimpleNamespace(attn_dp_rank=3, attn_dp_size=4)
    context(monkeypatch, get_spec=spec, get_parallel=parallel)
    found = facts_of(PLANNER, GROUP, {"SGLANG_DSPARK_STS_COLLECT_PATH": "x"})
    assert (found.replica, found.block_rule, found.file_revision) == (3, True, 12)
    assert found.collecting
