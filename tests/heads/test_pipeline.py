"""From prompts to a drafter on disk, and a confidence head for one that has none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from calib.errors import ConfigurationError

torch = pytest.importorskip("torch")

from heads.checkpoints import load_drafter, save_drafter  # noqa: E402
from heads.configuration import DrafterConfiguration  # noqa: E402
from heads.drafter import Drafter  # noqa: E402
from heads.pipeline import (  # noqa: E402
    DrafterRecipe,
    Progress,
    load_target_for,
    train_confidence_head,
    train_drafter,
)
from heads.prompts import Prompt  # noqa: E402
from heads.responses import ResponsePlan, ResponseStore  # noqa: E402
from heads.targets import HuggingFaceTarget  # noqa: E402
from heads.training import TrainingPlan  # noqa: E402
from tests.support.tiny_target import save_tiny_target  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.slow]

RECIPE = DrafterRecipe(
    gamma=3,
    layers=1,
    draft_vocab_size=128,
    markov_rank=8,
    target_layer_ids=(1, 2, 3),
    responses=10,
    record_share=0.5,
    holdout_every=5,
    sampling=ResponsePlan(max_new_tokens=12, slots=4),
    training=TrainingPlan(steps=4, sequences=2, anchors=4),
)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> HuggingFaceTarget:
    folder = save_tiny_target(tmp_path_factory.mktemp("target"))
    return load_target_for(str(folder), RECIPE.target_layer_ids)


def _prompts() -> list[Prompt]:
    return [Prompt(f"question {i}", "chat", "test") for i in range(20)]


def test_the_drafter_on_disk_is_the_trained_one(target: HuggingFaceTarget, tmp_path: Path) -> None:
    stages: list[str] = []
    steps: list[int] = []
    progress = Progress(stage=stages.append, step=lambda report: steps.append(report.step))
    report = train_drafter(target, _prompts(), tmp_path, RECIPE, progress)
    assert len(steps) == RECIPE.training.steps
    assert len(report.soft_labels) == RECIPE.gamma
    assert all(0.0 <= value <= 1.0 for value in report.soft_labels)
    drafter = load_drafter(tmp_path / "drafter", target)
    assert drafter.gamma == RECIPE.gamma
    assert len(drafter.draft_to_target) == RECIPE.draft_vocab_size
    state = torch.load(tmp_path / "checkpoint.pt", weights_only=True)["drafter"]
    for name, value in drafter.state_dict().items():
        trained = state[name]
        assert torch.equal(
            value, trained.bfloat16().float() if value.is_floating_point() else trained
        )
    assert len(ResponseStore(tmp_path / "responses").load()) == RECIPE.responses


def test_a_new_confidence_head_leaves_the_rest_as_it_was(
    target: HuggingFaceTarget, tmp_path: Path
) -> None:
    train_drafter(target, _prompts(), tmp_path, RECIPE, Progress())
    bare = load_drafter(tmp_path / "drafter", target)
    headless = Drafter(
        DrafterConfiguration.from_dict(
            {**bare.configuration.to_dict(), "enable_confidence_head": False}
        ),
        target.embed_tokens.weight,
        target.lm_head.weight,
        bare.draft_to_target,
    )
    kept = {k: v for k, v in bare.state_dict().items() if not k.startswith("confidence_head.")}
    headless.load_state_dict(kept)
    save_drafter(headless, tmp_path / "headless")
    responses = list(ResponseStore(tmp_path / "responses").load().values())
    plan = replace(RECIPE.training, confidence_only=True)
    out = tmp_path / "with_head"
    train_confidence_head(target, tmp_path / "headless", responses, out, plan, Progress())
    found = load_drafter(out / "drafter", target)
    assert found.confidence_head is not None
    assert float(found.confidence_head.proj.weight.detach().abs().sum()) > 0.0
    after = found.state_dict()
    for name, value in kept.items():
        assert torch.equal(after[name], value), name


def test_no_training_prompt_is_refused(target: HuggingFaceTarget, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="prompts"):
        train_drafter(target, [], tmp_path, RECIPE, Progress())


@pytest.mark.parametrize(
    ("field", "value"),
    [("gamma", 0), ("responses", 0), ("record_share", 1.0), ("holdout_every", 1)],
)
def test_options_out_of_range_are_named(field: str, value: float) -> None:
    with pytest.raises(ConfigurationError, match=field):
        replace(RECIPE, **{field: value})


def test_the_confidence_head_learns_on_responses_of_its_own(
    target: HuggingFaceTarget, tmp_path: Path
) -> None:
    plain = tmp_path / "plain"
    train_drafter(target, _prompts(), plain, RECIPE, Progress())
    stages: list[str] = []
    recipe = replace(RECIPE, responses=6, confidence_responses=4, confidence_steps=3)
    train_drafter(target, _prompts(), tmp_path, recipe, Progress(stage=stages.append))
    assert "training 4 steps: 5 responses" in stages  # the sixth is held out
    assert "training 3 steps: the confidence head on 4 further responses" in stages
    before = torch.load(tmp_path / "checkpoint.pt", weights_only=True)["drafter"]
    after = load_drafter(tmp_path / "drafter", target).state_dict()
    moved = {n for n, v in after.items() if not torch.equal(v, _rounded(before[n]))}
    assert moved
    assert all(name.startswith("confidence_head.") for name in moved)


def _rounded(value: torch.Tensor) -> torch.Tensor:
    return value.bfloat16().float() if value.is_floating_point() else value


@pytest.mark.parametrize(
    ("field", "value"), [("confidence_responses", -1), ("confidence_steps", 0)]
)
def test_options_of_the_confidence_part_are_named(field: str, value: int) -> None:
    with pytest.raises(ConfigurationError, match=field):
        replace(RECIPE, **{field: value})
