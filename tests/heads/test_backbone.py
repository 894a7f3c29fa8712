"""The parallel backbone: what each position sees, checked against a naive float64 twin."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from heads.backbone import ParallelBackbone, RotaryPositions
from heads.configuration import DrafterConfiguration
from tests.heads.test_configuration import VALUES

pytestmark = pytest.mark.torch


def backbone(**changes: object) -> ParallelBackbone:
    torch.manual_seed(0)
    module = ParallelBackbone(DrafterConfiguration.from_dict({**VALUES, **changes})).eval()
    with torch.no_grad():
        for name, value in module.named_parameters():
            if "norm" in name:
                value.uniform_(0.5, 1.5)
    return module


def see_all(batch: int, new: int, context: int) -> Tensor:
    return torch.ones(batch, new, context + new, dtype=torch.bool)


def inputs(batch: int, context: int, new: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(4)
    features = torch.randn(batch, context, 64, generator=generator)
    embedded = torch.randn(batch, new, 32, generator=generator)
    positions = torch.arange(context, context + new).expand(batch, -1)
    return features, embedded, positions


@torch.no_grad()
def forward(
    module: ParallelBackbone, features: Tensor, embedded: Tensor, positions: Tensor
) -> Tensor:
    batch, context = features.shape[:2]
    pairs = module.context(features, torch.arange(context).expand(batch, -1))
    states: Tensor = module(embedded, positions, pairs, see_all(batch, embedded.shape[1], context))
    return states


# ---- a naive twin: one head, one query at a time ----


def norm64(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight


def turn64(vector: Tensor, position: int, theta: float) -> Tensor:
    """Rotary position embedding of one head's vector, pair (i, i + d/2) by its own angle."""
    half = len(vector) // 2
    turned = vector.clone()
    for i in range(half):
        angle = position * theta ** (-2 * i / len(vector))
        a, b = vector[i], vector[i + half]
        turned[i] = a * math.cos(angle) - b * math.sin(angle)
        turned[i + half] = b * math.cos(angle) + a * math.sin(angle)
    return turned


def naive(module: ParallelBackbone, features: Tensor, embedded: Tensor, first: int) -> Tensor:
    """One sequence: context [S, 2·D] at positions 0 …, block [Q, D] from ``first`` on."""
    w = {name: value.double() for name, value in module.state_dict().items()}
    fused = norm64(features.double() @ w["fc.weight"].T, w["hidden_norm.weight"], 1e-6)
    states = embedded.double()
    for layer in range(2):
        p = f"layers.{layer}."
        normed = norm64(states, w[p + "input_layernorm.weight"], 1e-6)
        source = torch.cat([fused, normed])
        places = [*range(len(fused)), *range(first, first + len(states))]
        attended = torch.zeros(len(states), 32, dtype=torch.float64)
        for query in range(len(states)):
            for head in range(4):
                own, group = (
                    slice(8 * head, 8 * head + 8),
                    slice(8 * (head // 2), 8 * (head // 2) + 8),
                )
                q = w[p + "self_attn.q_proj.weight"][own] @ normed[query]
                q = turn64(q, first + query, 10_000.0)
                keys = source @ w[p + "self_attn.k_proj.weight"][group].T
                keys = torch.stack(
                    [turn64(k, at, 10_000.0) for k, at in zip(keys, places, strict=True)]
                )
                values = source @ w[p + "self_attn.v_proj.weight"][group].T
                attended[query, own] = torch.softmax(keys @ q / math.sqrt(8), 0) @ values
        states = states + attended @ w[p + "self_attn.o_proj.weight"].T
        normed = norm64(states, w[p + "post_attention_layernorm.weight"], 1e-6)
        gate = normed @ w[p + "mlp.gate_proj.weight"].T
        up = normed @ w[p + "mlp.up_proj.weight"].T
        states = states + (gate * torch.sigmoid(gate) * up) @ w[p + "mlp.down_proj.weight"].T
    return norm64(states, w["norm.weight"], 1e-6)


def test_equals_a_naive_twin() -> None:
    module = backbone()
    features, embedded, positions = inputs(2, 6, 3)
    found = forward(module, features, embedded, positions)
    for row in range(2):
        expected = naive(module, features[row], embedded[row], 6)
        assert (found[row].double() - expected).abs().max() < 2e-5


def test_block_positions_see_each_other_in_both_directions() -> None:
    module = backbone()
    features, embedded, positions = inputs(1, 4, 3)
    before = forward(module, features, embedded, positions)
    for changed in range(3):
        other = embedded.clone()
        other[0, changed] += 1.0
        moved = (forward(module, features, other, positions) - before).abs().amax(dim=-1)[0]
        assert (moved > 1e-4).all()


def test_context_entries_depend_on_their_own_position_alone() -> None:
    module = backbone()
    features, _, _ = inputs(1, 5, 1)
    other = features.clone()
    other[0, 2] += 1.0
    places = torch.arange(5)[None]
    with torch.no_grad():
        pairs = zip(module.context(features, places), module.context(other, places), strict=True)
        for (keys, values), (other_keys, other_values) in pairs:
            for mine, theirs in ((keys, other_keys), (values, other_values)):
                moved = (mine - theirs).abs().amax(dim=(-1, -2))[0]
                assert moved[2] > 0
                assert (moved[[0, 1, 3, 4]] < 1e-6).all()


def test_rows_do_not_meet_and_padding_is_invisible() -> None:
    module = backbone()
    features, embedded, positions = inputs(2, 6, 3)
    mask = see_all(2, 3, 6)
    mask[1, :, 4:6] = False  # the second sequence has four context entries only
    places = torch.tensor([[0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 0, 0]])
    features[1, 4:] = 1e4
    with torch.no_grad():
        batch = module(embedded, positions, module.context(features, places), mask)
    alone = forward(module, features[1:, :4], embedded[1:], positions[1:])
    assert torch.allclose(batch[1], alone[0], atol=1e-5)
    assert torch.allclose(
        batch[0], forward(module, features[:1], embedded[:1], positions[:1])[0], atol=1e-5
    )


def test_only_relative_positions_matter() -> None:
    module = backbone()
    features, embedded, positions = inputs(1, 4, 3)
    before = forward(module, features, embedded, positions)
    with torch.no_grad():
        pairs = module.context(features, torch.arange(4)[None] + 100)
        after = module(embedded, positions + 100, pairs, see_all(1, 3, 4))
    assert torch.allclose(before, after, atol=1e-4)


def test_rotary_angles_stay_exact_in_a_half_precision_model() -> None:
    rotary = RotaryPositions(DrafterConfiguration.from_dict(VALUES))
    heads = torch.randn(1, 3, 1, 8, generator=torch.Generator().manual_seed(1))
    positions = torch.tensor([[0, 17, 1900]])
    expected = torch.stack(
        [turn64(heads[0, i, 0].double(), int(positions[0, i]), 1e4) for i in range(3)]
    )
    found = rotary.bfloat16()(heads, positions)[0, :, 0]
    assert (found.double() - expected).abs().max() < 2e-3  # 1,900 radians in float32


@pytest.mark.parametrize("changes", [{"qk_norm": True}, {"attention_bias": True}])
def test_families_add_their_weights(changes: dict[str, object]) -> None:
    names = set(backbone(**changes).state_dict())
    plain = set(backbone().state_dict())
    added = {
        n.removeprefix("layers.0.self_attn.") for n in names - plain if n.startswith("layers.0")
    }
    expected = (
        {"q_norm.weight", "k_norm.weight"}
        if "qk_norm" in changes
        else {f"{p}_proj.bias" for p in "qkvo"}
    )
    assert added == expected
    features, embedded, positions = inputs(1, 4, 3)
    assert forward(backbone(**changes), features, embedded, positions).isfinite().all()


def test_names_are_deepspecs() -> None:
    names = set(backbone(num_hidden_layers=1).state_dict())
    layer = {
        *(f"self_attn.{p}_proj.weight" for p in "qkvo"),
        *(f"mlp.{p}_proj.weight" for p in ("gate", "up", "down")),
        "input_layernorm.weight",
        "post_attention_layernorm.weight",
    }
    assert names == {"norm.weight", "fc.weight", "hidden_norm.weight"} | {
        f"layers.0.{n}" for n in layer
    }
