"""One rank of one engine with the plugin attached: what happens at every verify step.

Everything runs on the scheduler's thread, on the stream the step runs on, and nothing waits for
the device. Faults are counted and logged, never raised. The broadcast comes at every step on every
rank, whatever else failed there: a rank that left it out would stop the others.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, cast

from dspark_calib_client.application import SteppedApplication
from dspark_calib_client.broadcast import RankZeroBroadcaster
from dspark_calib_client.client import CalibrationClient
from dspark_calib_client.plugins.sglang.buffer import NAME
from dspark_calib_client.plugins.sglang.engine import EngineFacts
from dspark_calib_client.plugins.sglang.request_tags import TagTable
from dspark_calib_client.plugins.sglang.settings import PluginSettings
from dspark_calib_client.plugins.sglang.steadied import SteadiedClient
from dspark_calib_client.plugins.sglang.step_copies import StepCopies
from dspark_calib_client.plugins.sglang.step_rows import StepNote, step_columns
from dspark_calib_client.temperatures import Temperatures

__all__ = ["Attachment"]

_LOG = logging.getLogger("dspark_calib_client")
_MOST_FAULTS = 100  # in a row, after which telemetry ends


class Attachment:
    """The plugin on one rank.

    Args:
        settings: equal on all ranks.
        facts: of the engine.
        head: confidence head, with a vector installed.
        numbers: what is in the vector now.
        broadcast: replaces the list's element on every rank by that of rank 0.
        client: on rank 0, None on the others.

    Attributes:
        counters: faults and rows by name.
    """

    def __init__(
        self,
        settings: PluginSettings,
        facts: EngineFacts,
        head: Any,
        numbers: tuple[float, ...],
        broadcast: Callable[[list[Any]], object],
        client: CalibrationClient | None,
    ) -> None:
        self._facts = facts
        self._head = head
        self._client = client
        self._buffer = getattr(head, NAME)
        identity = all(number == 1.0 for number in numbers)
        self._revision = 0 if identity else facts.file_revision
        self._form = "identity" if identity else "temperatures"
        self._publication = 0
        self._numbers = numbers
        self._application = SteppedApplication(self._buffer, facts.gamma, applied=self._applied)
        self._applies = settings.apply and not facts.collecting
        self._source = None if client is None else SteadiedClient(client.current)
        self._broadcaster = RankZeroBroadcaster(
            cast("Any", self._source),  # it asks for current() alone
            broadcast,
            facts.rank,
            application=self._application,
            every=settings.every,
        )
        self._copies: StepCopies | None = None
        kind = self._buffer.device.type
        if facts.rank == 0 and kind in ("cpu", "cuda"):
            self._copies = StepCopies(facts.gamma, on_device=kind == "cuda")
        elif facts.rank == 0:  # when its copies are done could not be known without a wait
            _LOG.warning("no telemetry from a device of kind %r", kind)
        self._tags = TagTable(settings.domain_key, settings.tenant_key)
        # Steps go on growing over restarts: the service drops what lies behind an engine's mark.
        self._first_step = int(time.time() * 1000.0)
        self._replaced = False
        self._faults_in_a_row = 0
        self.counters = {
            "steps": 0,
            "rows": 0,
            "rows_after_stop": 0,
            "steps_without_logits": 0,
            "telemetry_faults": 0,
            "broadcast_faults": 0,
        }

    def at_verify_step(self, observers: Any, step: dict[str, Any]) -> None:
        """The engine has verified a step; never raises.

        Args:
            observers: SGLang's ``DsparkStepObservers``.
            step: what it was called with.
        """
        self.counters["steps"] += 1
        if self._copies is not None:
            # First: these rows were made with the numbers that are about to be replaced.
            self._observe(observers, step)
        if self._applies:
            self._exchange(step)

    def status(self) -> dict[str, Any]:
        """What this rank runs with, and what went wrong; plain values by name."""
        found: dict[str, Any] = {
            "attached": True,
            "applies": self._applies,
            "collecting": self._facts.collecting,
            "buffer_replaced": self._replaced,
            "gamma": self._facts.gamma,
            "mode": self._facts.mode,
            "rank": self._facts.rank,
            "ranks": self._facts.ranks,
            "publication": self._publication,
            "revision": self._revision,
            "temperatures": list(self._numbers),
            "form": self._form,
            "telemetry": self._copies is not None,
            "steps_left_out": 0 if self._copies is None else self._copies.left_out,
            "late": self._application.late,
            "not_applied": self._application.failed,
            "broadcasts": self._broadcaster.broadcasts,
            "broadcasts_failed": self._broadcaster.failed,
            **self.counters,
        }
        if self._source is not None:
            found["holding"] = self._source.holding
            found["holds"] = self._source.holds
        if self._client is not None:
            found["client"] = self._client.metrics()
        return found

    def _exchange(self, step: dict[str, Any]) -> None:
        try:
            applied = self._broadcaster.at_step(int(step["forward_ct"]))
            if applied is not None and getattr(self._head, NAME) is not self._buffer:
                self._replaced = True
                _LOG.error("%s was rebound: what is put into the old tensor has no effect", NAME)
        except Exception:  # noqa: BLE001  (called from the engine's step)
            self._fault("broadcast_faults")

    def _applied(self, temperatures: Temperatures) -> None:
        self._publication = temperatures.publication
        self._revision = temperatures.revision
        self._numbers = temperatures.values
        identity = all(number == 1.0 for number in temperatures.values)
        self._form = "identity" if identity else "temperatures"
        if self._client is not None:
            self._client.report_applied(temperatures, self._form)
            _LOG.info(
                "revision %d (publication %d) applied: %s",
                temperatures.revision,
                temperatures.publication,
                ", ".join(f"{value:g}" for value in temperatures.values),
            )

    def _observe(self, observers: Any, step: dict[str, Any]) -> None:
        try:
            if step["confidence_raw"] is None:
                self.counters["steps_without_logits"] += 1
                return
            self._send_arrived()
            self._ask_for(observers, step)
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
            columns, past = step_columns(copy)
            self.counters["rows_after_stop"] += past
            if len(columns["verified"]):
                self.counters["rows"] += self._client.record_rows(columns)

    def _ask_for(self, observers: Any, step: dict[str, Any]) -> None:
        if self._copies is None:
            return
        rows = int(step["bs"])
        layout, facts = step["layout"], self._facts
        trimmed = layout is not None
        verify_len = layout.verify_lens if trimmed else step["correct_len"]
        note = StepNote(
            batch=self._tags.of(step["reqs"]),
            step=self._first_step + int(step["forward_ct"]),
            timestamp=time.time(),
            mode=facts.mode,
            trimmed=trimmed,
            full=_all_verified(facts, observers._planner, step),
            greedy_draft=bool(step["draft_block"].greedy_draft),
            block_rule=facts.block_rule,
            forced=float(observers._simulate_acc_len) > 0.0,
            revision=self._revision,
            applied_form=self._form,
        )
        if len(note.batch) != rows:
            raise ValueError(f"{len(note.batch)} requests in a batch of {rows}")
        parts = (
            *(step["confidence_raw"], step["verify_ids_2d"], step["correct_len"]),
            *(step["cap_trim_lens"], step["bonus"], step["prefix_lens"], verify_len),
        )
        logits, ids, *integers = (p if p.shape[0] == rows else p[:rows] for p in parts)
        self._copies.ask_for(logits, ids, integers, note)

    def _fault(self, name: str) -> None:
        self.counters[name] += 1
        count = self.counters[name]
        if count & (count - 1) == 0:  # the 1st, 2nd, 4th, 8th, …
            _LOG.exception("%s: %d", name, count)


def _all_verified(facts: EngineFacts, planner: Any, step: dict[str, Any]) -> bool:
    """Whether everything was checked, and this had been decided before the block was drafted."""
    if facts.mode == "cap-accept" or step["layout"] is None:
        return True
    if facts.verify_all or step["verify_token_budget"] is None:
        return True
    budgets = getattr(planner, "_budget_planner", None)
    return getattr(budgets, "forced_budget_frac", None) == 1.0
