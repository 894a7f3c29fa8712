"""Batches of anchors: every label, hidden state and mask lies where the sequence has it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from calib.errors import ConfigurationError
from heads.responses import Response
from heads.training_data import AnchorSampler, draft_vocabulary

pytestmark = pytest.mark.torch


def response(length: int, prompt: int, first: int = 100) -> Response:
    """Token and last feature say where they come from: both are ``first + i``."""
    tokens = torch.arange(first, first + length, dtype=torch.int32)
    features = torch.stack([torch.zeros(length), torch.arange(first, first + length)], dim=-1)
    return Response(
        tokens=tokens,
        prompt_length=prompt,
        features=features[:-1].half(),
        log_normalizer=torch.arange(first, first + length - 1).float() / 10,
        temperature=1.0,
        domain="chat",
        digest="",
    )


def sampler(responses: list[Response], **changes: int) -> AnchorSampler:
    options = {"gamma": 3, "hidden_size": 1, "sequences": 2, "anchors": 4, "seed": 0, **changes}
    return AnchorSampler(responses, **options)


def test_everything_lies_where_the_sequence_has_it() -> None:
    responses = [response(12, 4), response(7, 2, 300)]
    batch = sampler(responses).batch(0)
    assert batch.tokens.shape == (2, 12)
    for row in range(2):
        first = int(batch.tokens[row, 0])
        source = responses[0] if first == 100 else responses[1]
        length = len(source.tokens)
        assert not batch.tokens[row, length:].any()
        assert not batch.features[row, length - 1 :].any()
        for a, anchor in enumerate(batch.anchor_positions[row].tolist()):
            assert source.prompt_length <= anchor <= length - 2
            for k in range(1, 4):
                assert bool(batch.mask[row, a, k - 1]) == (anchor + k < length)
                if anchor + k < length:
                    assert int(batch.labels[row, a, k - 1]) == first + anchor + k
                    prefix_end = anchor + k - 1
                    assert batch.last_hidden[row, a, k - 1].item() == first + prefix_end
                    expected = (first + prefix_end) / 10
                    assert batch.log_normalizer[row, a, k - 1].item() == pytest.approx(expected)


def test_batches_depend_on_seed_and_step_alone() -> None:
    responses = [response(9 + i, 3, 40 * i) for i in range(5)]
    unbroken = list(sampler(responses).batches(0, 6))
    resumed = list(sampler(responses).batches(3, 6))
    assert len(unbroken) == 6
    for one, other in zip(unbroken[3:], resumed, strict=True):
        assert torch.equal(one.tokens, other.tokens)
        assert torch.equal(one.anchor_positions, other.anchor_positions)
    other_seed = sampler(responses, seed=1).batch(0)
    assert not torch.equal(other_seed.anchor_positions, unbroken[0].anchor_positions)


def test_an_epoch_meets_every_response_once() -> None:
    responses = [response(8, 3, 40 * i) for i in range(6)]
    firsts = [int(t[0]) for b in sampler(responses).batches(0, 6) for t in b.tokens]
    assert sorted(firsts[:6]) == sorted(firsts[6:]) == [40 * i for i in range(6)]
    assert firsts[:6] != firsts[6:]
    # A batch larger than the data goes through them again.
    many = sampler(responses, sequences=15).batch(0).tokens[:, 0].tolist()
    assert all(2 <= many.count(40 * i) <= 3 for i in range(6))


def test_anchors_do_not_repeat_where_there_are_enough() -> None:
    batch = sampler([response(12, 4)], sequences=1, anchors=7).batch(0)
    assert batch.anchor_positions[0].tolist() == [4, 5, 6, 7, 8, 9, 10]
    batch = sampler([response(6, 4)], sequences=1, anchors=5).batch(0)
    assert batch.anchor_positions[0].tolist() == [4] * 5


def test_responses_too_short_for_a_block_are_left_out() -> None:
    short, fine = response(5, 4), response(6, 4, 200)
    for step in range(4):
        assert (sampler([short, fine]).batch(step).tokens[:, 0] == 200).all()
    # With features for the last token too (never sampled so, but stored so elsewhere).
    whole = replace(short, features=torch.zeros(5, 2).half(), log_normalizer=torch.zeros(5))
    with pytest.raises(ConfigurationError, match="long enough"):
        sampler([short, whole])


def test_features_must_fit() -> None:
    other = replace(response(8, 3), features=torch.zeros(7, 3).half())
    with pytest.raises(ConfigurationError, match="features of width"):
        sampler([response(8, 3), other])
    with pytest.raises(ConfigurationError, match="features of width"):
        sampler([response(8, 3)], hidden_size=3)


def test_the_draft_vocabulary_is_the_most_frequent() -> None:
    def said(*tokens: int, prompt: int) -> Response:
        return replace(
            response(len(tokens), prompt), tokens=torch.tensor(tokens, dtype=torch.int32)
        )

    responses = [said(9, 9, 9, 4, 4, 7, prompt=3), said(5, 4, 7, 2, prompt=1)]
    # Answers: 4 three times, 7 twice, 2 once; prompts: 9 thrice and 5 once at a tenth.
    assert draft_vocabulary(responses, 12, 3).tolist() == [2, 4, 7]
    assert draft_vocabulary(responses, 12, 4).tolist() == [2, 4, 7, 9]
    assert draft_vocabulary(responses, 12, 6).tolist() == [0, 2, 4, 5, 7, 9]  # ties: lower ids
    for size in (0, 13):
        with pytest.raises(ConfigurationError, match="draft_vocab_size"):
            draft_vocabulary(responses, 12, size)
