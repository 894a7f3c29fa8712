"""What the plugin asks of the SGLang around it, in one place; everything may be missing."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

__all__ = ["EngineFacts", "facts_of"]

_COLLECTING = "SGLANG_DSPARK_STS_COLLECT_PATH"


@dataclass(frozen=True)
class EngineFacts:
    """The engine as it is when its planner has been built.

    Attributes:
        gamma: draft positions it runs.
        mode: ``compact``, ``cap-accept`` or ``static``.
        verify_all: whether it verifies everything for want of a cost table.
        rank: of this process among those that decide together.
        ranks: how many those are.
        group_name: the same on all of them, and different from other groups.
        replica: data-parallel rank; None where there is one replica.
        block_rule: whether sampled requests are verified as blocks.
        file_revision: revision named in the calibration file it loaded; −1 unknown.
        collecting: whether it collects shards, which must stay at identity.
    """

    gamma: int
    mode: str
    verify_all: bool
    rank: int
    ranks: int
    group_name: str
    replica: int | None
    block_rule: bool
    file_revision: int
    collecting: bool


def facts_of(planner: Any, group: Any, environment: Mapping[str, str] = os.environ) -> EngineFacts:
    """Facts from a planner that has just been built, and the group it decides in."""
    spec = _context("get_spec")
    return EngineFacts(
        gamma=int(planner.gamma),
        mode=str(planner.mode_value),
        verify_all=bool(planner.is_verify_all),
        rank=int(group.rank_in_group),
        ranks=int(group.world_size),
        group_name="-".join(str(rank) for rank in getattr(group, "ranks", [0])),
        replica=_replica(),
        block_rule=bool(getattr(spec, "speculative_use_block_verification", False)),
        file_revision=_file_revision(getattr(spec, "speculative_dspark_confidence_sts_path", None)),
        collecting=bool(environment.get(_COLLECTING)),
    )


def _context(name: str) -> Any:
    """A part of SGLang's runtime context; None where this SGLang has no such part."""
    try:
        return getattr(import_module("sglang.srt.runtime_context"), name)()
    except Exception:  # noqa: BLE001  (a missing fact is an unknown one)
        return None


def _replica() -> int | None:
    parallel = _context("get_parallel")
    try:
        return int(parallel.attn_dp_rank) if int(parallel.attn_dp_size) > 1 else None
    except Exception:  # noqa: BLE001  (as above)
        return None


def _file_revision(path: Any) -> int:
    try:
        found = json.loads(Path(path).read_bytes()).get("revision")
    except Exception:  # noqa: BLE001  (the file was for the engine, which has read it)
        return -1
    return found if isinstance(found, int) and not isinstance(found, bool) else -1
