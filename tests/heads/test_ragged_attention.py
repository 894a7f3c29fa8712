"""The ragged cache against the model's own attention, without any cache, row by row."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from calib.errors import ConfigurationError, TargetLoadError
from heads.ragged_attention import RaggedCache, grouped_attention
from heads.targets import HuggingFaceTarget
from tests.heads.tiny_models import plain_logits, tiny_target

pytestmark = pytest.mark.torch

TARGET = tiny_target(layer_ids=(-1, 1, 2))


def sequences(*lengths: int, seed: int = 0) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, 41, (n,), generator=generator).tolist() for n in lengths]


def forward(
    target: HuggingFaceTarget,
    cache: RaggedCache,
    slots: list[int],
    pieces: list[list[int]],
    starts: list[int],
) -> Tensor:
    """Logits of pieces of equal or unequal length, padded at the end; [R, Q, V]."""
    width = max(map(len, pieces))
    ids = torch.tensor([p + [0] * (width - len(p)) for p in pieces])
    positions = torch.tensor([[s + i for i in range(width)] for s in starts])
    output = target.forward(ids, positions, torch.tensor(slots), cache)
    assert output.features.shape == (len(slots), width, 3 * 32)
    return target.logits(output.last_hidden)


def assert_same(found: Tensor, expected: Tensor) -> None:
    assert found.shape == expected.shape
    assert (found - expected).abs().max() < 2e-4


def test_ragged_rows_equal_the_plain_model() -> None:
    texts = sequences(9, 4, 7)
    cache = RaggedCache(3, 24)
    logits = forward(TARGET, cache, [0, 1, 2], texts, [0, 0, 0])
    for row, text in enumerate(texts):
        assert_same(logits[row, : len(text)], plain_logits(TARGET, text))
    # The next pieces start where each row really ended: padding is overwritten.
    more = sequences(5, 5, 5, seed=1)
    logits = forward(TARGET, cache, [0, 1, 2], more, [len(t) for t in texts])
    for row, text in enumerate(texts):
        assert_same(logits[row], plain_logits(TARGET, text + more[row])[len(text) :])


def test_rejected_tokens_are_overwritten() -> None:
    texts = sequences(6, 8)
    cache = RaggedCache(2, 24)
    forward(TARGET, cache, [0, 1], texts, [0, 0])
    drafted = sequences(5, 5, seed=2)
    forward(TARGET, cache, [0, 1], drafted, [6, 8])
    # Row 0 keeps two of its five tokens, row 1 none.
    kept = [texts[0] + drafted[0][:2], texts[1]]
    again = sequences(4, 4, seed=3)
    logits = forward(TARGET, cache, [0, 1], again, [8, 8])
    for row in range(2):
        assert_same(logits[row], plain_logits(TARGET, kept[row] + again[row])[8:])


def test_subsets_of_rows_in_any_order() -> None:
    texts = sequences(5, 7, 3, 6)
    cache = RaggedCache(4, 24)
    for slots in ([2, 0], [3], [1]):
        forward(TARGET, cache, slots, [texts[s] for s in slots], [0] * len(slots))
    more = sequences(3, 3, 3, 3, seed=4)
    for slots in ([3, 1], [0, 2]):
        logits = forward(
            TARGET, cache, slots, [more[s] for s in slots], [len(texts[s]) for s in slots]
        )
        for row, slot in enumerate(slots):
            expected = plain_logits(TARGET, texts[slot] + more[slot])
            assert_same(logits[row], expected[len(texts[slot]) :])


def test_a_slot_can_be_given_to_another_request() -> None:
    old, new = sequences(12, 4)
    cache = RaggedCache(1, 24)
    forward(TARGET, cache, [0], [old], [0])
    assert_same(forward(TARGET, cache, [0], [new], [0])[0], plain_logits(TARGET, new))


def test_grouped_attention_equals_the_formula() -> None:
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(2, 6, 3, 8, generator=generator)
    key, value = (torch.randn(2, 2, 5, 8, generator=generator) for _ in range(2))
    mask = torch.zeros(2, 1, 3, 5)
    mask[1, :, 0, 2:] = torch.finfo(torch.float32).min
    found, _ = grouped_attention(torch.nn.Identity(), query, key, value, mask, scaling=0.3)
    for row in range(2):
        for head in range(6):
            scores = 0.3 * query[row, head] @ key[row, head // 3].T + mask[row, 0]
            expected = torch.softmax(scores.double(), -1) @ value[row, head // 3].double()
            assert (found[row, :, head].double() - expected).abs().max() < 1e-5


def test_a_plain_pass_of_the_wrapped_model_is_causal() -> None:
    text = sequences(9)[0]
    with torch.inference_mode():
        logits = TARGET.model(torch.tensor([text]), use_cache=False).logits[0].float()
    assert_same(logits, plain_logits(TARGET, text))


def test_attention_that_this_is_not_is_refused() -> None:
    query, key = torch.zeros(1, 2, 1, 4), torch.zeros(1, 2, 9, 4)
    mask = torch.zeros(1, 1, 1, 9)
    for option, value in (("softcap", 30.0), ("s_aux", torch.zeros(2)), ("sliding_window", 8)):
        with pytest.raises(TargetLoadError, match=option):
            grouped_attention(torch.nn.Identity(), query, key, key, mask, **{option: value})
    grouped_attention(torch.nn.Identity(), query, key, key, mask, sliding_window=9, softcap=None)


def test_capacity_and_slots_are_checked() -> None:
    cache = RaggedCache(2, 8)
    with pytest.raises(ConfigurationError, match="capacity: got 8"):
        forward(TARGET, cache, [0], [[1] * 9], [0])
    with pytest.raises(ConfigurationError, match="rows"):
        forward(TARGET, cache, [2], [[1]], [0])
    with pytest.raises(ConfigurationError, match="slots"):
        RaggedCache(0, 8)
    with pytest.raises(RuntimeError, match="begin"):
        RaggedCache(1, 8).update(torch.zeros(1, 2, 1, 8), torch.zeros(1, 2, 1, 8), 0)
