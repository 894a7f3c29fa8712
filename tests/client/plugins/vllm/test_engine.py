"""What is asked of vLLM, and what it means for the rows."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from dspark_calib_client.plugins.common.compatibility import AsideError
from dspark_calib_client.plugins.vllm.engine import check_calibrates, facts_of
from tests.client.plugins.vllm.host import DraftModelSpeculator, Group

pytestmark = pytest.mark.torch


def speculator(head: bool = True, adaptive: bool = True, **spec: str) -> DraftModelSpeculator:
    made = DraftModelSpeculator(3, 4, head=head, adaptive=adaptive, **spec)
    made.load_model()
    return made


def test_facts_name_rule_and_source() -> None:
    plain = facts_of(speculator(), Group())
    assert (plain.source, plain.block_rule, plain.forced) == ("head", False, False)
    assert facts_of(speculator(rejection_sample_method="block"), Group()).block_rule
    assert facts_of(speculator(rejection_sample_method="fly"), Group()).forced  # a lossy rule
    assert facts_of(speculator(head=False), Group()).source == "max_log_odds"
    assert facts_of(speculator(draft_sample_method="greedy"), Group()).greedy_draft


def test_replicas_are_told_apart() -> None:
    made = speculator()
    made.vllm_config.parallel_config.data_parallel_size = 2
    made.vllm_config.parallel_config.data_parallel_rank = 1
    assert facts_of(made, Group()).replica == 1


def test_reasons_to_stay_away_name_their_remedy() -> None:
    check_calibrates(speculator())
    check_calibrates(speculator(head=False))
    with pytest.raises(AsideError) as found:
        check_calibrates(speculator(adaptive=False))
    assert "enable_adaptive_verification" in str(found.value.remedy)
    made = speculator()
    made.vllm_config.parallel_config.prefill_context_parallel_size = 2
    with pytest.raises(AsideError, match="context parallelism"):
        check_calibrates(made)
