"""One rank of one vLLM engine with the plugin attached: what happens at every step.

A step goes: the budget is chosen (:meth:`Attachment.budget`), blocks are verified
(:meth:`Attachment.after_sample`: copies are asked for, then news is exchanged and applied), new
blocks are drafted by the captured graph, and their logits are kept
(:meth:`Attachment.after_draft`).
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from dspark_calib_client.broadcast import Broadcast
from dspark_calib_client.client import CalibrationClient
from dspark_calib_client.plugins.common.attachment import RankAttachment
from dspark_calib_client.plugins.common.settings import FORMS, PluginSettings
from dspark_calib_client.plugins.vllm.engine import EngineFacts
from dspark_calib_client.plugins.vllm.numbers import ServedNumbers
from dspark_calib_client.plugins.vllm.request_tags import TagTable
from dspark_calib_client.plugins.vllm.sources import EstimatorSource, HeadSource
from dspark_calib_client.plugins.vllm.step_rows import GradedNote, graded_columns, row_width
from dspark_calib_client.temperatures import Temperatures

__all__ = ["Applied", "Attachment", "explores"]

_LARGEST_SHARE = 0.05  # a service that asks for more is not believed


class Applied(NamedTuple):
    """What a draft was made with.

    Attributes:
        publication: of the service; 0 before the first.
        revision: 0 for identity, −1 for vLLM's own estimate.
        form: None for vLLM's own estimate.
    """

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


class Attachment(RankAttachment):
    """The plugin on one rank.

    Args:
        settings: equal on all ranks.
        facts: of the engine.
        device: where it runs.
        broadcast: replaces the list's element on every rank by that of rank 0.
        client: on rank 0, None on the others.
        estimator: vLLM's acceptance estimator, for an engine without a trained head.

    Attributes:
        facts: as given.
        numbers: what the captured graph reads.
        source: where confidence comes from.
    """

    engine = "vllm"

    def __init__(
        self,
        settings: PluginSettings,
        facts: EngineFacts,
        device: Any,
        broadcast: Broadcast,
        client: CalibrationClient | None,
        estimator: Any = None,
    ) -> None:
        self.facts = facts
        self.numbers = ServedNumbers(
            facts.gamma, device, form=settings.form or FORMS[0], applied=self._on_applied
        )
        self.source: HeadSource | EstimatorSource
        if facts.source == "head":
            self.source = HeadSource(facts.gamma, facts.most_requests, device, self.numbers.tensor)
        else:
            self.source = EstimatorSource(facts.gamma, estimator, self.numbers.tensor)
        # vLLM's own estimate is nobody's revision; a head without numbers is identity.
        self._identity = 0 if facts.source == "head" else -1
        self._made_with = [Applied(0, self._identity, None if self._identity else "identity")]
        self._values: tuple[float, ...] = (1.0,) * facts.gamma
        self._share: float | None = None
        super().__init__(settings, facts, broadcast, client, self.numbers, applies=settings.apply)
        self._own["steps_explored"] = 0
        self._tags = TagTable(settings.domain_key, settings.tenant_key)
        self._steps = 0
        self._explored = False  # the step that is under way
        if client is not None:
            self._send_rows(
                client,
                graded_columns,
                device=self.numbers.tensor.device,
                width=row_width(facts.gamma, facts.gamma + 1),
                rows=facts.most_requests,
            )

    @property
    def terms(self) -> str:
        """What every rank of the engine must be about to do alike."""
        return f"{super().terms} source {self.facts.source} form {self.settings.form or FORMS[0]}"

    def add_requests(self, new_requests: Any, alive: Any) -> None:
        """Requests that reach the worker now; never raises."""
        try:
            self._tags.add(new_requests, alive)
        except Exception:  # noqa: BLE001  (called from the engine's step)
            self._fault("telemetry_faults")

    def budget(self, manager: Any, chosen: int, draft_tokens: Mapping[str, Any]) -> int:
        """Tokens of the step under way: what vLLM chose, or all where the step explores."""
        self._explored = False
        if not self.applies or not explores(self._steps, self._share):
            return chosen
        drafts, others, _ = manager._batch_budget
        room = manager._max_total_logits - len(others) * manager.num_bonus_tokens
        full = sum(drafts.values())
        if full > room:
            return chosen  # vLLM could not verify them all
        manager._batch_budget = (drafts, others, full)
        self._explored = True
        self._own["steps_explored"] += 1
        return int(sum(others.values()) + full)

    def after_sample(self, runner: Any, input_batch: Any, result: Any) -> None:
        """Blocks have been verified, and nothing new is drafted yet; never raises.

        Args:
            runner: vLLM's ``GPUModelRunner``.
            input_batch: its batch.
            result: sampler output, sampled and rejected tokens of each request.
        """
        # First: these rows were made with the numbers that are about to be replaced.
        if input_batch.num_draft_tokens_per_req is not None:
            self._observed(self._ask_for, runner, input_batch, result)
        self._explored = False
        self._exchange(self._steps)
        self._steps += 1

    def after_draft(self, input_batch: Any) -> None:
        """A new block has been drafted for every request of the batch; never raises."""
        if not self.sends_rows:
            return
        try:
            self.source.record(input_batch.idx_mapping, int(input_batch.num_reqs))
            self._tags.mark(input_batch.req_ids, len(self._made_with) - 1)
        except Exception:  # noqa: BLE001  (called from the engine's step)
            self._fault("telemetry_faults")

    def status(self) -> dict[str, Any]:
        """What this rank runs with, and what went wrong; plain values by name."""
        now = self._made_with[-1]
        return {
            **super().status(),
            "mode": "adaptive",
            "source": self.facts.source,
            "steps": self._steps,
            "publication": now.publication,
            "revision": now.revision,
            "form": now.form,
            "temperatures": list(self._values),
            "exploration": self._share,
        }

    def _on_applied(self, temperatures: Temperatures, form: str) -> None:
        self._values = temperatures.values
        self._share = temperatures.exploration
        own = form == "identity" and self.facts.source != "head"
        revision = self._identity if own else temperatures.revision
        self._made_with.append(Applied(temperatures.publication, revision, None if own else form))
        self._report(temperatures, form)

    def _ask_for(self, runner: Any, input_batch: Any, result: Any) -> None:
        rows, slots = int(input_batch.num_reqs), input_batch.idx_mapping
        tags = self._tags.of(input_batch.req_ids)
        if len(tags) != rows:
            raise ValueError(f"{len(tags)} requests in a batch of {rows}")
        if slots.shape[0] != rows:
            slots = slots[:rows]
        output, sampled, rejected = result
        note = GradedNote(
            tags,
            self._tags.drafted(tags),
            input_batch.num_draft_tokens_per_req,
            input_batch.is_prefilling_np,
            self._made_with,
            self._first_step + self._steps,
            time.time(),
            self.facts,
            min(self._share or 0.0, _LARGEST_SHARE) if self._explored else None,
        )
        blocks = runner.req_states.draft_tokens.index_select(0, slots)
        texts, lengths = output.sampled_token_ids, input_batch.seq_lens
        parts = (self.source.logits(slots), blocks, texts, sampled, rejected, lengths)
        self._copy(rows, parts, note)
