"""An engine that steps as SGLang does, small enough for a test: real tensors, no model.

Names, signatures and the order of events are SGLang's (0.5.23): a planner is built, the plugin's
hook runs behind it, the draft graph is captured, and every decode step replays it, verifies, and
ends with the observers. The captured graph is stood in for by what is true of one: it reads the
storage that the temperatures had when it was captured, whatever the attribute is bound to since.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from dspark_calib_client.plugins.sglang import registration

EOS = 2


class Head(torch.nn.Module):
    """SGLang's ``DSparkConfidenceHead`` without its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer(
            "sts_temperatures", torch.ones((), dtype=torch.float32), persistent=False
        )


class CapturedGraph:
    """Replays sigmoid(z / T) out of the memory that T lay in at capture, into one fixed output."""

    def __init__(self, head: Head, rows: int, gamma: int) -> None:
        self._storage = head.sts_temperatures
        self.address = self._storage.data_ptr()
        self.raw_out = torch.empty((rows, gamma))
        self.out = torch.empty((rows, gamma))

    def replay(self, raw: torch.Tensor) -> torch.Tensor:
        rows = len(raw)
        self.raw_out[:rows].copy_(raw)
        self.out[:rows].copy_(torch.sigmoid(self.raw_out[:rows].float() / self._storage))
        return self.out[:rows]


class Group:
    """SGLang's ``GroupCoordinator`` as far as the plugin uses it."""

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank_in_group = rank
        self.world_size = size
        self.ranks = list(range(size))

    def broadcast_object(self, obj: Any = None, src: int = 0) -> Any:
        if self.world_size == 1:
            return obj
        box = [obj]
        torch.distributed.broadcast_object_list(box, src=self.ranks[src])
        return box[0]


class Request:
    """SGLang's ``Req`` as far as the plugin reads it."""

    def __init__(self, rid: str, **parameters: Any) -> None:
        self.rid = rid
        self.eos_token_ids = {EOS}
        self.lora_id = None
        self.tokenizer = None
        self.custom_logit_processor = None
        usual = {"temperature": 1.0, "top_k": 1 << 30, "custom_params": None, "ignore_eos": False}
        self.sampling_params = SimpleNamespace(**{**usual, **parameters})


@dataclass
class Block:
    """One request's part of a recorded step."""

    raw: list[float]
    drafts: list[int]
    correct: int  # drafts that the target would keep if all were checked
    verify_len: int  # anchor included
    bonus: int = 7
    context: int = 100


@dataclass
class Engine:
    """One rank; :meth:`start` builds it up to the captured graph.

    Attributes:
        seen: the temperatures that each step's confidences were made with.
    """

    gamma: int
    mode: str = "compact"
    group: Any = field(default_factory=Group)
    most_rows: int = 8
    simulate_acc_len: float = 0.0
    seen: list[list[float]] = field(default_factory=list)
    steps: int = 0

    def start(self, environment: dict[str, str], **options: Any) -> Any:
        """What the worker's ``__init__`` does; what was attached."""
        self.head = Head()
        self.planner: Any = SimpleNamespace(
            gamma=self.gamma,
            mode_value=self.mode,
            is_verify_all=False,
            _confidence_head=self.head,
            _budget_planner=SimpleNamespace(forced_budget_frac=None),
        )
        options.setdefault("patience", 60.0)
        attached = registration.attach(
            self.planner, group=self.group, device="cpu", environment=environment, **options
        )
        self.attachment = attached
        self.observers = SimpleNamespace(
            _planner=self.planner, _simulate_acc_len=self.simulate_acc_len
        )
        self.graph = CapturedGraph(self.head, self.most_rows, self.gamma)
        self.observe = partial(registration._after_verify_step, None, self.observers)
        return attached

    def settings(self, url: str, drafter: str, key: str) -> dict[str, str]:
        """The plugin's settings for this engine."""
        return environment_of(url, drafter, key)

    def as_modules(self, package: str) -> tuple[ModuleType, ModuleType]:
        """Modules under SGLang's names, with a planner and observers that a registry can hook."""

        class DSparkVerifyPlanner:
            def __init__(self, *, draft_model: Any, gamma: int, device: Any, tp_sync: Any) -> None:
                self.gamma = gamma
                self.mode_value = "compact"
                self.is_verify_all = False
                self._confidence_head = draft_model.confidence_head

        class DsparkStepObservers:
            def __init__(self, *, planner: Any, simulate_acc_len: float) -> None:
                self._planner = planner
                self._simulate_acc_len = simulate_acc_len

            def observe_verify_step(self, **step: Any) -> None:
                """Hooked; does nothing itself."""

        planner = ModuleType(f"{package}.dspark_planner")
        observers = ModuleType(f"{package}.dspark_observability")
        planner.DSparkVerifyPlanner = DSparkVerifyPlanner  # type: ignore[attr-defined]
        observers.DsparkStepObservers = DsparkStepObservers  # type: ignore[attr-defined]
        return planner, observers

    def build(self, planner: Any, observers: Any) -> None:
        """What the worker's ``__init__`` does, with hooked classes."""
        self.head = Head()
        self.planner = planner.DSparkVerifyPlanner(
            draft_model=SimpleNamespace(confidence_head=self.head),
            gamma=self.gamma,
            device="cpu",
            tp_sync=SimpleNamespace(_tp_group=self.group),
        )
        self.observers = observers.DsparkStepObservers(planner=self.planner, simulate_acc_len=0.0)
        self.graph = CapturedGraph(self.head, self.most_rows, self.gamma)
        self.observe = self.observers.observe_verify_step

    @torch.inference_mode()
    def step(self, reqs: Sequence[Request], blocks: Sequence[Block], **changes: Any) -> None:
        """Draft, verify and observe one batch."""
        self.steps += 1
        raw = torch.tensor([block.raw for block in blocks])
        confidence = self.graph.replay(raw)
        recovered = torch.logit(confidence.double())
        self.seen.append((raw.double() / recovered)[0].tolist())
        step = {
            **step_arguments(self.mode, reqs, blocks, self.gamma),
            "forward_ct": self.steps,
            "confidence": confidence,
            "confidence_raw": self.graph.raw_out[: len(blocks)],
        }
        self.observe(**{**step, **changes})
        # As the next replay would: nobody may still read these.
        self.graph.raw_out.fill_(float("nan"))


def step_arguments(
    mode: str, reqs: Sequence[Request], blocks: Sequence[Block], gamma: int
) -> dict[str, Any]:
    """What the worker calls its observers with, but for the count of steps."""
    raw = torch.tensor([block.raw for block in blocks])
    planned = torch.tensor([block.verify_len for block in blocks], dtype=torch.int32)
    whole = torch.tensor([block.correct for block in blocks])
    correct = torch.minimum(whole, planned.long() - 1)
    drafts = torch.tensor([block.drafts for block in blocks]).view(len(blocks), gamma)
    return {
        "reqs": list(reqs),
        "bs": len(blocks),
        "proposal_folded": False,
        "verify_ids_2d": torch.cat([torch.full((len(blocks), 1), 5), drafts], dim=1),
        "target_logits": None,
        "layout": SimpleNamespace(verify_lens=planned),
        "confidence": torch.sigmoid(raw),
        "confidence_raw": raw,
        "prefix_lens": torch.tensor([block.context for block in blocks]),
        "draft_tokens": drafts,
        "draft_block": SimpleNamespace(greedy_draft=False),
        "sampling_info": None,
        "correct_len": correct,
        "cap_trim_lens": torch.zeros_like(correct) if mode == "compact" else whole - correct,
        "bonus": torch.tensor([block.bonus for block in blocks]),
        "commit_lens": correct + 1,
        "verify_token_budget": int((planned - 1).sum()),
        "req_pool_indices": torch.arange(len(blocks)),
        "verify_tier_num_tokens": 0,
        "dp_tier_num_tokens": None,
    }


def plain_blocks(rows: int, gamma: int, seed: int = 0) -> list[Block]:
    """Blocks of one recorded step."""
    draw = torch.Generator().manual_seed(seed)
    raw = torch.randn((rows, gamma), generator=draw) + 1.5
    correct = torch.randint(0, gamma + 1, (rows,), generator=draw)
    planned = torch.randint(1, gamma + 2, (rows,), generator=draw)
    drafts = torch.randint(10, 1000, (rows, gamma), generator=draw)
    return [
        Block(raw[r].tolist(), drafts[r].tolist(), int(correct[r]), int(planned[r]))
        for r in range(rows)
    ]


def environment_of(url: str, drafter: str, key: str, **more: str) -> dict[str, str]:
    """Settings that poll all the time."""
    settings = {
        "URL": url,
        "DRAFTER": drafter,
        "KEY": key,
        "ENGINE_ID": "engine-0",
        "INTERVAL": "0.01",
        "WAIT": "0",
        "BROADCAST_STEPS": "1",
    }
    return {f"DSPARK_CALIB_{name}": value for name, value in {**settings, **more}.items()}
