"""Sampled responses: right numbers, any batch, and a run that can be cut off."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from calib.errors import ConfigurationError, FormatError
from heads.prompts import Prompt
from heads.responses import Response, ResponsePlan, ResponseSampler, ResponseStore, sample_responses
from heads.targets import HuggingFaceTarget
from tests.heads.tiny_models import plain_logits, prompts, tiny_target

pytestmark = pytest.mark.torch

TARGET = tiny_target(eos=3, sharpness=3.0)
PLAN = ResponsePlan(
    temperatures=(1.0, 0.6, 0.0), max_new_tokens=12, max_prompt_tokens=10, slots=4, seed=5
)


def run(
    count: int, plan: ResponsePlan = PLAN, target: HuggingFaceTarget = TARGET
) -> dict[int, Response]:
    numbered = list(enumerate(prompts(count)))
    return dict(ResponseSampler(target, plan).run(numbered))


def test_every_number_is_what_the_plain_model_gives() -> None:
    responses = run(7)
    assert sorted(responses) == list(range(7))
    for number, response in responses.items():
        prompt = prompts(7)[number]
        ids = TARGET.encode_chat(prompt.text)
        tokens = response.tokens.tolist()
        assert tokens[: response.prompt_length] == ids
        assert response.digest == prompt.digest
        assert response.domain == prompt.domain
        assert response.temperature == PLAN.temperature_of(number)
        assert len(response.features) == len(response.log_normalizer) == len(tokens) - 1
        with torch.inference_mode():
            output = TARGET.model(
                torch.tensor([tokens[:-1]]), output_hidden_states=True, use_cache=False
            )
        states = [output.hidden_states[i + 1][0] for i in TARGET.layer_ids]
        expected = torch.cat(states, dim=-1)
        assert torch.allclose(response.features.float(), expected, atol=2e-2, rtol=2e-3)
        answered = slice(response.prompt_length - 1, None)
        normalizers = torch.logsumexp(output.logits[0], dim=-1)
        assert torch.allclose(response.log_normalizer[answered], normalizers[answered], atol=1e-3)


def test_answers_end_at_a_stop_token_or_the_limit() -> None:
    responses = run(30)
    ended = 0
    for response in responses.values():
        answer = response.tokens[response.prompt_length :].tolist()
        assert 1 <= len(answer) <= 12
        assert 3 not in answer[:-1]
        ended += answer[-1] == 3
        assert answer[-1] == 3 or len(answer) == 12
    assert 0 < ended < 30


def test_greedy_answers_are_the_plain_models() -> None:
    response = run(3)[2]
    assert response.temperature == 0.0
    tokens = response.tokens.tolist()
    for end in range(response.prompt_length, len(tokens)):
        assert tokens[end] == int(plain_logits(TARGET, tokens[:end])[-1].argmax())


def test_a_ragged_batch_equals_one_at_a_time() -> None:
    together, alone = run(9), run(9, replace(PLAN, slots=1))
    wide = run(9, replace(PLAN, slots=16))
    for number, response in together.items():
        assert response.tokens.tolist() == alone[number].tokens.tolist()
        assert response.tokens.tolist() == wide[number].tokens.tolist()
        assert torch.allclose(response.features.float(), alone[number].features.float(), atol=2e-2)


def test_long_prompts_are_left_out() -> None:
    numbered = [(0, Prompt("x" * 11, "chat", "t")), (1, Prompt("ab", "chat", "t"))]
    assert set(dict(ResponseSampler(TARGET, PLAN).run(numbered))) == {1}
    assert list(ResponseSampler(TARGET, PLAN).run(numbered[:1])) == []


@pytest.mark.statistical
def test_first_tokens_follow_the_target() -> None:
    target = tiny_target(vocab_size=9, sharpness=1.5)
    plan = ResponsePlan(temperatures=(0.7,), max_new_tokens=1, slots=64, seed=1)
    count = 1500
    numbered = [(i, Prompt("ab", "chat", "t")) for i in range(count)]
    firsts = [int(r.tokens[-1]) for _, r in ResponseSampler(target, plan).run(numbered)]
    logits = plain_logits(target, target.encode_chat("ab"))[-1] / 0.7
    expected = torch.softmax(logits.double(), -1).numpy() * count
    assert stats.chisquare(np.bincount(firsts, minlength=9), expected).pvalue > 1e-4


# ---- a run that is cut off ----


def sample(
    folder: Path, count: int = 9, plan: ResponsePlan = PLAN, **options: Any
) -> ResponseStore:
    store = ResponseStore(folder, shard_size=2)
    sample_responses(TARGET, prompts(count), plan, store, **options)
    return store


def test_a_cut_off_run_and_its_rest_equal_one_run(tmp_path: Path) -> None:
    whole = sample(tmp_path / "whole").load()

    def cut_off(done: int, total: int) -> None:
        assert total == 9
        if done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sample(tmp_path / "cut", progress=cut_off)
    kept = ResponseStore(tmp_path / "cut").load()
    assert len(kept) == 4  # two shards; what was in memory is sampled again
    rest = sample(tmp_path / "cut").load()
    assert sorted(rest) == sorted(whole) == list(range(9))
    for number, response in whole.items():
        assert response.tokens.tolist() == rest[number].tokens.tolist()
        assert torch.allclose(response.features.float(), rest[number].features.float(), atol=2e-2)
        assert replace(response, tokens=0, features=0, log_normalizer=0) == replace(
            rest[number], tokens=0, features=0, log_normalizer=0
        )


def test_a_finished_run_samples_nothing_more(tmp_path: Path) -> None:
    store = sample(tmp_path)
    shards = [p.name for p in store.shards()]
    calls: list[int] = []
    sample(tmp_path, progress=lambda done, total: calls.append(done))
    assert calls == []
    assert [p.name for p in store.shards()] == shards


def test_more_prompts_extend_a_run(tmp_path: Path) -> None:
    first = sample(tmp_path, 4).load()
    more = sample(tmp_path, 9).load()
    assert sorted(more) == list(range(9))
    assert all(torch.equal(more[n].tokens, r.tokens) for n, r in first.items())


def test_a_deleted_shard_is_sampled_again_and_overwrites_none(tmp_path: Path) -> None:
    store = sample(tmp_path)
    whole = store.load()
    store.shards()[1].unlink()
    sample(tmp_path)
    again = store.load()
    assert sorted(again) == sorted(whole)
    assert all(torch.equal(again[n].tokens, r.tokens) for n, r in whole.items())


def test_another_plan_or_other_prompts_are_refused(tmp_path: Path) -> None:
    sample(tmp_path)
    with pytest.raises(ConfigurationError, match="another temperature"):
        sample(tmp_path, plan=replace(PLAN, temperatures=(1.0,)))
    with pytest.raises(ConfigurationError, match="another prompt"):
        sample_responses(TARGET, prompts(9)[::-1], PLAN, ResponseStore(tmp_path))


def test_damaged_shards_are_named(tmp_path: Path) -> None:
    store = sample(tmp_path, 2)
    path = store.shards()[0]
    whole = path.read_bytes()
    path.write_bytes(whole[:100])
    with pytest.raises(FormatError, match=r"responses-00000\.pt.*delete it and sample again"):
        store.load()
    for foreign in ({"0": {"tokens": torch.zeros(2)}}, [1, 2], {"x": {}}):
        torch.save(foreign, path)
        with pytest.raises(FormatError, match="no response shard"):
            store.sources()


def test_hidden_states_beyond_float16_are_refused() -> None:
    loud = tiny_target(sharpness=1.0, layer_ids=(1, 2))
    with torch.no_grad():
        loud.model.model.layers[1].mlp.down_proj.weight.mul_(1e7)
    with pytest.raises(ConfigurationError, match="float16"):
        run(1, PLAN, loud)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_new_tokens", 0),
        ("max_prompt_tokens", 0),
        ("slots", 0),
        ("seed", -1),
        ("temperatures", ()),
    ],
)
def test_wrong_options_are_named(field: str, value: object) -> None:
    with pytest.raises(ConfigurationError) as caught:
        ResponsePlan(**{field: value})  # type: ignore[arg-type]
    assert caught.value.field == field
    with pytest.raises(ConfigurationError, match="temperature"):
        ResponsePlan(temperatures=(1.0, -1.0))
    with pytest.raises(ConfigurationError, match="shard_size"):
        ResponseStore(Path("unused"), 0)
