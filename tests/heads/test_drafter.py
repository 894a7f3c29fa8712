"""The drafter: training and serving agree, and tokens come from the stated distributions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from calib.errors import ConfigurationError, DistributionError
from heads.configuration import DrafterConfiguration
from heads.context_cache import DraftContextCache
from heads.drafter import Drafter, Proposal, processed_by_request
from heads.sampling import SamplingParameters, processed_probabilities
from tests.heads.tiny_models import random_drafter, tiny_configuration, tiny_drafter, tiny_target

pytestmark = pytest.mark.torch

TARGET = tiny_target()
SUBSET = (0, 3, 4, 9, 11, 20, 29, 33, 40)
KINDS: list[dict[str, Any]] = [
    {},
    {"markov_head_type": "gated"},
    {"markov_head_type": "rnn"},
    {"markov_rank": 0},
    {"draft_vocabulary": SUBSET},
    {"draft_vocabulary": SUBSET, "markov_head_type": "rnn"},
]


def features(batch: int, length: int) -> Tensor:
    return torch.randn(batch, length, 64, generator=torch.Generator().manual_seed(2))


@torch.no_grad()
def propose(
    drafter: Drafter,
    tokens: Tensor,  # [B, S]
    feature: Tensor,  # [B, S, 2·D]
    anchors: list[int],
    parameters: list[SamplingParameters],
    uniforms: Tensor | None = None,
) -> Proposal:
    """A proposal through the context cache, one anchor a row."""
    rows = torch.arange(len(tokens))
    cache = DraftContextCache(drafter, len(tokens), tokens.shape[1])
    cache.write(rows, torch.arange(tokens.shape[1]).expand_as(tokens), feature)
    places = torch.tensor(anchors)
    context, mask = cache.read(rows, places)
    if uniforms is None:
        generator = torch.Generator().manual_seed(8)
        shape = (len(tokens), drafter.gamma)
        uniforms = torch.rand(shape, generator=generator, dtype=torch.float64)
    return drafter.propose(tokens[rows, places], places, context, mask, parameters, uniforms)


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: "-".join(map(str, k)) or "vanilla")
def test_teacher_forcing_equals_left_to_right(kind: dict[str, Any]) -> None:
    """Fed with the tokens that were drafted, training computes what serving computed."""
    drafter = tiny_drafter(TARGET, **kind)
    generator = torch.Generator().manual_seed(6)
    tokens = torch.randint(0, 41, (4, 12), generator=generator)
    feature = features(4, 12)
    anchors = [3, 5, 8, 5]
    parameters = [SamplingParameters(t) for t in (1.0, 0.6, 0.0, 1.0)]
    proposal = propose(drafter, tokens, feature, anchors, parameters)
    forced = tokens.clone()
    for row, anchor in enumerate(anchors):
        forced[row, anchor + 1 : anchor + 4] = proposal.tokens[row]
    with torch.no_grad():
        block = drafter.teacher_forced(forced, feature, torch.tensor(anchors)[:, None])
    assert torch.allclose(block.logits[:, 0], proposal.logits, atol=2e-5)
    assert block.confidence_logits is not None
    assert proposal.confidence_logits is not None
    assert torch.allclose(block.confidence_logits[:, 0], proposal.confidence_logits, atol=2e-5)
    expected = torch.stack(
        [processed_probabilities(proposal.logits[r], p) for r, p in enumerate(parameters)]
    )
    assert torch.equal(proposal.probabilities, expected)
    mapping = drafter.draft_to_target
    assert torch.equal(proposal.tokens, mapping[proposal.draft_ids])
    drawn = proposal.probabilities.gather(-1, proposal.draft_ids[..., None])
    assert (drawn > 0).all()
    assert torch.equal(proposal.draft_ids[2], proposal.logits[2].argmax(dim=-1))  # greedy


def test_blocks_of_a_training_batch_do_not_meet() -> None:
    """Other anchors, other sequences, padding and all that follows the anchor are invisible."""
    drafter = tiny_drafter(TARGET)
    tokens = torch.randint(0, 41, (2, 14), generator=torch.Generator().manual_seed(6))
    feature = features(2, 14)
    with torch.no_grad():
        together = drafter.teacher_forced(tokens, feature, torch.tensor([[2, 6, 6], [4, 5, 9]]))
        alone = drafter.teacher_forced(tokens[:1], feature[:1], torch.tensor([[6]]))
        assert torch.allclose(together.logits[0, 1], alone.logits[0, 0], atol=1e-5)
        assert torch.allclose(together.logits[0, 1], together.logits[0, 2], atol=1e-5)
        # At the anchor and after it features may be anything: serving does not have them yet.
        spoiled = feature.clone()
        spoiled[:, 6:] = 1e3
        again = drafter.teacher_forced(tokens, spoiled, torch.tensor([[6], [6]]))
        assert torch.allclose(again.logits[0, 0], alone.logits[0, 0], atol=1e-5)
        # Before it they matter.
        spoiled = feature.clone()
        spoiled[:, 5] += 1.0
        other = drafter.teacher_forced(tokens[:1], spoiled[:1], torch.tensor([[6]]))
        assert (other.logits - alone.logits).abs().max() > 1e-3
        short = drafter.teacher_forced(tokens[:1, :10], feature[:1, :10], torch.tensor([[6]]))
        assert torch.allclose(short.logits, alone.logits, atol=1e-5)


def test_a_block_may_run_over_the_end() -> None:
    drafter = tiny_drafter(TARGET)
    tokens = torch.randint(0, 41, (1, 6), generator=torch.Generator().manual_seed(6))
    with torch.no_grad():
        block = drafter.teacher_forced(tokens, features(1, 6), torch.tensor([[4]]))
        longer = torch.cat([tokens, torch.zeros(1, 3, dtype=torch.long)], dim=1)
        whole = drafter.teacher_forced(longer, features(1, 9), torch.tensor([[4]]))
    assert torch.allclose(block.logits[0, 0, :2], whole.logits[0, 0, :2], atol=1e-5)


@pytest.mark.statistical
def test_tokens_are_drawn_from_the_stated_probabilities() -> None:
    """Position by position, given the prefix: chi-square over the first two draft positions."""
    target = tiny_target(vocab_size=7, sharpness=2.0)
    drafter = tiny_drafter(target, gamma=2)
    count = 6_000
    tokens = torch.randint(0, 7, (1, 6), generator=torch.Generator().manual_seed(3))
    generator = torch.Generator().manual_seed(11)
    uniforms = torch.rand((count, 2), generator=generator, dtype=torch.float64)
    many = tokens.expand(count, -1)
    feature = features(1, 6).expand(count, -1, -1)
    drafted = propose(
        drafter, many, feature, [4] * count, [SamplingParameters(0.8)] * count, uniforms
    )
    first = np.bincount(drafted.tokens[:, 0].numpy(), minlength=7)
    p1 = drafted.probabilities[0, 0].double().numpy()
    assert stats.chisquare(first, p1 / p1.sum() * count).pvalue > 1e-4
    for token in range(7):
        rows = drafted.tokens[:, 0] == token
        p2 = drafted.probabilities[rows][0, 1].double().numpy()
        assert torch.allclose(
            drafted.probabilities[rows][:, 1], drafted.probabilities[rows][0, 1], atol=1e-6
        )
        second = np.bincount(drafted.tokens[rows, 1].numpy(), minlength=7)
        assert stats.chisquare(second, p2 / p2.sum() * rows.sum().item()).pvalue > 1e-4


def test_a_drafter_without_heads_is_the_bare_backbone() -> None:
    configuration = DrafterConfiguration.from_dict(
        {**tiny_configuration(TARGET, markov_rank=0).to_dict(), "enable_confidence_head": False}
    )
    drafter = random_drafter(configuration, TARGET)
    tokens = torch.zeros(1, 5, dtype=torch.long)
    block = drafter.teacher_forced(tokens, features(1, 5), torch.tensor([[2]]))
    assert block.confidence_logits is None
    assert block.logits.shape == (1, 1, 3, 41)
    parameters = [SamplingParameters()]
    assert propose(drafter, tokens, features(1, 5), [2], parameters).confidence_logits is None


def test_rows_may_sample_differently() -> None:
    logits = torch.randn(4, 9, generator=torch.Generator().manual_seed(1))
    parameters = [SamplingParameters(t) for t in (1.0, 0.0, 0.6, 1.0)]
    found = processed_by_request(logits, parameters)
    for row, parameter in enumerate(parameters):
        assert torch.equal(found[row], processed_probabilities(logits[row], parameter))
    with pytest.raises(ConfigurationError, match="parameters: got 3"):
        processed_by_request(logits, parameters[:3])


def test_a_reduced_vocabulary_maps_both_ways() -> None:
    drafter = tiny_drafter(TARGET, draft_vocabulary=SUBSET)
    assert drafter.draft_to_target.tolist() == list(SUBSET)
    assert (drafter.d2t + torch.arange(9)).tolist() == list(SUBSET)
    hidden = torch.randn(2, 32)
    full = hidden @ TARGET.lm_head.weight.T
    assert torch.allclose(drafter.base_logits(hidden), full[:, list(SUBSET)], atol=1e-5)


@pytest.mark.parametrize(
    "mapping", [(0, 3), (0, 3, 3), (3, 0, 5), (0, 3, 41), (-1, 3, 5), ((0, 3, 5), (1, 2, 3))]
)
def test_wrong_mappings_are_refused(mapping: Any) -> None:
    configuration = tiny_configuration(TARGET, draft_vocab_size=3)
    embedding, head = TARGET.embed_tokens.weight, TARGET.lm_head.weight
    with pytest.raises(ConfigurationError, match="draft_to_target"):
        Drafter(configuration, embedding, head, torch.tensor(mapping))
    with pytest.raises(ConfigurationError, match="draft_to_target: got None"):
        Drafter(configuration, embedding, head)


def test_foreign_embeddings_are_refused() -> None:
    configuration = tiny_configuration(TARGET)
    embedding = TARGET.embed_tokens.weight
    with pytest.raises(ConfigurationError, match="embedding"):
        Drafter(configuration, embedding[:, :16], TARGET.lm_head.weight)
    with pytest.raises(ConfigurationError, match="head"):
        Drafter(configuration, embedding, TARGET.lm_head.weight[:40])


def test_the_targets_tensors_are_never_parameters_nor_saved() -> None:
    drafter = tiny_drafter(TARGET, draft_vocabulary=SUBSET)
    assert not any("embedding" in n or n == "_head" for n in drafter.state_dict())
    trained = {n for n, p in drafter.named_parameters() if p.requires_grad}
    assert trained == {n for n in drafter.state_dict() if n != "d2t"}


def test_a_new_confidence_head_says_one_half() -> None:
    drafter = tiny_drafter(TARGET)
    before = drafter.weights_digest()
    drafter.renew_confidence_head()
    assert drafter.weights_digest() != before
    tokens = torch.zeros(1, 5, dtype=torch.long)
    block = drafter.teacher_forced(tokens, features(1, 5), torch.tensor([[2]]))
    assert block.confidence_logits is not None
    assert not block.confidence_logits.any()
    drafter.renew_confidence_head(with_markov=False)
    assert drafter.confidence_head is not None
    assert drafter.confidence_head.proj.weight.shape == (1, 32)
    bare = tiny_drafter(TARGET, markov_rank=0)
    bare.renew_confidence_head()
    assert not bare.configuration.confidence_head_with_markov
    with pytest.raises(ConfigurationError, match="confidence_head_with_markov"):
        bare.renew_confidence_head(with_markov=True)


def test_digest_tells_drafters_apart() -> None:
    assert tiny_drafter(TARGET).weights_digest() == tiny_drafter(TARGET).weights_digest()
    assert tiny_drafter(TARGET).weights_digest() != tiny_drafter(TARGET, seed=9).weights_digest()


def test_nan_weights_are_refused_when_drawing() -> None:
    drafter = tiny_drafter(TARGET)
    with torch.no_grad():
        drafter.model.norm.weight[0] = float("nan")
    tokens = torch.zeros(1, 5, dtype=torch.long)
    with pytest.raises(DistributionError):
        propose(drafter, tokens, features(1, 5), [2], [SamplingParameters()])
