"""One rank of one engine with the plugin attached, as far as all engines are alike.

Everything an engine calls runs on its scheduler's thread, on the stream the step runs on, and
nothing waits for the device. Faults are counted and logged, never raised. The exchange with other
ranks comes at every step on every rank, whatever else failed there: a rank that left it out would
stop the others.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, cast

from dspark_calib_client.broadcast import Broadcast, RankZeroBroadcaster
from dspark_calib_client.client import CalibrationClient
from dspark_calib_client.plugins.common.row_maker import MOST_FAULTS, Made, RowMaker
from dspark_calib_client.plugins.common.settings import PluginSettings
from dspark_calib_client.plugins.common.steadied import SteadiedClient
from dspark_calib_client.plugins.common.step_copies import StepCopies
from dspark_calib_client.temperatures import Temperatures

__all__ = ["RankAttachment"]

_LOG = logging.getLogger("dspark_calib_client")


class RankAttachment:
    """What the attachments of all engines are made of.

    Args:
        settings: equal on all ranks.
        place: the engine's facts, see :data:`dspark_calib_client.plugins.common.joining.Place`.
        broadcast: replaces the list's element on every rank by that of rank 0.
        client: on rank 0, None on the others.
        application: puts numbers where the engine reads them; it stages and steps.
        applies: whether numbers are applied at all.

    Attributes:
        settings, place, applies: as given.
    """

    engine = ""  # name in status and log

    def __init__(
        self,
        settings: PluginSettings,
        place: Any,
        broadcast: Broadcast,
        client: CalibrationClient | None,
        application: Any,
        *,
        applies: bool,
    ) -> None:
        self.settings = settings
        self.place = place
        self._client = client
        self._application = application
        self.applies = applies
        self._steadied = None if client is None else SteadiedClient(client.current)
        self._broadcaster = RankZeroBroadcaster(
            cast("Any", self._steadied),  # it asks for current() alone
            broadcast,
            place.rank,
            application=application,
            every=settings.every,
        )
        self._copies: StepCopies | None = None
        self._maker: RowMaker | None = None
        # Steps go on growing over restarts: the service drops what lies behind an engine's mark.
        self._first_step = int(time.time() * 1000.0)
        self._faults_in_a_row = 0
        self._own: dict[str, int] = {"telemetry_faults": 0, "broadcast_faults": 0}

    @property
    def terms(self) -> str:
        """What every rank of the engine must be about to do alike."""
        every, applies = self.settings.every, int(self.applies)
        return f"gamma {self.place.gamma} every {every} applies {applies}"

    @property
    def counters(self) -> dict[str, int]:
        """Faults, rows and steps by name."""
        copies, maker = self._copies, self._maker
        faults = 0 if maker is None else maker.faults
        return {
            "rows": 0 if maker is None else maker.rows,
            "rows_after_stop": 0 if maker is None else maker.rows_after_stop,
            "steps_left_out": 0 if copies is None else copies.left_out,
            "steps_lost": 0 if copies is None else copies.lost,
            **self._own,
            "telemetry_faults": self._own["telemetry_faults"] + faults,
        }

    def start(self) -> None:
        """Begin to poll and to send; on rank 0."""
        if self._client is not None:
            self._client.start()
        if self._maker is not None:
            self._maker.start()

    def stop(self, seconds: float) -> bool:
        """Send what is under way, and end; whether all of it was sent within the time."""
        ends = time.monotonic() + seconds
        made = self._maker is None or self._maker.stop(seconds / 2.0)
        if self._client is None:
            return made
        return self._client.stop(max(0.0, ends - time.monotonic())) and made

    def status(self) -> dict[str, Any]:
        """What this rank runs with, and what went wrong; plain values by name."""
        place = self.place
        found: dict[str, Any] = {
            "engine": self.engine,
            "attached": True,
            "applies": self.applies,
            "gamma": place.gamma,
            "rank": place.rank,
            "ranks": place.ranks,
            "telemetry": self.sends_rows,
            "late": self._application.late,
            "not_applied": self._application.failed,
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

    @property
    def sends_rows(self) -> bool:
        """Whether rows are made here: on rank 0, unless too many faults have ended it."""
        return self._maker is not None and not self._maker.ended

    def _send_rows(
        self, client: CalibrationClient, make: Made, *, device: Any, width: int, rows: int = 64
    ) -> None:
        """Have rows made of every step's copies; before :meth:`start`.

        Args:
            client: that sends them.
            make: columns of some steps.
            device: where the engine's tensors lie.
            width: most numbers of a row.
            rows: of a batch for which there is room from the start.
        """
        if device.type not in ("cpu", "cuda"):  # whether copies from there wait is not known
            _LOG.warning("no telemetry from a device of kind %r", device.type)
            return
        pinned = device.type == "cuda"
        copies = StepCopies(width, pinned=pinned, rows=rows)
        self._copies, self._maker = copies, RowMaker(copies, make, client.record_rows)

    def _observed(self, ask: Callable[..., object], *step: Any) -> None:
        """Have ``ask(*step)`` ask for the step's copies; faults are counted."""
        maker = self._maker
        if maker is None or maker.ended:
            return
        try:
            ask(*step)
            self._faults_in_a_row = 0
        except Exception:  # noqa: BLE001  (called from the engine's step)
            self._fault("telemetry_faults")
            self._faults_in_a_row += 1
            if self._faults_in_a_row >= MOST_FAULTS:
                maker.ended = True
                _LOG.error("telemetry ends: %d faults in a row", MOST_FAULTS)

    def _copy(self, rows: int, parts: Sequence[Any], note: Any) -> None:
        """Put a step's copy on the current stream, for rows to be made of it elsewhere."""
        if self._copies is not None and self._maker is not None:
            self._copies.ask_for(rows, parts, note)
            self._maker.nudge()

    def _exchange(self, step: int) -> Temperatures | None:
        """Hear and apply news; what was applied. Every rank calls it at every step."""
        if not self.applies:
            return None
        try:
            return self._broadcaster.at_step(step)
        except Exception:  # noqa: BLE001  (called from the engine's step)
            self._fault("broadcast_faults")
            return None

    def _report(self, temperatures: Temperatures, form: str) -> None:
        """Tell the service, and the log, what this engine runs with now."""
        if self._client is not None:
            self._client.report_applied(temperatures, form)
            _LOG.info(
                "revision %d (publication %d) applied as %s: %s",
                *(temperatures.revision, temperatures.publication, form),
                ", ".join(f"{value:g}" for value in temperatures.values),
            )

    def _fault(self, name: str) -> None:
        self._own[name] += 1
        count = self._own[name]
        if count & (count - 1) == 0:  # the 1st, 2nd, 4th, 8th, …
            _LOG.exception("%s: %d", name, count)
