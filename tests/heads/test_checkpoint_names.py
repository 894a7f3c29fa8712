"""Heads are found under every project's names."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from calib.errors import TargetLoadError  # noqa: E402
from heads.checkpoint_names import head_tensors, is_training_only, plain_name  # noqa: E402

pytestmark = pytest.mark.torch
W1, W2, PROJ, BIAS = torch.zeros(9, 2), torch.ones(9, 2), torch.zeros(1, 6), torch.zeros(1)
OWN = ("markov_head.markov_w1.weight", "markov_head.markov_w2.weight")
CONFIDENCE = "confidence_head.proj.weight"


@pytest.mark.parametrize(
    "prefix", ["", "model.", "dspark.", "model.dspark.", "language_model.model.dspark."]
)
def test_dense_names_of_deepspec_speculators_and_minimax(prefix: str) -> None:
    given = {
        f"{prefix}{OWN[0]}": W1,
        f"{prefix}{OWN[1]}": W2,
        f"{prefix}{CONFIDENCE}": PROJ,
        f"{prefix}confidence_head.proj.bias": BIAS,
        f"{prefix}layers.0.mlp.up_proj.weight": PROJ,
        "d2t": BIAS,
    }
    found = head_tensors(given)
    assert set(found) == {*OWN, CONFIDENCE, "confidence_head.proj.bias"}
    assert found[OWN[0]] is W1


def test_v4_bundles_its_heads_with_the_target() -> None:
    """Factors in every layer, under either name; one confidence head in the last, without bias."""
    given = {
        "mtp.0.markov_head.embed.weight": W2,
        "mtp.1.markov_head.markov_w1.weight": W1,
        "mtp.1.markov_head.head.weight": W2,
        "mtp.1.confidence_head.proj.weight": PROJ,
        "mtp.0.attn.wq.weight": PROJ,
        "layers.3.ffn.w1.weight": PROJ,
    }
    found = head_tensors(given)
    assert set(found) == {*OWN, CONFIDENCE}
    assert found[OWN[0]] is W1


def test_what_is_no_drafter_is_refused() -> None:
    with pytest.raises(TargetLoadError, match="markov_head or a confidence_head"):
        head_tensors({"layers.0.mlp.up_proj.weight": PROJ})
    twice = {f"mtp.{layer}.confidence_head.proj.weight": PROJ for layer in (0, 2)}
    with pytest.raises(TargetLoadError, match="one confidence head"):
        head_tensors(twice)


def test_tensors_of_training_are_told_apart() -> None:
    assert is_training_only("model.verifier_lm_head.weight")
    assert not is_training_only("lm_head.weight")
    assert plain_name("model.norm.weight") == "norm.weight"
