"""Training a drafter on a frozen target's stored responses.

The target itself never runs here: its hidden states lie with the responses, and its
probabilities over the draft vocabulary are one matrix product away.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from calib.errors import ConfigurationError, FormatError
from heads.drafter import Drafter
from heads.losses import DrafterLoss, LossWeights, drafter_loss_from_logits
from heads.responses import Response
from heads.torch_files import UNREADABLE, read_torch, write_torch
from heads.training_data import AnchorBatch, AnchorSampler

_START_OVER = "delete it to start over"
_CHECKED_PREFIXES = 32
# Hidden states are stored in float16, which moves a log-normaliser by about a hundredth.
_NORMALIZER_GAP = 0.25


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """How a drafter is trained.

    Attributes:
        steps: optimiser steps.
        sequences: sequences a step.
        anchors: random anchors a sequence; blocks a step are ``sequences * anchors``.
        learning_rate: peak, after a linear warm-up; it falls along a cosine to a tenth.
        head_learning_rate: peak for Markov and confidence heads, which start from nothing.
        warmup: share of the steps that warm up.
        weight_decay: AdamW.
        gradient_clip: largest gradient norm.
        seed: of batches.
        losses: the weights of the objective.
        confidence_only: train the confidence head alone and leave the rest as it is.
        checkpoint_every: steps between checkpoints.

    Raises:
        ConfigurationError: a value out of range.
    """

    steps: int = 2000
    sequences: int = 8
    anchors: int = 24
    learning_rate: float = 8e-4
    head_learning_rate: float = 3e-3
    warmup: float = 0.05
    weight_decay: float = 0.01
    gradient_clip: float = 1.0
    seed: int = 0
    losses: LossWeights = field(default_factory=LossWeights)
    confidence_only: bool = False
    checkpoint_every: int = 100

    def __post_init__(self) -> None:
        for name in ("steps", "sequences", "anchors", "checkpoint_every"):
            if getattr(self, name) < 1:
                raise ConfigurationError(name, getattr(self, name), "give 1 or more")
        for name in ("learning_rate", "head_learning_rate", "gradient_clip"):
            if not 0.0 < getattr(self, name) < float("inf"):
                raise ConfigurationError(name, getattr(self, name), "give a number above 0")
        if not 0.0 <= self.warmup <= 1.0:
            raise ConfigurationError("warmup", self.warmup, "give a share of the steps in [0, 1]")
        if not 0.0 <= self.weight_decay < float("inf"):
            raise ConfigurationError("weight_decay", self.weight_decay, "give 0 or more")
        if self.seed < 0:
            raise ConfigurationError("seed", self.seed, "give 0 or more")

    def scale(self, step: int) -> float:
        """Learning rate at a step as a share of its peak."""
        warm = max(1, round(self.warmup * self.steps))
        if step < warm:
            return (step + 1) / warm
        progress = (step - warm) / max(1, self.steps - warm)
        return 0.1 + 0.45 * (1.0 + math.cos(math.pi * min(1.0, progress)))


@dataclass(frozen=True, slots=True)
class StepReport:
    """What one step did: losses and mean exact acceptance per position.

    Attributes:
        soft_labels: mean c* of each position, γ numbers.
        survival: mean of the running product of c*, γ numbers; 1 plus their sum is the accepted
            length that the labels predict.
    """

    step: int
    total: float
    cross_entropy: float
    l1: float
    confidence: float
    soft_labels: tuple[float, ...]
    survival: tuple[float, ...]


class DrafterTrainer:
    """Optimises a drafter step by step, and resumes where it was cut off.

    Args:
        drafter: trained in place.
        target_head: [V, D] the target's language-model head.
        responses: what it trains on.
        plan: how. With ``confidence_only`` all other weights of the drafter are frozen, and stay
            so afterwards.

    Raises:
        ConfigurationError: responses that this target did not make, or with other layers; a
            confidence-only plan for a drafter without the head.
    """

    def __init__(
        self,
        drafter: Drafter,
        target_head: Tensor,
        responses: Sequence[Response],
        plan: TrainingPlan,
    ) -> None:
        self.drafter = drafter
        self.plan = plan
        self.step = 0
        vocabulary = drafter.configuration.vocab_size
        if len(target_head) != vocabulary:
            raise ConfigurationError(
                "target_head",
                tuple(target_head.shape),
                f"give {vocabulary} rows, as the target has",
            )
        mapping = drafter.draft_to_target
        self._head = target_head.detach()[mapping].float().contiguous()
        self._to_draft = torch.full((len(target_head),), -1, dtype=torch.long)
        self._to_draft[mapping] = torch.arange(len(mapping))
        self._sampler = self._anchors_of(responses, plan.seed)
        _check_last_hidden(self._sampler.batch(0), target_head.detach())
        self._data = _digest(responses)
        self._groups = _parameter_groups(drafter, plan)
        self._optimizer = torch.optim.AdamW(
            self._groups, betas=(0.9, 0.95), weight_decay=plan.weight_decay
        )

    def run(self, on_step: Callable[[StepReport], None], checkpoint: Path | None = None) -> None:
        """Train to the end of the plan, calling back after every step.

        Raises:
            ConfigurationError: the loss is no longer a number.
        """
        self.drafter.train()
        for batch in self._sampler.batches(self.step, self.plan.steps):
            report = self._train_step(batch)
            self.step += 1
            if checkpoint is not None and (
                self.step % self.plan.checkpoint_every == 0 or self.step == self.plan.steps
            ):
                self.save(checkpoint)
            on_step(report)
        self.drafter.eval()

    @torch.no_grad()
    def evaluate(self, responses: Sequence[Response], batches: int) -> StepReport:
        """Losses and exact acceptance on other responses, without training.

        Raises:
            ConfigurationError: no batch is asked for, or no response is long enough.
        """
        if batches < 1:
            raise ConfigurationError("batches", batches, "give 1 or more")
        sampler = self._anchors_of(responses, self.plan.seed + 1)
        reports = [self._report(*self._forward(b)) for b in sampler.batches(0, batches)]
        return _mean_report(reports, self.step)

    def _anchors_of(self, responses: Sequence[Response], seed: int) -> AnchorSampler:
        return AnchorSampler(
            responses,
            gamma=self.drafter.gamma,
            hidden_size=self.drafter.configuration.hidden_size,
            sequences=self.plan.sequences,
            anchors=self.plan.anchors,
            seed=seed,
        )

    def _train_step(self, batch: AnchorBatch) -> StepReport:
        scale = self.plan.scale(self.step)
        for group in self._optimizer.param_groups:
            group["lr"] = group["peak"] * scale
        loss, mask = self._forward(batch)
        if not bool(loss.total.detach().isfinite()):
            raise ConfigurationError(
                "learning_rate",
                self.plan.learning_rate,
                f"the loss of step {self.step} is {float(loss.total.detach())}: give a lower one",
            )
        self._optimizer.zero_grad(set_to_none=True)
        loss.total.backward()
        parameters = [p for g in self._groups for p in g["params"]]
        nn.utils.clip_grad_norm_(parameters, self.plan.gradient_clip)
        self._optimizer.step()
        return self._report(loss, mask)

    def _forward(self, batch: AnchorBatch) -> tuple[DrafterLoss, Tensor]:
        block = self.drafter.teacher_forced(batch.tokens, batch.features, batch.anchor_positions)
        with torch.no_grad():
            logits = nn.functional.linear(batch.last_hidden, self._head)
        loss = drafter_loss_from_logits(
            block.logits,
            block.confidence_logits,
            logits,
            batch.log_normalizer,
            self._to_draft[batch.labels],
            batch.mask,
            self.plan.losses,
        )
        return loss, batch.mask

    def _report(self, loss: DrafterLoss, mask: Tensor) -> StepReport:
        labels, valid = loss.soft_labels, mask.float()
        count = valid.sum(dim=(0, 1)).clamp(min=1.0)
        survival = labels.cumprod(dim=-1)
        return StepReport(
            step=self.step,
            total=float(loss.total.detach()),
            cross_entropy=float(loss.cross_entropy.detach()),
            l1=float(loss.l1.detach()),
            confidence=float(loss.confidence.detach()),
            soft_labels=tuple(((labels * valid).sum(dim=(0, 1)) / count).tolist()),
            survival=tuple(((survival * valid).sum(dim=(0, 1)) / count).tolist()),
        )

    def save(self, path: Path) -> None:
        """Write weights, optimiser and step atomically."""
        state = {
            "step": self.step,
            "plan": asdict(self.plan),
            "configuration": self.drafter.configuration.to_dict(),
            "responses": self._data,
            "drafter": self.drafter.state_dict(),
            "optimizer": self._optimizer.state_dict(),
        }
        write_torch(path, state)

    def resume(self, path: Path) -> None:
        """Go on from a checkpoint of the same plan, drafter and responses.

        Raises:
            FormatError: the file is damaged.
            ConfigurationError: it was made under another plan, configuration or draft vocabulary,
                or on other responses.
        """
        state = read_torch(path, remedy=_START_OVER)
        try:
            self._check_same_run(state)
            self.drafter.load_state_dict(state["drafter"])
            self._optimizer.load_state_dict(state["optimizer"])
            self.step = int(state["step"])
        except ConfigurationError:
            raise
        except (*UNREADABLE, TypeError, AttributeError) as error:
            raise FormatError(
                path, f"no checkpoint of this drafter ({error})", _START_OVER
            ) from error

    def _check_same_run(self, state: dict[str, Any]) -> None:
        plan = asdict(self.plan)
        changed = sorted(name for name in plan if state["plan"].get(name) != plan[name])
        changed += sorted(state["plan"].keys() - plan.keys())
        if state["configuration"] != self.drafter.configuration.to_dict():
            changed.append("drafter configuration")
        # The head's rows follow the mapping, and they are not in the checkpoint.
        if not torch.equal(state["drafter"]["d2t"], self.drafter.d2t):
            changed.append("draft vocabulary")
        if state.get("responses", self._data) != self._data:
            changed.append("responses")
        if changed:
            raise ConfigurationError(
                "checkpoint",
                f"other {', '.join(changed)}",
                f"train with the options and data it was made with, or {_START_OVER}",
            )


def _check_last_hidden(batch: AnchorBatch, target_head: Tensor) -> None:
    """The last D features must be what the target's head reads: its logits then have the
    log-normaliser that was stored beside them."""
    rows = batch.mask.nonzero()[:_CHECKED_PREFIXES].unbind(-1)
    logits = nn.functional.linear(batch.last_hidden[rows], target_head.float())
    gap = float((torch.logsumexp(logits, dim=-1) - batch.log_normalizer[rows]).abs().mean())
    if not gap <= _NORMALIZER_GAP:
        raise ConfigurationError(
            "responses",
            f"log-normalisers off by {gap:.3g}",
            "sample them with this very target, its last layer among the context layers",
        )


def _digest(responses: Sequence[Response]) -> str:
    """SHA-256 over the token ids of all responses in order."""
    digest = hashlib.sha256()
    for response in responses:
        digest.update(response.tokens.numpy().tobytes())
    return digest.hexdigest()


def _parameter_groups(drafter: Drafter, plan: TrainingPlan) -> list[dict[str, Any]]:
    if plan.confidence_only:
        if drafter.confidence_head is None:
            raise ConfigurationError(
                "confidence_only", True, "the drafter has no confidence head: enable it first"
            )
        drafter.requires_grad_(False)
        drafter.confidence_head.requires_grad_(True)
        parameters = list(drafter.confidence_head.parameters())
        return [{"params": parameters, "peak": plan.head_learning_rate}]
    heads = [m for m in (drafter.markov_head, drafter.confidence_head) if m is not None]
    head_parameters = [p for m in heads for p in m.parameters()]
    return [
        {"params": list(drafter.model.parameters()), "peak": plan.learning_rate},
        {"params": head_parameters, "peak": plan.head_learning_rate, "weight_decay": 0.0},
    ]


def _mean_report(reports: Sequence[StepReport], step: int) -> StepReport:
    def mean(values: Sequence[float]) -> float:
        return sum(values) / len(values)

    return StepReport(
        step=step,
        total=mean([r.total for r in reports]),
        cross_entropy=mean([r.cross_entropy for r in reports]),
        l1=mean([r.l1 for r in reports]),
        confidence=mean([r.confidence for r in reports]),
        soft_labels=tuple(map(mean, zip(*(r.soft_labels for r in reports), strict=True))),
        survival=tuple(map(mean, zip(*(r.survival for r in reports), strict=True))),
    )
