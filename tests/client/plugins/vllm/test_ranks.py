"""Two ranks in two processes: no rank ever drafts with a revision a step before the other."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.client.plugins.vllm.rank_processes import walk_two_ranks
from tests.client.stand_in_service import StandInService

pytestmark = [pytest.mark.torch, pytest.mark.slow]  # two processes import torch


def test_two_ranks_change_at_the_same_step(service: StandInService, tmp_path: Path) -> None:
    first, second = walk_two_ranks(service, tmp_path, 300)
    assert first == second
    assert len({tuple(step) for step in first}) >= 4  # several revisions went by
