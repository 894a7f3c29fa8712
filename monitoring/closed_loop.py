"""The closed loop with the database: read, fold, decide, commit; one worker a drafter.

One turn of a drafter reads the telemetry after ``consumed_through``, folds it
(:mod:`monitoring.drift_monitor`, a pure function) and writes what came out in one transaction that
first checks the fence of the drafter's lease: state, drift document, events, ordered jobs, aliases
and publications. A worker that dies before the commit leaves nothing, one that dies after it leaves
everything; so a restart goes on at the very batch, and neither repeats nor skips a row. Times are
those at which batches were received, so that a turn taken again decides the same.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import numpy as np
from sqlalchemy import Connection

from calib.cost_table import CostTable
from calib.cost_table_files import parse_cost_table
from calib.errors import CalibrationError
from calib.records import AcceptanceRecords
from monitoring.drift_document import drift_document
from monitoring.drift_monitor import fold
from monitoring.ingest import records_of
from monitoring.loop_actions import carry_out, forget_alarms
from monitoring.loop_decisions import Alarm, Decision, Promote
from monitoring.loop_regret import REPLAYED_ROWS, promotion_worth, theta_loss, with_worth
from monitoring.loop_settings import LoopSettings
from monitoring.monitor_state import MonitorState, start_monitor
from monitoring.monitor_state_bytes import state_from_bytes, state_to_bytes
from monitoring.promotion_gate import MAXIMUM_REGRET_INCREASE
from monitoring.published_document import document_maker
from monitoring.refit_schedule import fit_ended
from monitoring.revision_predictions import RevisionPredictions
from monitoring.store import drafter_leases, monitor_states
from monitoring.store.cost_tables import get_cost_table
from monitoring.store.database import Database
from monitoring.store.drafter_leases import DrafterLease
from monitoring.store.drafter_rows import DrafterState, all_states, state_of
from monitoring.store.engines import list_engines
from monitoring.store.errors import (
    ConflictError,
    LeaseLostError,
    NotFoundError,
    PreconditionFailedError,
    StoreError,
)
from monitoring.store.jobs import LEASE_SECONDS, get_job
from monitoring.store.publications import DocumentOf
from monitoring.store.revisions import Revision, get_revision
from monitoring.store.telemetry import Batch, batches_after, counters
from monitoring.windows import window_of

__all__ = ["ClosedLoop"]

_log = logging.getLogger(__name__)

FOLD_ROWS: Final = 8192
_READ_BYTES: Final = 8 * 1024 * 1024
MOST_BATCHES: Final = 256
_TICK_SECONDS: Final = 15.0  # between two looks at silence
_ENGINE_SECONDS: Final = 180.0  # an engine that polled within this time is expected to send rows
_LONGEST_BACK_OFF: Final = 30.0

Integers = np.ndarray[Any, np.dtype[np.int64]]
Piece = tuple[AcceptanceRecords | None, Integers | None, float, int]
"""Rows, batch of each, time, and the newest batch that is whole."""


@dataclass(frozen=True, slots=True, eq=False)
class _Known:
    """What stays in memory between turns, while the lease is held."""

    lease: DrafterLease
    held_since: float  # monotonic, of the last renewal
    state: MonitorState | None = None


@dataclass(frozen=True, slots=True, eq=False)
class _Turn:
    """Everything a turn reads, of one snapshot."""

    drafter: DrafterState
    champion: Revision
    challenger: Revision | None
    previous: Revision | None
    batches: tuple[Batch, ...]
    rejected: int
    expected: bool
    now: float
    fit_over: bool
    cost: CostTable | None


class ClosedLoop:
    """Turns of every drafter of one database.

    Args:
        database: of this process; migrated.
        owner: names this worker in leases, unique among all processes.
        settings: defaults when None.
        document: makes the served bytes of a publication; without end of validity when None.
        lease_seconds: length of a lease.
        poll_seconds: pause between two looks for telemetry.
        batches: telemetry batches read in a turn at most.
        valid_for_seconds: how long clients may call a publication fresh; as in ``document``.
        monotonic: seconds from any origin.
    """

    def __init__(
        self,
        database: Database,
        owner: str,
        settings: LoopSettings | None = None,
        *,
        document: DocumentOf | None = None,
        lease_seconds: float = LEASE_SECONDS,
        poll_seconds: float = 0.5,
        batches: int = MOST_BATCHES,
        valid_for_seconds: float | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database = database
        self._owner = owner
        self._settings = settings or LoopSettings()
        self._document = document or document_maker(valid_for_seconds)
        self._valid_for_seconds = valid_for_seconds
        self._lease_seconds = lease_seconds
        self._poll_seconds = poll_seconds
        self._batches = batches
        self._monotonic = monotonic
        self._known: dict[str, _Known] = {}
        self._ticked: dict[str, float] = {}

    def run(self, stop: threading.Event) -> None:
        """Take turns until ``stop`` is set; the database may come and go."""
        failures = 0
        while not stop.is_set():
            try:
                worked = self.run_once(stop)
                failures = 0
            except StoreError as error:
                failures += 1
                self._known.clear()
                pause = min(_LONGEST_BACK_OFF, 0.5 * 2.0**failures)
                _log.warning("the database failed, next turn in %.1f s: %s", pause, error)
                stop.wait(pause)
                continue
            if not worked:
                stop.wait(self._poll_seconds)
        self.release()

    def run_once(self, stop: threading.Event | None = None) -> bool:
        """One turn of every drafter that has something new; returns whether any had.

        Raises:
            StoreError: the database failed; nothing of the turn was written.
        """
        with self._database.read() as connection:
            names = [state.drafter.name for state in all_states(connection)]
        worked = False
        for name in names:
            if stop is not None and stop.is_set():
                break
            worked = self.turn(name) or worked
        return worked

    def turn(self, drafter: str) -> bool:
        """One turn of one drafter; returns whether rows were read.

        Raises:
            StoreError: the database failed; nothing of the turn was written.
        """
        try:
            return self._turn(drafter)
        except LeaseLostError as error:
            _log.info("another worker acts on %s: %s", drafter, error)
            self._known.pop(drafter, None)
            return False
        except (PreconditionFailedError, ConflictError, NotFoundError) as error:
            # Somebody else acted: what this turn saw is no longer so. The next one looks again.
            _log.info("the turn of %s is taken again: %s", drafter, error)
            self._forget_state(drafter)
            return False
        except StoreError:
            self._known.pop(drafter, None)
            raise
        except CalibrationError as error:
            # A damaged batch must not stop the loops of other drafters.
            _log.error("the loop of %s stands still: %s", drafter, error)
            self._forget_state(drafter)
            return False

    def _forget_state(self, drafter: str) -> None:
        """Keep the lease and read the state anew."""
        known = self._known.get(drafter)
        if known is not None:
            self._known[drafter] = replace(known, state=None)

    def release(self) -> None:
        """Let other workers go on at once; leases that cannot be given back run out."""
        for known in self._known.values():
            try:
                self._database.run(partial(drafter_leases.release, lease=known.lease), attempts=2)
            except StoreError as error:
                _log.info("lease of %s: %s", known.lease.drafter, error)
        self._known.clear()

    def _turn(self, drafter: str) -> bool:
        if not self._anything_new(drafter):
            return False
        known = self._leased(drafter)
        if known is None:
            return False
        state, consumed, stored = self._state(drafter, known)
        turn = self._read(drafter, consumed, state)
        if state is None:
            state = start_monitor(
                drafter,
                turn.drafter.drafter.gamma,
                now=turn.now,
                window_rows=self._settings.window_rows,
            )
            state = replace(state, rejected=turn.rejected)
        if turn.fit_over:
            state = fit_ended(state)
        new, decisions = self._folded(state, turn, known)
        loss = None
        if turn.cost is not None and decisions:
            new, decisions, loss = self._weighed(state, turn, known, new, decisions)
        asked = self._settings.raises_exploration(warned=new.warned)
        idle = not turn.batches and not decisions and not turn.fit_over
        idle = idle and asked == turn.drafter.drafter.explores_more
        if idle and stored and new.champion == state.champion:
            self._known[drafter] = replace(self._known[drafter], state=new)
            return False
        self._commit(new, turn, decisions, self._known[drafter].lease, loss)
        return bool(turn.batches)

    def _anything_new(self, drafter: str) -> bool:
        """A look that writes nothing: rows, or time to look at silence."""
        known = self._known.get(drafter)
        now = self._monotonic()
        with self._database.read() as connection:
            if known is not None and known.state is not None:
                consumed = known.state.consumed_through
            else:
                row = monitor_states.load_document(connection, drafter)
                consumed = 0 if row is None else row.consumed_through
            if batches_after(connection, drafter, consumed, limit=1):
                return True
        due = now - self._ticked.get(drafter, now - 2 * _TICK_SECONDS) >= _TICK_SECONDS
        if due:
            self._ticked[drafter] = now
        return due and consumed > 0

    def _leased(self, drafter: str) -> _Known | None:
        """The lease, renewed in good time; None while another worker has it."""
        known = self._known.get(drafter)
        now = self._monotonic()
        if known is None:
            lease = self._database.run(
                lambda connection: drafter_leases.acquire(
                    connection, self._database, drafter, self._owner, seconds=self._lease_seconds
                )
            )
            if lease is None:
                return None
            known = _Known(lease, now)
        elif now - known.held_since > self._lease_seconds / 3.0:
            held = known.lease
            lease = self._database.run(
                lambda connection: drafter_leases.renew(
                    connection, self._database, held, seconds=self._lease_seconds
                )
            )
            known = replace(known, lease=lease, held_since=now)
        self._known[drafter] = known
        return known

    def _state(self, drafter: str, known: _Known) -> tuple[MonitorState | None, int, bool]:
        """State, how far it has read, and whether it is stored."""
        if known.state is not None:
            return known.state, known.state.consumed_through, True
        with self._database.read() as connection:
            row = monitor_states.load(connection, drafter)
        if row is None:
            return None, 0, False
        try:
            return state_from_bytes(row.state), row.consumed_through, True
        except CalibrationError as error:
            # Another release, or damage: evidence is lost, what was consumed stays consumed. What
            # was open rests on that evidence: nothing could ever resolve it.
            _log.error("the state of %s begins anew: %s", drafter, error)
            self._database.run(partial(forget_alarms, drafter=drafter))
            with self._database.read() as connection:
                found = state_of(connection, drafter)
                now = self._database.now(connection)
                rejected = counters(connection, drafter).rejected
            fresh = start_monitor(
                drafter,
                found.drafter.gamma,
                now=now,
                window_rows=self._settings.window_rows,
                consumed_through=row.consumed_through,
            )
            return replace(fresh, rejected=rejected), row.consumed_through, True

    def _read(self, drafter: str, consumed: int, state: MonitorState | None) -> _Turn:
        with self._database.read() as connection:
            found = state_of(connection, drafter)
            aliases = found.aliases
            batches = batches_after(
                connection, drafter, consumed, limit_bytes=_READ_BYTES, limit=self._batches
            )
            clock = self._database.now(connection)
            seen = [row.seen_at for row in list_engines(connection, drafter)]
            revisions = [
                None if number is None else get_revision(connection, drafter, number)
                for number in (aliases.champion, aliases.challenger, aliases.previous)
            ]
            return _Turn(
                drafter=found,
                champion=get_revision(connection, drafter, aliases.champion),
                challenger=revisions[1],
                previous=revisions[2],
                batches=tuple(batches),
                rejected=counters(connection, drafter).rejected,
                expected=any(clock - moment <= _ENGINE_SECONDS for moment in seen),
                now=batches[-1].received_at if batches else clock,
                fit_over=_fit_is_over(connection, state, aliases.challenger),
                cost=_cost_table(connection, drafter),
            )

    def _folded(
        self,
        state: MonitorState,
        turn: _Turn,
        known: _Known,
        *,
        regret_increase: float | None = None,
    ) -> tuple[MonitorState, list[Decision]]:
        decisions: list[Decision] = []
        rejected = max(turn.rejected - state.rejected, 0)
        state = replace(state, rejected=turn.rejected)
        nothing: Piece = (None, None, turn.now, state.consumed_through)
        pieces = list(_pieces(turn.batches)) or [nothing]
        for records, ingested, moment, through in pieces:
            self._leased(known.lease.drafter)  # many pieces may take longer than a lease
            found = fold(
                state,
                records,
                champion=turn.champion,
                challenger=turn.challenger,
                previous=turn.previous,
                now=max(moment, state.updated_at),
                settings=self._settings,
                ingested=ingested,
                consumed_through=through,
                publication=turn.drafter.publication,
                rejected=rejected,
                expected=turn.expected,
                regret_increase=regret_increase,
            )
            state, rejected = found.state, 0
            decisions += found.decisions
        return state, decisions

    def _weighed(
        self,
        state: MonitorState,
        turn: _Turn,
        known: _Known,
        new: MonitorState,
        decisions: list[Decision],
    ) -> tuple[MonitorState, list[Decision], float | None]:
        """What the decisions mean in throughput: a promotion that costs some is not made."""
        cost, drafter = turn.cost, state.drafter
        if cost is None:
            return new, decisions, None
        if any(isinstance(each, Promote) for each in decisions) and turn.challenger is not None:
            after = 0 if new.trial is None else new.trial.fitted_through
            rows = window_of(self._database, drafter, rows=REPLAYED_ROWS, after_batch=after)
            worth = promotion_worth(rows.records, cost, turn.champion, turn.challenger)
            if worth is not None and -worth.gain_high > MAXIMUM_REGRET_INCREASE:
                fall = -worth.gain_high
                new, decisions = self._folded(state, turn, known, regret_increase=fall)
            elif worth is not None:
                decisions = [
                    with_worth(each, worth) if isinstance(each, Promote) else each
                    for each in decisions
                ]
        loss = None
        for alarm in decisions:
            if isinstance(alarm, Alarm) and alarm.level == "act":
                before = alarm.from_batch - 1
                rows = window_of(self._database, drafter, rows=REPLAYED_ROWS, after_batch=before)
                loss = theta_loss(rows.records, cost, turn.champion)
        return new, decisions, loss

    def _commit(
        self,
        state: MonitorState,
        turn: _Turn,
        decisions: list[Decision],
        lease: DrafterLease,
        loss: float | None,
    ) -> None:
        error = RevisionPredictions.of(turn.champion).standard_error

        def commit(connection: Connection) -> MonitorState:
            drafter_leases.check_fence(connection, self._database, lease)
            after = carry_out(
                connection,
                state,
                decisions,
                turn.drafter,
                settings=self._settings,
                document=self._document,
                valid_for_seconds=self._valid_for_seconds,
                theta_loss=loss,
            )
            monitor_states.save(
                connection,
                state.drafter,
                consumed_through=state.consumed_through,
                state=state_to_bytes(after),
                document=drift_document(after, standard_error=error, settings=self._settings),
            )
            return after

        after = self._database.run(commit)
        for decision in decisions:
            _log.info("%s: %s", state.drafter, decision)
        self._known[state.drafter] = replace(self._known[state.drafter], state=after)


def _cost_table(connection: Connection, drafter: str) -> CostTable | None:
    stored = get_cost_table(connection, drafter)
    if stored is None:
        return None
    try:
        return parse_cost_table(json.dumps(dict(stored.document)))
    except CalibrationError as error:
        _log.warning("the cost table of %s is left aside: %s", drafter, error)
        return None


def _fit_is_over(
    connection: Connection, state: MonitorState | None, challenger: int | None
) -> bool:
    """Whether the ordered fit ended without a challenger that stands for it."""
    if state is None or state.fit is None or state.fit.ticket is None:
        return False
    try:
        job = get_job(connection, state.fit.ticket)
    except NotFoundError:
        return True
    if job.status in ("queued", "running"):
        return False
    proposed = (job.result or {}).get("revision")
    return job.status != "succeeded" or proposed != challenger


def _pieces(
    batches: Iterable[Batch],
) -> Iterable[Piece]:
    """Rows of some batches at a time, with the batch of each row; no piece is large."""
    parts: list[AcceptanceRecords] = []
    numbers: list[Integers] = []
    rows, through, moment = 0, 0, 0.0
    for batch in batches:
        records = records_of(batch.payload)
        for start in range(0, len(records), FOLD_ROWS):
            piece = records.select(slice(start, start + FOLD_ROWS))
            if rows and rows + len(piece) > FOLD_ROWS:
                yield AcceptanceRecords.concatenate(parts), np.concatenate(numbers), moment, through
                parts, numbers, rows = [], [], 0
            parts.append(piece)
            numbers.append(np.full(len(piece), batch.id, dtype=np.int64))
            rows, moment = rows + len(piece), batch.received_at
            # Through this batch only once its last row is in.
            through = batch.id if start + FOLD_ROWS >= len(records) else max(through, batch.id - 1)
    if parts:
        yield AcceptanceRecords.concatenate(parts), np.concatenate(numbers), moment, through
