"""A recorded shift sent into a running service, as engines would send it, and told while it works.

The rows are the recording's own; names of requests and steps are new, so that the service takes
them for traffic of today. A first champion is fitted on the first rows and promoted by hand, then
the rest is sent at a steady rate: what the service makes of it is its own affair, and is read from
its events.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from api.service_calls import ServiceCalls, ServiceProblemError
from api.service_demo import words
from api.service_demo.engines import Engines
from api.service_demo.following import Following
from api.service_demo.replay import DRAFTER, deal, shipped_key
from api.service_demo.teller import Teller
from calib.calibration_key import CalibrationKey
from calib.errors import ConfigurationError
from calib.record_schema import UNKNOWN_INTEGER
from calib.records import AcceptanceRecords
from calib.shipped import shipped_telemetry
from monitoring.loop_settings import LoopSettings
from monitoring.replay import Stretch
from monitoring.replay_shifts import Stream

__all__ = ["ENGINES", "LiveReplay", "drafter_for", "key_for", "renamed"]

ENGINES: Final = ("replay-1", "replay-2", "replay-3")

_POLLED_SECONDS: Final = 30.0
_STORED_SECONDS: Final = 120.0
_FITTED_SECONDS: Final = 120.0
_READ_SECONDS: Final = 30.0  # without any progress of the worker
_TICK_SECONDS: Final = 0.25
_LOOK_SECONDS: Final = 0.75
_STEPS_A_SECOND: Final = 1000  # a later run begins above all steps of an earlier one
_SCOPES: Final = "a token needs the scopes operate, read:temperatures and write:telemetry"


def drafter_for(files: Sequence[str]) -> str:
    """Name of the drafter that these recordings are replayed as."""
    if _is_shipped(files):
        return f"{DRAFTER}-replay"
    stem = re.sub(r"[^a-z0-9]+", "-", Path(files[0]).stem.lower()).strip("-")[:80]
    return f"{stem or 'recording'}-replay"


def key_for(files: Sequence[str], gamma: int) -> CalibrationKey:
    """Calibration key of a drafter that is registered for these recordings."""
    if _is_shipped(files):
        return shipped_key()
    names = ", ".join(sorted({Path(file).name for file in files}))[:200]
    return CalibrationKey(
        target_model="recorded",
        target_revision=names,
        target_quantization="unknown",
        draft_model="recorded",
        draft_revision=names,
        draft_quantization="unknown",
        gamma=gamma,
        slot_convention="anchor_excluded",
    )


def renamed(
    records: AcceptanceRecords, stretches: Sequence[Stretch], run: str, first_step: int
) -> AcceptanceRecords:
    """The same rows with requests and steps of their own: a service drops what it knows.

    Args:
        records: all rows, in the order of the stream.
        stretches: phases that cover them; steps grow over all of them.
        run: goes in front of each request's name.
        first_step: smallest step.
    """
    columns = records.columns()
    columns.pop("timestamp", None)  # they happen now
    if records.request is not None:
        names = [None if name is None else f"{run}-{name}" for name in records.request]
        columns["request"] = np.array(names, dtype=object)
    if records.step is not None:
        steps = records.step.copy()
        for stretch in stretches:
            phase = steps[stretch.first : stretch.first + stretch.rows]
            known = phase != UNKNOWN_INTEGER
            if known.any():
                phase[known] += first_step - phase[known].min()
                first_step = int(phase[known].max()) + 1
        columns["step"] = steps
    return AcceptanceRecords.from_columns(records.gamma, columns)


@dataclass
class LiveReplay:
    """One replay into one service.

    Attributes:
        service: calls to it.
        url: its address.
        stream: rows and phases.
        drafter: name to register, or to go on with.
        key: calibration key of a drafter that is new.
        baseline_rows: rows to fit a first champion on, promoted by hand; 0: none.
        rate: rows a second after that.
        teller: prints.
        token: bearer token of the engines, or None.
    """

    service: ServiceCalls
    url: str
    stream: Stream
    drafter: str
    key: CalibrationKey
    baseline_rows: int
    rate: float
    teller: Teller
    token: str | None = None

    def run(self) -> None:
        """Register, fit a first champion, send, follow and sum up.

        Raises:
            ConfigurationError: the drafter is another one's.
            ServiceProblemError: a call failed, or something took too long.
        """
        self._path = f"/v1/drafters/{self.drafter}"
        key = self._registered()
        began = time.time()
        run = time.strftime("%Y%m%dT%H%M%S", time.gmtime(began))
        self._rows = renamed(
            self.stream.records, self.stream.stretches, run, int(began * _STEPS_A_SECOND)
        )
        self._sent = 0
        self._following = Following(self.service, self.drafter, self.teller)
        self._engines = Engines(self.url, self.drafter, key.to_dict(), ENGINES, token=self.token)
        self._engines.start()
        try:
            if len(self._engines.arrivals(1, _POLLED_SECONDS)) < len(ENGINES):
                raise ServiceProblemError(0, "", f"polls are not answered; {_SCOPES}")
            self._baseline()
            self._play()
            self._await_worker()
            self._sum_up()
        finally:
            self._engines.stop()

    def _registered(self) -> CalibrationKey:
        """The drafter's key, registered now or before; nobody else's telemetry is mixed with."""
        try:
            found, _ = self.service.drafter(self.drafter)
        except ServiceProblemError as error:
            if error.status != 404:
                raise
            self.service.call("PUT", self._path, body={"key": self.key.to_dict()})
            self.teller.say(f"Registered {self.drafter}, a drafter for replays.")
            return self.key
        if found["gamma"] != self.stream.records.gamma:
            raise ConfigurationError(
                "drafter", self.drafter, f"has γ {found['gamma']}: name another drafter"
            )
        engines = self.service.call("GET", f"{self._path}/engines").json()["engines"]
        others = sorted({str(engine["engine"]) for engine in engines} - set(ENGINES))
        if others or (not engines and found["publication"] > 1):
            raise ConfigurationError(
                "drafter",
                self.drafter,
                f"is in use{f' by {others[0]}' if others else ''}: a replay would mix with its "
                "telemetry; name another drafter",
            )
        self._at_identity()
        self.teller.say(f"{self.drafter} was replayed into before; it starts again at identity.")
        return CalibrationKey.from_dict(found["key"])

    def _baseline(self) -> None:
        """A first champion on the first rows, by hand."""
        count = min(self.baseline_rows, self.stream.stretches[0].rows)
        if not count:
            return
        name = self.stream.stretches[0].name
        self.teller.title("First champion", f"fitted on the first {count:,} rows of {name}")
        with self.teller.waiting("rows are stored"):
            self._send(count)
            self._await_stored()
        loop = LoopSettings()
        body = {
            "method": loop.early_fit_method,
            "rows": count,
            "minimum_rows": loop.fit_position_rows,
            "evaluation_share": 0.5,  # few rows: half of them judge, or chance refuses the fit
            "promote": "never",
            "reason": f"replay: first champion on {count} rows",
        }
        job = self._job(self.service.call("POST", f"{self._path}/recalibrations", body=body))
        result = job.get("result") or {}
        if job["status"] != "succeeded" or result.get("revision") is None:
            why = result.get("reason") or job.get("error") or job["status"]
            self.teller.say(f"None was fitted, what is served stays: {why}.")
            return
        _, tag = self.service.drafter(self.drafter)
        place = f"{self._path}/revisions/{result['revision']}/promote"
        answer = self.service.change(place, tag, {"reason": "replay: the first champion, by hand"})
        self.teller.say(f"{words.promotion_sentence(answer)} Promoted by hand.")
        self._following.forget()

    def _at_identity(self) -> None:
        """A revision of ones under a new number: a new baseline, whose evidence starts again."""
        _, tag = self.service.drafter(self.drafter)
        reason = "replay: starts again at identity"
        body = {"temperatures": [1.0] * self.stream.records.gamma, "reason": reason}
        made = self.service.change(f"{self._path}/revisions", tag, body)
        _, tag = self.service.drafter(self.drafter)
        place = f"{self._path}/revisions/{made['revision']}/promote"
        self.service.change(place, tag, {"reason": reason})

    def _job(self, answer: Any) -> dict[str, Any]:
        place = answer.headers["Location"]
        ends = time.monotonic() + _FITTED_SECONDS
        with self.teller.waiting("the worker fits"):
            while True:
                job: dict[str, Any] = self.service.call("GET", place).json()
                if job["status"] not in ("queued", "running"):
                    return job
                if time.monotonic() >= ends:
                    raise ServiceProblemError(0, "", f"{place} is still {job['status']}")
                time.sleep(0.1)

    def _play(self) -> None:
        """Send the rest at the asked rate, and tell what happens meanwhile."""
        total, first = len(self._rows), self._sent
        self.teller.title("Replay", f"{total - first:,} rows at {self.rate:,.0f} rows a second")
        self.teller.show([("watch it at", f"{self.url}/drafters/{self.drafter}")])
        began = looked = time.monotonic()
        with self.teller.counting("rows sent", total) as progress:
            while self._sent < total:
                elapsed = time.monotonic() - began
                due = min(first + max(1, int(elapsed * self.rate)), total)
                self._tell_phases(self._sent, due)
                self._send(due - self._sent)
                progress(self._sent)
                if time.monotonic() - looked >= _LOOK_SECONDS:
                    self._following.look(self._sent)
                    looked = time.monotonic()
                time.sleep(_TICK_SECONDS)
            self._await_stored()
            self._following.look(self._sent)

    def _tell_phases(self, sent: int, due: int) -> None:
        for stretch in self.stream.stretches:
            if sent <= stretch.first < due and (stretch.first or not sent):
                self._following.tell(stretch.first, f"{stretch.name} begins.")

    def _send(self, count: int) -> None:
        if count > 0:
            rows = self._rows.select(slice(self._sent, self._sent + count))
            self._engines.record(deal(rows, ENGINES))
            self._sent += count

    def _await_stored(self) -> None:
        stored = self._engines.await_stored(self._sent, lambda done: None, seconds=_STORED_SECONDS)
        lost = stored["rows_lost"] + stored["rows_rejected"]
        if lost:
            raise ServiceProblemError(0, "", f"{lost:,} rows were not stored; {_SCOPES}")

    def _await_worker(self) -> None:
        """Until the worker has read everything, or reads no more."""
        with self.teller.waiting("the worker reads the last rows"):
            ends = time.monotonic() + _READ_SECONDS
            before = -1
            while time.monotonic() < ends:
                self._following.look(self._sent)
                if self._following.rows_read >= len(self._rows) and self._following.is_settled:
                    return
                if self._following.rows_read != before:
                    before = self._following.rows_read
                    ends = time.monotonic() + _READ_SECONDS
                time.sleep(_TICK_SECONDS)

    def _sum_up(self) -> None:
        self.teller.title("What came of it")
        for sentence in self._following.summary():
            self.teller.say(sentence)
        lines = [("dashboard", f"{self.url}/drafters/{self.drafter}")]
        event = self._following.open_event
        if event is not None:
            lines.append(
                ("acknowledge", f"dspark-calib events --acknowledge {event} --url {self.url}")
            )
        lines.append(("evidence", f"dspark-calib drift {self.drafter} --url {self.url}"))
        lines.append(("fit anew", f"dspark-calib recalibrate {self.drafter} --url {self.url}"))
        self.teller.show(lines)


def _is_shipped(files: Sequence[str]) -> bool:
    return [Path(file).resolve() for file in files] == [shipped_telemetry().resolve()]
