"""The context cache gives what computing the context anew would give."""

from __future__ import annotations

import pytest
import torch

from heads.context_cache import DraftContextCache
from tests.heads.tiny_models import tiny_drafter, tiny_target

pytestmark = pytest.mark.torch

TARGET = tiny_target()


@torch.no_grad()
def test_entries_written_in_pieces_equal_recomputation() -> None:
    drafter = tiny_drafter(TARGET)
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(3, 10, 64, generator=generator)
    cache = DraftContextCache(drafter, 5, 12)
    slots = torch.tensor([4, 0, 2])
    places = torch.arange(10).expand(3, -1)
    # A first block whose end is rejected, then the tokens that take those positions.
    wrong = features.clone()
    wrong[:, 4:7] += 1.0
    cache.write(slots, places[:, :7], wrong[:, :7])
    cache.write(slots[[1]], places[[1], 4:], features[[1], 4:])
    cache.write(slots[[0, 2]], places[[0, 2], 4:], features[[0, 2], 4:])
    anchors = torch.tensor([9, 5, 7])
    pairs, mask = cache.read(slots, anchors)
    assert mask.sum(dim=1).tolist() == [9, 5, 7]
    expected = drafter.model.context(features, places)
    for (keys, values), (own_keys, own_values) in zip(pairs, expected, strict=True):
        assert keys.shape == (3, 9, 2, 8)
        for row, anchor in enumerate(anchors.tolist()):
            assert torch.allclose(keys[row, :anchor], own_keys[row, :anchor], atol=1e-6)
            assert torch.allclose(values[row, :anchor], own_values[row, :anchor], atol=1e-6)


@torch.no_grad()
def test_slots_are_apart() -> None:
    drafter = tiny_drafter(TARGET)
    cache = DraftContextCache(drafter, 2, 4)
    cache.write(torch.tensor([1]), torch.tensor([[0, 1]]), torch.ones(1, 2, 64))
    pairs, _ = cache.read(torch.tensor([0]), torch.tensor([2]))
    assert all(not keys.any() and not values.any() for keys, values in pairs)
