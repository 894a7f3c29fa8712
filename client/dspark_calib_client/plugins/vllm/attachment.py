"""One rank of one vLLM engine with the plugin attached: what happens at every step.

Everything runs on the worker's thread and the stream that the step runs on; nothing waits for the
device. A step goes: the budget is chosen (:meth:`Attachment.budget`), blocks are verified
(:meth:`Attachment.after_sample`: rows are copied, then news is exchanged and applied), new blocks
are drafted by the captured graph, and their logits are kept (:meth:`Attachment.after_draft`). The
exchange comes at every step on every rank, whatever else failed there.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from dspark_calib_client.broadcast import RankZeroBroadcaster
from dspark_calib_client.client import CalibrationClient
from dspark_calib_client.plugins.sglang.settings import PluginSettings
from dspark_calib_client.plugins.sglang.steadied import SteadiedClient
from dspark_calib_client.plugins.sglang.step_copies import StepCopies
from dspark_calib_client.plugins.vllm.engine import EngineFacts
from dspark_calib_client.plugins.vllm.numbers import ServedNumbers
from dspark_calib_client.plugins.vllm.request_tags import TagTable
from dspark_calib_client.plugins.vllm.sources import EstimatorSource, HeadSource
from dspark_calib_client.plugins.vllm.step_rows import GradedNote, graded_columns
from dspark_calib_client.temperatures import Temperatures

__all__ = ["Attachment", "explores"]

_LOG = logging.getLogger("dspark_calib_client")
_MOST_FAULTS = 100  # in a row, after which telemetry ends
_LARGEST_SHARE = 0.05  # a service that asks for more is not believed


@dataclass(frozen=True)
class _Applied:
    """What a draft was made with."""

    publication: int
    revision: int
    form: str | None


def explores(step: int, share: float | None) -> bool:
    """Whether a step verifies every block in full, by a coin that all ranks toss alike.

    It depends on the number of the step alone, never on what was drafted.
    """
    if not share:
        return False
    drawn = hashlib.blake2b(b"dspark-explore:%d" % step, digest_size=8).digest()
    return int.from_bytes(drawn, "big") < min(share, _LARGEST_SHARE) * 2.0**64


class Attachment:
    """The plugin on one rank.

    Args:
        settings: equal on all ranks.
        form: ``affine`` or ``temperatures``, equal on all ranks.
        facts: of the engine.
        device: where it runs.
        broadcast: replaces the list's element on every rank by that of rank 0.
        client: on rank 0, None on the others.
        estimator: vLLM's acceptance estimator, for an engine without a trained head.

    Attributes:
        counters: faults and rows by name.
        numbers: what the captured graph reads.
        source: where confidence comes from.
    """

    def __init__(
        self,
        settings: PluginSettings,
        form: str,
        facts: EngineFacts,
        device: Any,
        broadcast: Callable[[list[Any]], object],
        client: CalibrationClient | None,
        estimator: Any = None,
    ) -> None:
        self.facts = facts
        self._client = client
        self.numbers = ServedNumbers(facts.gamma, device, form=form, applied=self._on_applied)
        self.source: HeadSource | EstimatorSource
        if facts.source == "head":
            self.source = HeadSource(facts.gamma, facts.most_requests, device, self.numbers.tensor)
        else:
            self.source = EstimatorSource(facts.gamma, estimator, self.numbers.tensor)
        # vLLM's own estimate is nobody's revision; a head without numbers is identity.
        self._identity = 0 if facts.source == "head" else -1
        self._made_with = [_Applied(0, self._identity, None if self._identity else "identity")]
        self._values: tuple[float, ...] = (1.0,) * facts.gamma
        self._share: float | None = None
        self._applies = settings.apply
        self._steadied = None if client is None else SteadiedClient(client.current)
        self._broadcaster = RankZeroBroadcaster(
            cast("Any", self._steadied),  # it asks for current() alone
            broadcast,
            facts.rank,
            application=cast("Any", self.numbers),  # it stages and steps
            every=settings.every,
        )
        self._copies: StepCopies | None = None
        if facts.rank == 0:
            self._copies = StepCopies(facts.gamma, on_device=bool(self.numbers.tensor.is_cuda))
        self._tags = TagTable(settings.domain_key, settings.tenant_key)
        # Steps go on growing over restarts: the service drops what lies behind an engine's mark.
        self._first_step = int(time.time() * 1000.0)
        self._steps = 0
        self._explored = False  # the step that is under way
        self._faults_in_a_row = 0
        self.counters = {
            "rows": 0,
            "rows_after_stop": 0,
            "rows_made_earlier": 0,
            "steps_explored": 0,
            "telemetry_faults": 0,
            "broadcast_faults": 0,
        }

    def add_requests(self, new_requests: Any, alive: Any) -> None:
        """Requests that reach the worker now; never raises."""
        try:
            self._tags.add(new_requests, alive)
        except Exception:  # noqa: BLE001  (called from the engine's step)
            self._fault("telemetry_faults")

    def budget(self, manager: Any, chosen: int, draft_tokens: Mapping[str, Any]) -> int:
        """Tokens of the step under way: what vLLM chose, or all where the step explores."""
        self._explored = False
        if not self._applies or not explores(self._steps, self._share):
            return chosen
        drafts, others, _ = manager._batch_budget
        room = manager._max_total_logits - len(others) * manager.num_bonus_tokens
        full = sum(drafts.values())
        if full > room:
            return chosen  # vLLM could not verify them all
        manager._batch_budget = (drafts, others, full)
        self._explored = True
        self.counters["steps_explored"] += 1
        return int(sum(others.values()) + full)

    def after_sample(self, runner: Any, input_batch: Any, result: Any) -> None:
        """Blocks have been verified, and nothing new is drafted yet; never raises.

        Args:
            runner: vLLM's ``GPUModelRunner``.
            input_batch: its batch.
            result: sampler output, sampled and rejected tokens of each request.
        """
        if self._copies is not None:
            # First: these rows were made with the numbers that are about to be replaced.
            self._observe(runner, input_batch, result)
        self._explored = False
        if self._applies:
            try:
                self._broadcaster.at_step(self._steps)
            except Exception:  # noqa: BLE001  (called from the engine's step)
                self._fault("broadcast_faults")
        self._steps += 1

    def after_draft(self, input_batch: Any) -> None:
        """A new block has been drafted for every request of the batch; never raises."""
        try:
            self.source.record(input_batch.idx_mapping, int(input_batch.num_reqs))
            made_with = len(self._made_with) - 1
            for tags in self._tags.of(input_batch.req_ids):
                if tags is not None:
                    tags.drafted = made_with
        except Exception:  # noqa: BLE001  (called from the engine's step)
            self._fault("telemetry_faults")

    def status(self) -> dict[str, Any]:
        """What this rank runs with, and what went wrong; plain values by name."""
        now = self._made_with[-1]
        found: dict[str, Any] = {
            "engine": "vllm",
            "attached": True,
            "applies": self._applies,
            "gamma": self.facts.gamma,
            "mode": "adaptive",
            "source": self.facts.source,
            "rank": self.facts.rank,
            "ranks": self.facts.ranks,
            "steps": self._steps,
            "publication": now.publication,
            "revision": now.revision,
            "form": now.form,
            "temperatures": list(self._values),
            "exploration": self._share,
            "telemetry": self._copies is not None,
            "steps_left_out": 0 if self._copies is None else self._copies.left_out,
            "late": self.numbers.late,
            "not_applied": self.numbers.failed,
            "broadcasts": self._broadcaster.broadcasts,
            "broadcasts_failed": self._broadcaster.failed,
            **self.counters,
        }
        if self._steadied is not None:
            found["holding"] = self._steadied.holding
            found["holds"] = self._steadied.holds
        if self._client is not None:
            found["client"] = self._client.metrics()
        return found

    def _on_applied(self, temperatures: Temperatures, form: str) -> None:
        self._values = temperatures.values
        self._share = temperatures.exploration
        own = form == "identity" and self.facts.source != "head"
        revision = self._identity if own else temperatures.revision
        self._made_with.append(_Applied(temperatures.publication, revision, None if own else form))
        if self._client is not None:
            self._client.report_applied(temperatures, form)
            _LOG.info(
                "revision %d (publication %d) applied as %s",
                *(temperatures.revision, temperatures.publication, form),
            )

    def _observe(self, runner: Any, input_batch: Any, result: Any) -> None:
        try:
            self._send_arrived()
            if self._copies is not None and input_batch.num_draft_tokens_per_req is not None:
                self._ask_for(self._copies, runner, input_batch, result)
            self._faults_in_a_row = 0
        except Exception:  # noqa: BLE001  (called from the engine's step)
            self._fault("telemetry_faults")
            self._faults_in_a_row += 1
            if self._faults_in_a_row >= _MOST_FAULTS:
                self._copies = None
                _LOG.error("telemetry ends: %d faults in a row", _MOST_FAULTS)

    def _send_arrived(self) -> None:
        if self._copies is None or self._client is None:
            return
        for copy in self._copies.arrived():
            columns, past = graded_columns(copy)
            self.counters["rows_after_stop"] += past
            if len(columns["verified"]):
                self.counters["rows"] += self._client.record_rows(columns)

    def _ask_for(self, copies: StepCopies, runner: Any, input_batch: Any, result: Any) -> None:
        import torch

        rows = int(input_batch.num_reqs)
        tags = self._tags.of(input_batch.req_ids)
        drafts = input_batch.num_draft_tokens_per_req
        graded = [
            row
            for row in range(rows)
            if drafts[row] > 0
            and not input_batch.is_prefilling_np[row]
            and (known := tags[row]) is not None
            and known.drafted is not None
        ]
        if not graded:
            return
        # A request that sat out a step may carry a draft made with older numbers than the rest.
        made = [cast("Any", tags[row]).drafted for row in graded]
        usual = max(set(made), key=made.count)
        kept = [row for row, number in zip(graded, made) if number == usual]
        self.counters["rows_made_earlier"] += len(graded) - len(kept)
        applied = self._made_with[usual]
        output, sampled, rejected = result
        slots = input_batch.idx_mapping[:rows].long()
        sampled, rejected = sampled[:rows].long(), rejected[:rows].long()
        accepted = (sampled - 1).clamp(min=0)
        tokens = output.sampled_token_ids[:rows].long()
        bonus = tokens.gather(1, accepted.clamp(max=tokens.shape[1] - 1).view(-1, 1)).view(-1)
        verify_len = accepted + rejected + 1
        blocks = runner.req_states.draft_tokens.index_select(0, slots)
        copies.ask_for(
            self.source.logits(input_batch.idx_mapping, rows),
            torch.nn.functional.pad(blocks, (1, 0)),
            (
                accepted,
                torch.zeros_like(accepted),
                bonus,
                input_batch.seq_lens[:rows].long() - verify_len,
                verify_len,
            ),
            GradedNote(
                kept=kept,
                all_tags=tags,
                step=self._first_step + self._steps,
                timestamp=time.time(),
                facts=self.facts,
                revision=applied.revision,
                applied_form=applied.form,
                explored=min(self._share or 0.0, _LARGEST_SHARE) if self._explored else None,
            ),
        )

    def _fault(self, name: str) -> None:
        self.counters[name] += 1
        count = self.counters[name]
        if count & (count - 1) == 0:  # the 1st, 2nd, 4th, 8th, …
            _LOG.exception("%s: %d", name, count)
