"""What a vLLM request says of itself before anything is drafted for it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dspark_calib_client.plugins.vllm.request_tags import TagTable, VLLMTags


def tags(name: str = "r", lora: Any = None, **parameters: Any) -> VLLMTags:
    new = SimpleNamespace(
        req_id=name, sampling_params=SimpleNamespace(**parameters), lora_request=lora
    )
    found = VLLMTags(new, "domain", "tenant")
    found.settle()
    return found


def test_greedy_is_what_vllm_takes_for_it() -> None:
    assert (tags(temperature=1e-6).greedy, tags(temperature=1e-6).temperature) == (True, 0.0)
    assert (tags(temperature=0.7).greedy, tags(temperature=0.7).temperature) == (False, 0.7)


def test_tags_come_from_extra_arguments() -> None:
    found = tags(extra_args={"domain": "code", "tenant": "acme"})
    assert found.domain == "code"
    assert found.tenant not in (None, "acme")
    assert tags(extra_args={"domain": 7}).domain is None
    assert tags(lora=SimpleNamespace(lora_name="sql")).adapter == "sql"


@pytest.mark.parametrize(
    ("parameters", "flags"),
    [
        ({}, 0),
        ({"repetition_penalty": 1.1}, 8),
        ({"structured_outputs": object()}, 8),
        ({"allowed_token_ids": [1]}, 8),
        ({"bad_words": []}, 0),
    ],
)
def test_what_the_drafter_does_not_see_is_flagged(parameters: Any, flags: int) -> None:
    assert tags(**parameters).flags == flags


def test_requests_that_warm_the_engine_up_are_flagged() -> None:
    assert tags("_warmup_0_").flags == 1
    assert tags("_v2_mixed_warmup_3").flags == 1


def test_stop_tokens() -> None:
    assert tags(all_stop_token_ids={2, 5}, eos_token_id=7).stops == {2, 5, 7}
    ignoring = tags(all_stop_token_ids={2}, ignore_eos=True, stop_token_ids=[9])
    assert ignoring.stops == {9}


def test_requests_that_are_gone_are_forgotten() -> None:
    table = TagTable("domain", "tenant")
    for number in range(200):
        name = f"r{number}"
        new = SimpleNamespace(req_id=name, sampling_params=SimpleNamespace())
        table.add([new], {name: 0})
    assert len(table) < 100
    (found, unknown) = table.of(["r199", "r0"])
    assert found is not None
    assert unknown is None


def test_what_a_draft_was_made_with_is_remembered_for_each_request() -> None:
    """Also where it sat out a step, came in between, or came again under its old name."""
    table = TagTable("domain", "tenant")

    def come(name: str) -> None:
        new = SimpleNamespace(req_id=name, sampling_params=SimpleNamespace())
        table.add([new], {"a": 0, "b": 1})

    come("a")
    come("b")
    both = ["a", "b"]
    assert table.drafted(table.of(both)) == [None, None]
    table.mark(both, 0)
    assert table.drafted(table.of(both)) == [0, 0]
    assert table.of(both) is table.of(["a", "b"])  # the same batch is looked up once
    table.mark(both, 1)
    table.mark(["a"], 2)
    assert table.drafted(table.of(both)) == [2, 1]
    table.mark(["b"], 2)
    both.reverse()
    assert table.drafted(table.of(both)) == [2, 2]
    table.mark(both, 2)
    come("b")
    assert table.drafted(table.of(both)) == [None, 2]
    table.mark(both, 2)
    assert table.drafted(table.of([*both, "unknown"])) == [2, 2, None]
