"""An engine that steps as vLLM's second model runner does: real tensors, no model.

Names, signatures and the order of events are vLLM's (0.33.0): a speculator loads its drafter, the
draft graph is captured, and every step sizes its verification, samples, drafts with the graph and
records confidences. The captured graph is stood in for by a recorded one: the tensor operations of
the draft, traced once, replayed without any Python of ours, on the memory that they were traced
with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from dspark_calib_client.plugins.vllm import registration

EOS = 2
HIDDEN = 4


class DSparkConfidenceHead(torch.nn.Module):
    """The head without its weights: the first hidden number is the logit."""

    def forward(self, hidden: torch.Tensor, markov_embed: torch.Tensor) -> torch.Tensor:
        return hidden[:, 0] + 0.0 * markov_embed[:, 0]


class OnlineAcceptanceEstimator:
    """Features by slot; its own prediction has one slope and one intercept."""

    def __init__(self, rows: int, gamma: int) -> None:
        self.features = torch.zeros((rows, gamma))

    def predict(
        self,
        logits: torch.Tensor,
        idx_mapping: torch.Tensor,
        draft_step: torch.Tensor,
        confidence_probs: torch.Tensor,
        temperature: torch.Tensor,
    ) -> None:
        top = logits.max(dim=-1).values
        rest = torch.exp(logits - top[:, None]).sum(dim=-1) - 1.0
        feature = -torch.log(rest)
        place = (idx_mapping.clamp(min=0), draft_step.long().expand_as(idx_mapping))
        self.features.index_put_(place, feature)
        own = torch.sigmoid(0.5 * feature - 0.2)
        confidence_probs[: len(own)].index_copy_(1, draft_step.long().view(1), own[:, None])


class DraftModelSpeculator:
    """vLLM's speculator as far as the plugin reads it."""

    def __init__(self, gamma: int, rows: int, *, head: bool, adaptive: bool, **spec: Any) -> None:
        self.device = torch.device("cpu")
        self.num_speculative_steps = gamma
        self.max_num_reqs = rows
        self.enable_adaptive_verification = adaptive
        self.use_confidence_head = head and adaptive
        self.acceptance_estimator: Any = None
        usual = {"method": "dspark", "rejection_sample_method": "standard"}
        usual["draft_sample_method"] = "probabilistic"
        self.speculative_config = SimpleNamespace(**{**usual, **spec})
        parallel = SimpleNamespace(
            prefill_context_parallel_size=1, data_parallel_size=1, data_parallel_rank=0
        )
        self.vllm_config = SimpleNamespace(parallel_config=parallel)
        self.draft_token_confidence_probs = torch.zeros((rows, gamma))
        self.head = DSparkConfidenceHead() if head else None

    def load_model(self, target_model: Any = None) -> None:
        self.model = SimpleNamespace(model=SimpleNamespace(confidence_head=self.head))
        if not self.use_confidence_head and self.enable_adaptive_verification:
            self.acceptance_estimator = OnlineAcceptanceEstimator(
                self.max_num_reqs, self.num_speculative_steps
            )

    def draft(self, hidden: torch.Tensor, idx_mapping: torch.Tensor) -> torch.Tensor:
        """What vLLM captures, for [rows, gamma] logits (head) or [rows, gamma, V] (no head)."""
        rows, gamma = len(hidden), self.num_speculative_steps
        if self.use_confidence_head:
            flat = hidden.reshape(rows * gamma, 1).expand(-1, HIDDEN)
            found = torch.sigmoid(self.model.model.confidence_head(flat, torch.ones_like(flat)))
            self.draft_token_confidence_probs[:rows] = found.view(rows, gamma)
        else:
            for place in range(gamma):
                self.acceptance_estimator.predict(
                    hidden[:, place],
                    idx_mapping,
                    torch.tensor(place),
                    self.draft_token_confidence_probs,
                    torch.ones(rows),
                )
        return self.draft_token_confidence_probs[:rows].clone()


class AdaptiveVerificationManager:
    """vLLM's manager; the budget admits a stated number of drafts."""

    def __init__(self, rows: int, gamma: int) -> None:
        self.num_bonus_tokens = 1
        self._max_total_logits = 10_000
        self._batch_budget: Any = None
        self._confidence_probs = torch.ones((rows, gamma))
        self.budget = 10_000

    def get_num_tokens(self, num_tokens_per_req: Any, draft_tokens: Any) -> int:
        drafts = {name: len(draft_tokens.get(name, ())) for name in num_tokens_per_req}
        others = {name: num_tokens_per_req[name] - drafts[name] for name in num_tokens_per_req}
        budget = min(self.budget, sum(drafts.values()))
        self._batch_budget = (drafts, others, budget)
        return sum(others.values()) + budget

    def record_confidences(self, confidence_probs: torch.Tensor, input_batch: Any) -> None:
        self._confidence_probs[input_batch.idx_mapping] = confidence_probs[: input_batch.num_reqs]


class GPUModelRunner:
    """The worker: requests come, are verified, and are drafted for."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.speculator: Any = engine.speculator
        self.adaptive_verification: Any = AdaptiveVerificationManager(engine.rows, engine.gamma)
        self.req_states = SimpleNamespace(
            draft_tokens=torch.zeros((engine.rows, engine.gamma), dtype=torch.int64),
            req_id_to_index={},
        )

    def add_requests(self, scheduler_output: Any) -> None:
        for new in scheduler_output.scheduled_new_reqs:
            self.req_states.req_id_to_index[new.req_id] = len(self.req_states.req_id_to_index)

    def sample(self, hidden_states: Any, input_batch: Any, grammar_output: Any) -> Any:
        return self.engine.verdict


MODULE: Any = SimpleNamespace(
    DSparkConfidenceHead=DSparkConfidenceHead,
    DraftModelSpeculator=DraftModelSpeculator,
    OnlineAcceptanceEstimator=OnlineAcceptanceEstimator,
    AdaptiveVerificationManager=AdaptiveVerificationManager,
    GPUModelRunner=GPUModelRunner,
    __name__="vllm stand-in",
)
registration.hook_head(MODULE)
registration.hook_estimator(MODULE)
registration.hook_manager(MODULE)
registration.hook_runner(MODULE)


class RecordedGraph(TorchFunctionMode):
    """The tensor operations of one call, replayed on the very memory they were recorded with."""

    def __init__(self, function: Any, *inputs: torch.Tensor) -> None:
        super().__init__()
        self.operations: list[tuple[Any, Any, Any, Any]] = []
        self._inputs = inputs
        with self:
            self._output = function(*inputs)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.operations.append((func, args, kwargs or {}, result))
        return result

    @property
    def waits(self) -> bool:
        """Whether the host asked for a value, which a real capture would refuse."""
        asks = ("item", "tolist", "numpy", "__bool__", "__int__", "__float__", "__index__")
        return any(getattr(func, "__name__", "") in asks for func, *_ in self.operations)

    def replay(self, *inputs: torch.Tensor) -> torch.Tensor:
        for mine, given in zip(self._inputs, inputs, strict=True):
            mine.copy_(given)
        for func, args, kwargs, result in self.operations:
            again = func(*args, **kwargs)
            for mine, new in zip(tree_leaves(result), tree_leaves(again), strict=True):
                if isinstance(mine, torch.Tensor):
                    mine.copy_(new)
        found: torch.Tensor = self._output.clone()
        return found


class Group:
    """vLLM's ``GroupCoordinator`` as far as the plugin uses it."""

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


def request(name: str, **parameters: Any) -> Any:
    """vLLM's ``NewRequestData`` as far as the plugin reads it."""
    usual = {"temperature": 1.0, "all_stop_token_ids": {EOS}, "extra_args": None}
    parameters = {**usual, "ignore_eos": False, **parameters}
    return SimpleNamespace(req_id=name, sampling_params=SimpleNamespace(**parameters))


@dataclass
class Verdict:
    """How one request's drafts were judged, and what its next block will look like."""

    raw: Sequence[Any]  # logits of the next block: [gamma], or [gamma][V] without a head
    drafts: Sequence[int]  # its tokens
    admitted: int = 0  # of the block before
    accepted: int = 0
    bonus: int = 7


@dataclass
class Engine:
    """One rank; :meth:`start` builds it up to the captured graph."""

    gamma: int = 3
    rows: int = 4
    head: bool = True
    adaptive: bool = True
    group: Any = field(default_factory=Group)
    spec: dict[str, Any] = field(default_factory=dict)
    verdict: Any = None
    steps: int = 0

    def start(self, environment: dict[str, str], **options: Any) -> Any:
        """What loading and capturing do; what was attached."""
        self.speculator = DraftModelSpeculator(
            self.gamma, self.rows, head=self.head, adaptive=self.adaptive, **self.spec
        )
        self.speculator.load_model()
        options.setdefault("patience", 60.0)
        attached = registration.attach(
            self.speculator, group=self.group, environment=environment, **options
        )
        self.runner: Any = GPUModelRunner(self)
        self._graphs: dict[int, Any] = {}
        return attached

    def capture(self, rows: int, vocabulary: int = 5) -> Any:
        """The recorded draft for a batch size; replaying it runs no Python of the plugin."""
        if rows not in self._graphs:
            shape = (rows, self.gamma) if self.head else (rows, self.gamma, vocabulary)
            self._graphs[rows] = RecordedGraph(
                self.speculator.draft, torch.zeros(shape), torch.zeros(rows, dtype=torch.int64)
            )
        return self._graphs[rows]

    def add(self, *requests: Any) -> None:
        """New requests reach the worker."""
        self.runner.add_requests(SimpleNamespace(scheduled_new_reqs=list(requests)))

    @torch.inference_mode()
    def step(self, names: Sequence[str], verdicts: Sequence[Verdict]) -> torch.Tensor:
        """One step; the confidences [rows, gamma] that the new blocks were recorded with."""
        rows, runner = len(names), self.runner
        index = runner.req_states.req_id_to_index
        slots = torch.tensor([index[name] for name in names])
        drafted = [self.gamma if self.steps else 0] * rows
        tokens = {name: 1 + count for name, count in zip(names, drafted, strict=True)}
        blocks = {name: [0] * count for name, count in zip(names, drafted, strict=True)}
        self.tokens = runner.adaptive_verification.get_num_tokens(tokens, blocks)
        sampled = torch.tensor([v.accepted + 1 for v in verdicts])
        texts = torch.zeros((rows, self.gamma + 1), dtype=torch.int64)
        for row, verdict in enumerate(verdicts):
            texts[row, verdict.accepted] = verdict.bonus
        self.verdict = (
            SimpleNamespace(sampled_token_ids=texts),
            sampled,
            torch.tensor([v.admitted - v.accepted for v in verdicts]),
        )
        batch = SimpleNamespace(
            req_ids=list(names),
            num_reqs=rows,
            idx_mapping=slots,
            num_draft_tokens_per_req=np.array(drafted),
            is_prefilling_np=np.zeros(rows, dtype=bool),
            seq_lens=torch.full((rows,), 100),
        )
        runner.sample(None, batch, None)
        graph = self.capture(rows)
        found: torch.Tensor = graph.replay(torch.tensor([list(v.raw) for v in verdicts]), slots)
        new = torch.tensor([list(v.drafts) for v in verdicts])
        runner.req_states.draft_tokens[slots] = new
        runner.adaptive_verification.record_confidences(
            self.speculator.draft_token_confidence_probs, batch
        )
        self.steps += 1
        return found


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
