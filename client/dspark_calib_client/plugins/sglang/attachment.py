"""One rank of one SGLang engine with the plugin attached: what happens at every verify step."""

from __future__ import annotations

import logging
import time
from typing import Any

from dspark_calib_client.application import SteppedApplication
from dspark_calib_client.broadcast import Broadcast
from dspark_calib_client.client import CalibrationClient
from dspark_calib_client.plugins.common.attachment import RankAttachment
from dspark_calib_client.plugins.common.settings import PluginSettings
from dspark_calib_client.plugins.sglang.buffer import NAME
from dspark_calib_client.plugins.sglang.engine import EngineFacts
from dspark_calib_client.plugins.sglang.request_tags import tags_of_batch
from dspark_calib_client.plugins.sglang.step_rows import (
    StepNote,
    parts_of,
    row_width,
    step_columns,
)
from dspark_calib_client.temperatures import Temperatures

__all__ = ["Attachment"]

_LOG = logging.getLogger("dspark_calib_client")


class Attachment(RankAttachment):
    """The plugin on one rank.

    Args:
        settings: equal on all ranks.
        facts: of the engine.
        head: confidence head, with a vector installed.
        numbers: what is in the vector now.
        broadcast: replaces the list's element on every rank by that of rank 0.
        client: on rank 0, None on the others.
    """

    engine = "sglang"

    def __init__(
        self,
        settings: PluginSettings,
        facts: EngineFacts,
        head: Any,
        numbers: tuple[float, ...],
        broadcast: Broadcast,
        client: CalibrationClient | None,
    ) -> None:
        self._facts = facts
        self._head = head
        self._buffer = getattr(head, NAME)
        identity = all(number == 1.0 for number in numbers)
        self._revision = 0 if identity else facts.file_revision
        self._form = "identity" if identity else "temperatures"
        self._publication = 0
        self._numbers = numbers
        self._form_refused = "affine" if settings.form == "affine" else None
        super().__init__(
            settings,
            facts,
            broadcast,
            client,
            SteppedApplication(self._buffer, facts.gamma, applied=self._on_applied),
            applies=settings.apply and not facts.collecting,
        )
        self._own.update(steps=0, steps_without_logits=0)
        self._replaced = False
        if client is not None:
            width = row_width(facts.gamma)
            self._send_rows(client, step_columns, device=self._buffer.device, width=width)

    def at_verify_step(self, observers: Any, step: dict[str, Any]) -> None:
        """The engine has verified a step; never raises.

        Args:
            observers: SGLang's ``DsparkStepObservers``.
            step: what it was called with.
        """
        self._own["steps"] += 1
        # First: these rows were made with the numbers that are about to be replaced.
        self._observed(self._ask_for, observers, step)
        applied = self._exchange(int(step["forward_ct"]))
        if applied is not None and getattr(self._head, NAME) is not self._buffer:
            self._replaced = True
            _LOG.error("%s was rebound: what is put into the old tensor has no effect", NAME)

    def status(self) -> dict[str, Any]:
        """What this rank runs with, and what went wrong; plain values by name."""
        return {
            **super().status(),
            "mode": self._facts.mode,
            "source": "head",
            "collecting": self._facts.collecting,
            "buffer_replaced": self._replaced,
            "publication": self._publication,
            "revision": self._revision,
            "temperatures": list(self._numbers),
            "form": self._form,
            "form_refused": self._form_refused,
        }

    def _on_applied(self, temperatures: Temperatures) -> None:
        self._publication = temperatures.publication
        self._revision = temperatures.revision
        self._numbers = temperatures.values
        identity = all(number == 1.0 for number in temperatures.values)
        self._form = "identity" if identity else "temperatures"
        self._report(temperatures, self._form)

    def _ask_for(self, observers: Any, step: dict[str, Any]) -> None:
        if step["confidence_raw"] is None:
            self._own["steps_without_logits"] += 1
            return
        facts, rows = self._facts, int(step["bs"])
        capped = facts.mode == "cap-accept"
        tags = tags_of_batch(step["reqs"], self.settings.domain_key, self.settings.tenant_key)
        if len(tags) != rows:
            raise ValueError(f"{len(tags)} requests in a batch of {rows}")
        note = StepNote(
            tags,
            self._first_step + int(step["forward_ct"]),
            time.time(),
            capped,
            _all_verified(facts, observers._planner, step),
            bool(step["draft_block"].greedy_draft),
            facts.block_rule,
            float(observers._simulate_acc_len) > 0.0,
            self._revision,
            self._form,
        )
        self._copy(rows, parts_of(step, capped=capped), note)


def _all_verified(facts: EngineFacts, planner: Any, step: dict[str, Any]) -> bool:
    """Whether everything was checked, and this had been decided before the block was drafted."""
    if facts.mode == "cap-accept" or step["layout"] is None:
        return True
    if facts.verify_all or step["verify_token_budget"] is None:
        return True
    budgets = getattr(planner, "_budget_planner", None)
    return getattr(budgets, "forced_budget_frac", None) == 1.0
