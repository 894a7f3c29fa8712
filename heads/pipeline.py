"""From prompts to a trained drafter: sample the target's responses, start from the target, train.

Every stage is resumable: responses lie in shards, training in a checkpoint, both in one folder.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from calib.errors import ConfigurationError
from heads.checkpoints import load_drafter, save_drafter
from heads.configuration import MarkovHeadType
from heads.drafter import Drafter
from heads.initialization import configuration_for, initialize_from_target
from heads.prompts import Prompt, interleave_domains, select
from heads.responses import Response, ResponsePlan, ResponseStore, sample_responses
from heads.targets import HuggingFaceTarget, default_layer_ids, load_target
from heads.training import DrafterTrainer, StepReport, TrainingPlan
from heads.training_data import draft_vocabulary

# Which of every ``holdout_every`` responses is held out; any fixed number does.
_HOLDOUT_OFFSET = 7


@dataclass(frozen=True, slots=True)
class DrafterRecipe:
    """Everything that decides a trained drafter, besides target and prompts.

    Attributes:
        gamma: γ, draft positions of a block.
        layers: draft layers.
        draft_vocab_size: tokens it can propose; 0 is the whole vocabulary.
        markov_rank: r.
        markov_head_type: vanilla, gated or rnn.
        target_layer_ids: context features; empty spreads five over the depth.
        responses: how many to sample for the drafter.
        confidence_responses: how many more to sample for the confidence head, to other prompts as
            long as there are any. On text the drafter was trained on it is accepted more often
            than elsewhere, and a head that learns there is overconfident; 0 leaves it at that.
        confidence_steps: optimiser steps of the head on those.
        record_share: share of the prompts kept for recording, by hash.
        holdout_every: one response in so many only measures, never trains.
        seed: of the start of the weights.
        sampling: how responses are sampled.
        training: how the drafter is trained.
    """

    gamma: int
    layers: int = 3
    draft_vocab_size: int = 8192
    markov_rank: int = 64
    markov_head_type: MarkovHeadType = "vanilla"
    target_layer_ids: tuple[int, ...] = ()
    responses: int = 512
    confidence_responses: int = 0
    confidence_steps: int = 400
    record_share: float = 0.25
    holdout_every: int = 24
    seed: int = 0
    sampling: ResponsePlan = field(default_factory=ResponsePlan)
    training: TrainingPlan = field(default_factory=TrainingPlan)

    def __post_init__(self) -> None:
        for name in ("gamma", "layers", "responses", "confidence_steps"):
            if getattr(self, name) < 1:
                raise ConfigurationError(name, getattr(self, name), "give 1 or more")
        if self.confidence_responses < 0:
            raise ConfigurationError(
                "confidence_responses", self.confidence_responses, "give 0 or more"
            )
        if not 0.0 < self.record_share < 1.0:
            raise ConfigurationError("record_share", self.record_share, "give a share in (0, 1)")
        if self.holdout_every < 2:
            raise ConfigurationError("holdout_every", self.holdout_every, "give 2 or more")


@dataclass(frozen=True, slots=True)
class Progress:
    """Callbacks of a long run; the defaults stay silent.

    Attributes:
        stage: called with a line of text when a stage begins.
        responses: called with responses done and asked for.
        step: called after every optimiser step.
    """

    stage: Callable[[str], None] = lambda text: None
    responses: Callable[[int, int], None] = lambda done, total: None
    step: Callable[[StepReport], None] = lambda report: None


def load_target_for(spec: str, layer_ids: Sequence[int] = ()) -> HuggingFaceTarget:
    """Load a target with context layers; empty ``layer_ids`` spreads five over its depth."""
    target = load_target(spec)
    chosen = tuple(layer_ids) or default_layer_ids(int(target.config.num_hidden_layers))
    return HuggingFaceTarget(target.model, target.tokenizer, target.name, chosen)


def train_drafter(
    target: HuggingFaceTarget,
    prompts: Sequence[Prompt],
    folder: Path,
    recipe: DrafterRecipe,
    progress: Progress,
) -> StepReport:
    """Sample, train and save to ``folder/drafter``; returns what held-out responses show.

    Raises:
        ConfigurationError: no prompt is left for training, or options that do not fit.
    """
    training = interleave_domains(select(prompts, "train", recipe.record_share))
    if not training:
        raise ConfigurationError("prompts", len(prompts), "no prompt falls to training; give more")
    parts = _sampled_parts(target, training, folder, recipe, progress)
    drafter = new_drafter(target, parts.drafter, recipe, progress)
    trainer = DrafterTrainer(drafter, target.lm_head.weight, parts.drafter, recipe.training)
    _run(trainer, folder / "checkpoint.pt", f"{len(parts.drafter)} responses", progress)
    if parts.confidence:
        plan = replace(recipe.training, steps=recipe.confidence_steps, confidence_only=True)
        trainer = DrafterTrainer(drafter, target.lm_head.weight, parts.confidence, plan)
        about = f"the confidence head on {len(parts.confidence)} further responses"
        _run(trainer, folder / "confidence_checkpoint.pt", about, progress)
    report = trainer.evaluate(parts.held_out or parts.drafter, batches=8)
    save_drafter(drafter, folder / "drafter", extra=_provenance(target, recipe, report))
    return report


@dataclass(frozen=True, slots=True)
class _Parts:
    """Responses by what they are for."""

    drafter: list[Response]
    held_out: list[Response]
    confidence: list[Response]


def _sampled_parts(
    target: HuggingFaceTarget,
    training: Sequence[Prompt],
    folder: Path,
    recipe: DrafterRecipe,
    progress: Progress,
) -> _Parts:
    total = recipe.responses + recipe.confidence_responses
    # A prompt may be answered more than once: later rounds meet another temperature.
    asked = (list(training) * (-(-total // len(training))))[:total]
    store = ResponseStore(folder / "responses")
    progress.stage(f"sampling {total} responses of {target.name}")
    sample_responses(target, asked, recipe.sampling, store, progress=progress.responses)
    rows = [(n, row) for n, row in sorted(store.load().items()) if n < total]
    first = [(number, row) for number, row in rows if number < recipe.responses]
    return _Parts(
        drafter=[row for number, row in first if not _held_out(number, recipe)],
        held_out=[row for number, row in first if _held_out(number, recipe)],
        confidence=[row for number, row in rows if number >= recipe.responses],
    )


def _run(trainer: DrafterTrainer, checkpoint: Path, about: str, progress: Progress) -> None:
    """Train to the end of the plan, from the checkpoint where there is one."""
    if checkpoint.exists():
        trainer.resume(checkpoint)
        progress.stage(f"resumed at step {trainer.step}")
    progress.stage(f"training {trainer.plan.steps} steps: {about}")
    trainer.run(progress.step, checkpoint)


def train_confidence_head(
    target: HuggingFaceTarget,
    drafter_folder: Path,
    responses: Sequence[Response],
    out: Path,
    plan: TrainingPlan,
    progress: Progress,
) -> StepReport:
    """Give a drafter that has none a confidence head, and train that head alone.

    Args:
        drafter_folder: a saved drafter, with or without a head; everything but the head is kept.
        responses: the target's responses with its hidden states.
        out: folder of the drafter with the new head.
    """
    drafter = load_drafter(drafter_folder, target, new_confidence_head=True)
    trainer = DrafterTrainer(drafter, target.lm_head.weight, responses, plan)
    progress.stage(f"training the confidence head on {len(responses)} responses")
    trainer.run(progress.step, out / "checkpoint.pt")
    report = trainer.evaluate(responses, batches=4)
    save_drafter(drafter, out / "drafter", extra={"confidence_only": True})
    return report


def new_drafter(
    target: HuggingFaceTarget,
    responses: Sequence[Response],
    recipe: DrafterRecipe,
    progress: Progress,
) -> Drafter:
    """A drafter shaped after and started from the target."""
    size = recipe.draft_vocab_size or target.vocab_size
    mapping = None
    if size < target.vocab_size:
        mapping = draft_vocabulary(responses, target.vocab_size, size)
    configuration = configuration_for(
        target,
        gamma=recipe.gamma,
        layers=recipe.layers,
        draft_vocab_size=min(size, target.vocab_size),
        markov_rank=recipe.markov_rank,
        markov_head_type=recipe.markov_head_type,
    )
    drafter = Drafter(configuration, target.embed_tokens.weight, target.lm_head.weight, mapping)
    missed = initialize_from_target(drafter, target, recipe.seed)
    if missed:
        progress.stage(f"{len(missed)} weights start at random: the target has no such layer")
    return drafter


def _held_out(number: int, recipe: DrafterRecipe) -> bool:
    return number % recipe.holdout_every == _HOLDOUT_OFFSET % recipe.holdout_every


def _provenance(
    target: HuggingFaceTarget, recipe: DrafterRecipe, report: StepReport
) -> Mapping[str, Any]:
    """What the saved drafter says about its making, as plain JSON."""
    values = {
        "target": target.name,
        "recipe": asdict(recipe),
        "held_out": asdict(report),
        "torch": torch.__version__,
    }
    plain: Mapping[str, Any] = json.loads(json.dumps(values))
    return plain
