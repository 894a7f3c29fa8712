from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

from dspark_calib_client.plugins.common.request_tags import RequestTags
from dspark_calib_client.plugins.sglang.request_tags import tags_of, tags_of_batch
from tests.client.plugins.sglang.host import EOS, Request

pytestmark = pytest.mark.torch


def settled(request: Request) -> RequestTags:
    found = tags_of(request, "domain", "tenant")
    found.settle()
    return found


def tags(rid: str = "r", **parameters: object) -> RequestTags:
    return settled(Request(rid, **parameters))


def test_greedy_is_a_temperature_of_zero() -> None:
    """SGLang turns temperature 0 into temperature 1 with top-k 1."""
    greedy, sampled = tags(top_k=1), tags(temperature=0.7)
    assert (greedy.temperature, greedy.greedy) == (0.0, True)
    assert (sampled.temperature, sampled.greedy) == (0.7, False)


def test_tags_come_from_custom_parameters() -> None:
    found = tags(custom_params={"domain": "code", "tenant": "alice"})
    assert found.domain == "code"
    assert found.tenant not in (None, "alice")
    assert tags(custom_params=None).domain is None


@pytest.mark.parametrize(
    ("rid", "parameters", "flags"),
    [
        ("r", {}, 0),
        ("HEALTH_CHECK_1", {}, 1),
        ("r", {"presence_penalty": 0.1}, 8),
        ("r", {"json_schema": "{}"}, 8),
        ("r", {"logit_bias": {"7": 1.0}}, 8),
        ("r", {"repetition_penalty": 1.0, "min_new_tokens": 0}, 0),
    ],
)
def test_flags(rid: str, parameters: dict[str, object], flags: int) -> None:
    assert tags(rid, **parameters).flags == flags


def test_stop_tokens_come_from_everywhere_but_ignore_eos() -> None:
    request = Request("r", stop_token_ids={9})
    request.tokenizer = SimpleNamespace(eos_token_id=4, additional_stop_token_ids={5})
    assert settled(request).stops == {EOS, 9, 4, 5}
    assert tags(ignore_eos=True).stops == frozenset()


def test_a_request_keeps_its_tags_and_nothing_of_ours_keeps_a_request() -> None:
    stays, goes = Request("stays"), Request("goes")
    first, other = batch(stays, goes)
    assert batch(goes, stays) == [other, first]  # whatever the order
    assert batch(stays, Request("new"))[0] is first
    gone = weakref.ref(goes)
    del goes
    gc.collect()
    assert gone() is None
    other.settle()
    assert other.request != settled(stays).request


def batch(*reqs: Request) -> list[RequestTags]:
    return tags_of_batch(reqs, "domain", "tenant")
