"""Recording telemetry: speculative decoding whose steps become acceptance records.

Whole requests are kept, in the order of their numbers, and recording stops at the request that
fills the plan. Keeping whatever happened to be finished would prefer requests that end soon, and
how soon one ends depends on what was accepted: labels would be selected by their own outcome.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from calib.atomic_files import write_bytes_atomically
from calib.canonical_json import canonical_json, parse_json_object, plain_json
from calib.errors import ConfigurationError, FormatError
from calib.formats.arrow import read_parquet, write_parquet
from calib.records import AcceptanceRecords
from heads.draft_block_runner import DraftBlockRunner
from heads.drafter import Drafter
from heads.prompts import Prompt
from heads.recorded_rows import rows_of_step
from heads.recording_plan import RecordingPlan, plan_requests
from heads.speculative_decoding import (
    DecodingRequest,
    DecodingStep,
    SpeculativeDecoder,
    VerificationPolicy,
)
from heads.targets import HuggingFaceTarget

__all__ = ["Recorder", "RecordingPlan"]

_PLAN_FILE = "recording.json"
# What may differ between a recording and its continuation: the rows do not depend on it.
_FREE = ("blocks", "slots", "shard_requests")
# A target that ends so many answers with their first token would be asked for ever.
_PATIENCE = 10_000


class Recorder:
    """Records whole requests into shards, and resumes after the last one.

    Args:
        target: frozen target.
        drafter: in evaluation mode.
        plan: what is recorded.
        folder: of the shards; made when missing.
        policy: how much is verified; None verifies everything.
        runner: drafts the blocks, made for the plan's slots; None lets the drafter do it.
    """

    def __init__(
        self,
        target: HuggingFaceTarget,
        drafter: Drafter,
        plan: RecordingPlan,
        folder: Path,
        policy: VerificationPolicy | None = None,
        runner: DraftBlockRunner | None = None,
    ) -> None:
        self._target, self._drafter, self._plan = target, drafter, plan
        self._policy, self._runner = policy, runner
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def recorded(self) -> list[AcceptanceRecords]:
        """What the shards hold so far.

        Raises:
            FormatError: a shard cannot be read, or one is missing.
        """
        paths = sorted(self._folder.glob("rows-*.parquet"))
        for number, path in enumerate(paths):
            if path != self._shard_path(number):
                raise FormatError(
                    self._folder,
                    f"{self._shard_path(number).name} is missing",
                    "delete the shards after it too: requests are recorded in order",
                )
        return [read_parquet(path, self._drafter.gamma) for path in paths]

    def _shard_path(self, number: int) -> Path:
        return self._folder / f"rows-{number:05d}.parquet"

    def run(
        self,
        prompts: Sequence[Prompt],
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> AcceptanceRecords:
        """Record until the plan's blocks are there; ``progress`` gets rows done and asked for.

        Raises:
            ConfigurationError: the folder was begun with another plan, drafter, target or
                prompts, no prompt is short enough, or the target never answers.
            FormatError: the folder holds files that cannot be read.
        """
        self._check_same_recording(prompts)
        parts = self.recorded()
        rows = sum(len(part) for part in parts)
        progress(rows, self._plan.blocks)
        for part in self._record(prompts, parts):
            write_parquet(part, self._shard_path(len(parts)))
            parts.append(part)
            rows += len(part)
            progress(rows, self._plan.blocks)
        return AcceptanceRecords.concatenate(parts)

    def _record(
        self, prompts: Sequence[Prompt], parts: Sequence[AcceptanceRecords]
    ) -> Iterator[AcceptanceRecords]:
        """New shards of requests in order, after those that are there."""
        ledger = _Ledger(parts, self._plan)
        if ledger.is_full():
            return
        decoder = self._decoder(parts)
        known: dict[int, Prompt] = {}
        requests = self._requests(prompts, ledger, known)
        mapping = self._drafter.draft_to_target
        for step in decoder.run(requests):
            rows = rows_of_step(
                step, known, mapping, self._plan, everything_verified=self._policy is None
            )
            ledger.add(step, rows)
            yield from ledger.shards(decoder.answers)
            if ledger.is_full():
                return

    def _decoder(self, parts: Sequence[AcceptanceRecords]) -> SpeculativeDecoder:
        decoder = SpeculativeDecoder(
            self._target,
            self._drafter,
            slots=self._plan.slots,
            capacity=self._plan.max_prompt_tokens + self._plan.max_new_tokens,
            seed=self._plan.seed,
            policy=self._policy,
            runner=self._runner,
        )
        decoder.step = 1 + max((int(p.step.max()) for p in parts if p.step is not None), default=-1)
        return decoder

    def _requests(
        self, prompts: Sequence[Prompt], ledger: _Ledger, known: dict[int, Prompt]
    ) -> Iterator[DecodingRequest]:
        """Requests as slots fall free, until those begun are sure to fill the plan."""
        first = ledger.next_request
        for planned in plan_requests(self._target, prompts, self._plan, first):
            if ledger.seen >= self._plan.blocks:
                return
            number = planned.request.number
            if ledger.idle_since(number) > _PATIENCE:
                raise ConfigurationError(
                    "prompts",
                    f"{_PATIENCE} requests without a block",
                    "give prompts that the target answers with more than a stop token",
                )
            known[number] = planned.prompt
            yield planned.request

    def _check_same_recording(self, prompts: Sequence[Prompt]) -> None:
        """Refuse to mix rows of two recordings in one folder."""
        texts = hashlib.sha256("".join(prompt.digest for prompt in prompts).encode())
        now = {
            "plan": {k: v for k, v in asdict(self._plan).items() if k not in _FREE},
            "drafter": self._drafter.weights_digest(),
            "target": self._target.name,
            "target_weights": self._target.weights_digest(),
            "prompts": texts.hexdigest(),
            "everything_verified": self._policy is None,
        }
        if self._runner is not None:
            # The same law from another random stream: rows would not repeat.
            now["drafting"] = "draft_block"
        path = self._folder / _PLAN_FILE
        if path.exists():
            before = parse_json_object(path.read_bytes(), str(path))
            changed = _differences(before, plain_json(now))
            if changed:
                raise ConfigurationError(
                    "folder",
                    f"begun with other {', '.join(changed)}",
                    f"record with those again, or into another folder than {self._folder.name}",
                )
        elif any(self._folder.glob("rows-*.parquet")):
            raise FormatError(self._folder, f"shards without {_PLAN_FILE}", "use another folder")
        write_bytes_atomically(path, canonical_json(now))


class _Ledger:
    """Rows of requests under way, handed out request by request in the order of their numbers."""

    def __init__(self, parts: Sequence[AcceptanceRecords], plan: RecordingPlan) -> None:
        numbers = [int(r) for p in parts if p.request is not None for r in p.request]
        self.next_request = max(numbers, default=-1) + 1
        self.seen = sum(len(part) for part in parts)  # rows, of unfinished requests too
        self._released = self.seen
        self._plan = plan
        self._last_number = self.next_request
        self._open: dict[int, list[AcceptanceRecords]] = {}
        self._shard: list[AcceptanceRecords] = []
        self._shard_requests = 0

    def is_full(self) -> bool:
        """Whether the plan's rows are handed out or waiting in the shard."""
        return self._released >= self._plan.blocks

    def idle_since(self, number: int) -> int:
        """Requests up to ``number`` since the last one that gave a row."""
        return number - self._last_number

    def add(self, step: DecodingStep, rows: AcceptanceRecords) -> None:
        """Keep a step's rows under their requests."""
        for index, request in enumerate(step.requests):
            row = rows.select(np.array([index]))
            self._open.setdefault(request.number, []).append(row)
            self._last_number = max(self._last_number, request.number)
        self.seen += len(rows)

    def shards(self, answers: dict[int, tuple[int, ...]]) -> Iterator[AcceptanceRecords]:
        """Shards that are complete now: enough requests in order, or the last of the plan."""
        while not self.is_full() and self.next_request in answers:
            rows = self._open.pop(self.next_request, [])  # none where the first token ended it
            self.next_request += 1
            self._shard += rows
            self._released += len(rows)
            self._shard_requests += 1
            if self._shard and (
                self.is_full() or self._shard_requests >= self._plan.shard_requests
            ):
                yield AcceptanceRecords.concatenate(self._shard)
                self._shard, self._shard_requests = [], 0


def _differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Names of what differs, with the plan's own options named one by one."""
    old, new = ({**value, **_options(value)} for value in (before, now))
    return [
        name
        for name in sorted(set(old) | set(new))
        if name != "plan" and old.get(name) != new.get(name)
    ]


def _options(recording: dict[str, Any]) -> dict[str, Any]:
    plan = recording.get("plan")
    return {f"plan.{key}": value for key, value in plan.items()} if isinstance(plan, dict) else {}
