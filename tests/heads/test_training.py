"""Training: it learns, it resumes bit for bit, and it refuses what does not belong to it."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from calib.errors import ConfigurationError, FormatError
from heads.drafter import Drafter
from heads.initialization import initialize_from_target
from heads.losses import LossWeights
from heads.responses import Response
from heads.training import DrafterTrainer, StepReport, TrainingPlan
from tests.heads.tiny_models import response_of, tiny_drafter, tiny_target

pytestmark = pytest.mark.torch

TARGET = tiny_target(layer_ids=(0, 2))
PLAN = TrainingPlan(
    steps=8, sequences=2, anchors=6, learning_rate=3e-3, seed=2, checkpoint_every=3, warmup=0.2
)


def sampled(count: int, length: int = 20, seed: int = 0) -> list[Response]:
    """Greedy continuations, so that there is something to learn."""
    responses = []
    for number in range(count):
        generator = torch.Generator().manual_seed(100 * seed + number)
        tokens = torch.randint(0, 41, (4,), generator=generator).tolist()
        while len(tokens) < length:
            with torch.inference_mode():
                logits = TARGET.model(torch.tensor([tokens]), use_cache=False).logits[0, -1]
            tokens.append(int(logits.argmax()))
        responses.append(response_of(TARGET, tokens, 4))
    return responses


RESPONSES = sampled(4)


def trainer(
    plan: TrainingPlan = PLAN, drafter: Drafter | None = None, **changes: Any
) -> DrafterTrainer:
    options = {"responses": RESPONSES, "target_head": TARGET.lm_head.weight, **changes}
    return DrafterTrainer(drafter or tiny_drafter(TARGET), plan=plan, **options)


def weights(one: DrafterTrainer) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in one.drafter.state_dict().items()}


def ignore(report: StepReport) -> None:
    del report


def test_a_tiny_set_is_learned() -> None:
    drafter = tiny_drafter(TARGET)
    initialize_from_target(drafter, TARGET, 0)
    reports: list[StepReport] = []
    one = trainer(replace(PLAN, steps=60, learning_rate=5e-3), drafter)
    before = one.evaluate(RESPONSES, 2)
    one.run(reports.append)
    after = one.evaluate(RESPONSES, 2)
    assert [r.step for r in reports] == list(range(60))
    assert after.total < 0.75 * before.total
    assert after.l1 < before.l1
    assert after.soft_labels[0] > before.soft_labels[0] + 0.1
    assert all(0 <= c <= 1 for c in after.soft_labels)
    assert list(after.survival) == sorted(after.survival, reverse=True)
    assert not drafter.training


def test_resuming_gives_the_same_bits(tmp_path: Path) -> None:
    unbroken = trainer()
    unbroken.run(ignore)
    path = tmp_path / "checkpoint.pt"

    def stop_after(step: int) -> Any:
        def callback(report: StepReport) -> None:
            if report.step == step:
                raise KeyboardInterrupt

        return callback

    broken = trainer()
    with pytest.raises(KeyboardInterrupt):
        broken.run(stop_after(4), path)
    resumed = trainer(drafter=tiny_drafter(TARGET, seed=77))
    resumed.resume(path)
    assert resumed.step == 3  # the checkpoint before the interruption
    resumed.run(ignore, path)
    for name, value in weights(unbroken).items():
        assert torch.equal(value, resumed.drafter.state_dict()[name]), name
    finished = trainer()
    finished.resume(path)
    assert finished.step == 8
    finished.run(ignore)  # nothing is left to do
    assert torch.equal(
        finished.drafter.state_dict()["model.fc.weight"], weights(unbroken)["model.fc.weight"]
    )


def test_confidence_only_changes_the_confidence_head_alone() -> None:
    one = trainer(replace(PLAN, confidence_only=True))
    before = weights(one)
    losses: list[float] = []
    one.run(lambda report: losses.append(report.confidence))
    changed = {n for n, v in weights(one).items() if not torch.equal(v, before[n])}
    assert changed == {"confidence_head.proj.weight", "confidence_head.proj.bias"}
    drafter = tiny_drafter(TARGET)
    drafter.renew_confidence_head()
    longer = trainer(
        replace(PLAN, confidence_only=True, steps=40, head_learning_rate=5e-2), drafter
    )
    start = longer.evaluate(RESPONSES, 2).confidence
    longer.run(ignore)
    assert start == pytest.approx(math.log(2), rel=1e-4)  # one half everywhere
    assert longer.evaluate(RESPONSES, 2).confidence < start - 0.02


def test_confidence_only_needs_a_head() -> None:
    bare = tiny_drafter(TARGET)
    bare.confidence_head = None
    with pytest.raises(ConfigurationError, match="confidence_only"):
        trainer(replace(PLAN, confidence_only=True), bare)


def test_a_drafter_without_heads_trains_too() -> None:
    bare = tiny_drafter(TARGET, markov_rank=0)
    bare.confidence_head = None
    one = trainer(replace(PLAN, steps=2), bare)
    reports: list[StepReport] = []
    one.run(reports.append)
    assert reports[-1].confidence == 0.0


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"seed": 3}, "seed"),
        ({"learning_rate": 1e-4}, "learning_rate"),
        ({"losses": LossWeights(decay=4.0)}, "losses"),
        ({"confidence_only": True}, "confidence_only"),
    ],
)
def test_another_plan_is_refused(tmp_path: Path, changes: dict[str, Any], named: str) -> None:
    path = tmp_path / "checkpoint.pt"
    trainer().save(path)
    with pytest.raises(ConfigurationError, match=f"other {named}"):
        trainer(replace(PLAN, **changes)).resume(path)


def test_other_drafters_and_data_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    first, second = (3, 9, 11, 20), (3, 9, 12, 20)
    trainer(drafter=tiny_drafter(TARGET, draft_vocabulary=first)).save(path)
    with pytest.raises(ConfigurationError, match="drafter configuration"):
        trainer(drafter=tiny_drafter(TARGET, draft_vocabulary=first, layers=1)).resume(path)
    with pytest.raises(ConfigurationError, match="other draft vocabulary"):
        trainer(drafter=tiny_drafter(TARGET, draft_vocabulary=second)).resume(path)
    with pytest.raises(ConfigurationError, match="other responses"):
        trainer(
            drafter=tiny_drafter(TARGET, draft_vocabulary=first), responses=RESPONSES[:3]
        ).resume(path)
    trainer(drafter=tiny_drafter(TARGET, draft_vocabulary=first)).resume(path)


def test_checkpoints_from_before_data_was_named_are_taken(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    trainer().save(path)
    state = torch.load(path, weights_only=True)
    del state["responses"]
    torch.save(state, path)
    trainer().resume(path)


def test_damaged_checkpoints_are_named(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    trainer().save(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(FormatError, match="delete it to start over"):
        trainer().resume(path)
    for foreign in ({"step": 3}, [1, 2]):
        torch.save(foreign, path)
        with pytest.raises(FormatError, match=r"checkpoint\.pt"):
            trainer().resume(path)
    assert not list(tmp_path.glob("*.partial"))


def test_responses_of_another_target_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="log-normalisers off"):
        trainer(target_head=tiny_target(seed=5).lm_head.weight)
    # Without the target's last layer among the features there are no target probabilities.
    early = tiny_target(layer_ids=(0, 1))
    responses = [response_of(early, r.tokens.tolist(), 4) for r in RESPONSES]
    with pytest.raises(ConfigurationError, match="its last layer"):
        trainer(drafter=tiny_drafter(early), responses=responses)
    with pytest.raises(ConfigurationError, match="target_head"):
        trainer(target_head=TARGET.lm_head.weight[:40])


def test_a_loss_that_is_no_number_stops_the_run() -> None:
    one = trainer()
    with torch.no_grad():
        one.drafter.model.fc.weight[0, 0] = float("nan")
    with pytest.raises(ConfigurationError, match="learning_rate"):
        one.run(ignore)


def test_evaluation_changes_nothing() -> None:
    one = trainer()
    before = weights(one)
    first, again = one.evaluate(RESPONSES, 2), one.evaluate(RESPONSES, 2)
    assert first == again
    assert all(torch.equal(v, before[n]) for n, v in weights(one).items())
    with pytest.raises(ConfigurationError, match="batches"):
        one.evaluate(RESPONSES, 0)


def test_the_learning_rate_warms_up_and_falls_to_a_tenth() -> None:
    plan = TrainingPlan(steps=100, warmup=0.1)
    rates = [plan.scale(step) for step in range(100)]
    assert rates[:3] == pytest.approx([0.1, 0.2, 0.3])
    assert max(rates) == rates[9] == pytest.approx(1.0)
    assert rates[99] == pytest.approx(0.1, abs=1e-3)
    assert rates[9:] == sorted(rates[9:], reverse=True)
    assert TrainingPlan(steps=1).scale(0) == 1.0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("steps", 0),
        ("anchors", 0),
        ("learning_rate", 0.0),
        ("gradient_clip", float("nan")),
        ("warmup", 1.5),
        ("weight_decay", -1.0),
        ("seed", -1),
    ],
)
def test_wrong_options_are_named(field: str, value: float) -> None:
    with pytest.raises(ConfigurationError) as caught:
        TrainingPlan(**{field: value})  # type: ignore[arg-type]
    assert caught.value.field == field
