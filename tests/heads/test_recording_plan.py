"""Which request comes when: domains and temperatures in turn, the same in every run."""

from __future__ import annotations

from collections import Counter
from itertools import islice

import pytest

from calib.errors import ConfigurationError
from heads.prompts import Prompt
from heads.recording_plan import PlannedRequest, RecordingPlan, plan_requests
from tests.heads.tiny_models import prompts, tiny_target

pytestmark = pytest.mark.torch

TARGET = tiny_target()
PLAN = RecordingPlan(temperatures=(1.0, 0.6, 0.0), max_new_tokens=9)


def planned(count: int, first: int = 0, texts: list[Prompt] | None = None) -> list[PlannedRequest]:
    given = prompts(9) if texts is None else texts
    return list(islice(plan_requests(TARGET, given, PLAN, first), count))


def test_domains_take_turns_and_prompts_keep_their_order() -> None:
    requests = planned(6)
    assert [p.request.number for p in requests] == list(range(6))
    assert [p.prompt.domain for p in requests] == ["chat", "code", "math"] * 2
    chat = [p.prompt.text for p in planned(9) if p.prompt.domain == "chat"]
    assert chat == [p.text for p in prompts(9) if p.domain == "chat"]
    assert requests[0].request.prompt == tuple(TARGET.encode_chat(requests[0].prompt.text))
    assert requests[0].request.max_new_tokens == 9


def test_a_prompt_comes_again_at_the_other_temperatures_first() -> None:
    ways = [(p.prompt.text, p.request.parameters.temperature) for p in planned(27)]
    assert len(set(ways)) == 27
    assert Counter(t for _, t in ways) == {1.0: 9, 0.6: 9, 0.0: 9}
    again = [(p.prompt.text, p.request.parameters.temperature) for p in planned(27, first=27)]
    assert set(again) == set(ways)


def test_any_request_can_be_the_first() -> None:
    assert planned(5, first=4) == planned(9)[4:]


def test_small_domains_repeat_sooner() -> None:
    texts = [Prompt("a", "code", "t"), *(Prompt(c, "chat", "t") for c in "bcd")]
    assert [p.prompt.text for p in planned(8, texts=texts)] == list("bacadaba")


def test_long_and_empty_prompts_are_left_out() -> None:
    short, long = Prompt("ab", "chat", "t"), Prompt("x" * 200, "chat", "t")
    assert {p.prompt.text for p in planned(4, texts=[long, short])} == {"ab"}
    with pytest.raises(ConfigurationError, match="max_prompt_tokens"):
        planned(1, texts=[long])
    with pytest.raises(ConfigurationError, match="max_prompt_tokens"):
        planned(1, texts=[])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("blocks", 0),
        ("slots", 0),
        ("shard_requests", 0),
        ("seed", -1),
        ("revision", -1),
        ("engine", ""),
        ("temperatures", ()),
    ],
)
def test_wrong_options_are_named(field: str, value: object) -> None:
    with pytest.raises(ConfigurationError) as caught:
        RecordingPlan(**{field: value})  # type: ignore[arg-type]
    assert caught.value.field == field
    with pytest.raises(ConfigurationError, match="temperature"):
        RecordingPlan(temperatures=(1.0, -0.6))
