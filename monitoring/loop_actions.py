"""Decisions of a fold, carried out in the transaction that stores its state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import Connection

from calib.segment_tags import segment_name
from monitoring.data_quality_monitors import QualityFault
from monitoring.drift_streams import OTHER
from monitoring.loop_decisions import (
    Alarm,
    Decision,
    Hold,
    Promote,
    Refuse,
    Resolve,
    RollBack,
    ScheduleFit,
    decision_dict,
)
from monitoring.loop_settings import LoopSettings
from monitoring.monitor_state import MonitorState
from monitoring.published_document import iso_time
from monitoring.recalibration_options import FrozenBatches, RecalibrationOptions
from monitoring.refit_schedule import fit_ordered
from monitoring.store.drafter_rows import DrafterState
from monitoring.store.events import EventKind, open_event, resolve
from monitoring.store.jobs import enqueue
from monitoring.store.publications import DocumentOf, publish, raise_exploration
from monitoring.store.revisions import set_challenger

__all__ = ["ACTOR", "carry_out", "forget_alarms"]

ACTOR: Final = "loop"


def carry_out(
    connection: Connection,
    state: MonitorState,
    decisions: Sequence[Decision],
    drafter: DrafterState,
    *,
    settings: LoopSettings,
    document: DocumentOf,
    valid_for_seconds: float | None = None,
    theta_loss: float | None = None,
) -> MonitorState:
    """The state to store, after events, jobs, aliases and publications were written.

    Args:
        connection: the committing transaction; the fence was checked in it.
        state: after the fold.
        decisions: of the fold, in order.
        drafter: as the fold saw it; a change since then refuses promotion and rollback.
        settings: of the loop.
        document: makes the served bytes of a publication.
        valid_for_seconds: how long clients may call a publication fresh.
        theta_loss: share of throughput that the drift costs, where costs are known.

    Raises:
        PreconditionFailedError: somebody changed the drafter since it was read; nothing of this
            may be committed.
        StoreError: the database failed.
    """
    name = drafter.drafter.name
    version = drafter.drafter.version
    acted = state.acting and not any(_acts(each) for each in decisions)
    for decision in decisions:
        if isinstance(decision, Alarm):
            # One event for all alarms of a baseline: a warning does not calm one that acts.
            if _acts(decision) or not acted:
                _alarm(connection, name, decision, settings, theta_loss)
            acted = acted or _acts(decision)
        elif isinstance(decision, Hold):
            _hold(connection, name, decision)
        elif isinstance(decision, Resolve):
            resolve(connection, _key(name, decision.dedup_key))
            acted = acted and decision.dedup_key != "drift"
        elif isinstance(decision, ScheduleFit):
            state = _order(connection, name, state, decision, settings)
        elif isinstance(decision, Refuse):
            set_challenger(connection, name, None, actor=ACTOR, expected_version=version)
            version += 1
            _notice(connection, name, "promotion_refused", decision, _refused(decision, name))
        else:
            served = _serve(connection, name, decision, version, document, valid_for_seconds)
            version += served
    # Compared at every commit, so that a changed setting or a lost state puts it right as well.
    asked = settings.raises_exploration(warned=state.warned)
    if asked != drafter.drafter.explores_more:
        raise_exploration(connection, name, asked, publication=drafter.publication)
    return state


def _serve(
    connection: Connection,
    name: str,
    decision: Promote | RollBack,
    version: int,
    document: DocumentOf,
    valid_for_seconds: float | None,
) -> int:
    """Publish what the decision asks for; returns by how much the version grew."""
    up = isinstance(decision, Promote)
    revision = decision.challenger if isinstance(decision, Promote) else decision.previous
    kind: EventKind = "promoted" if up else "rolled_back"
    published = publish(
        connection,
        name,
        revision,
        expected_version=version,
        actor=ACTOR,
        reason=f"{'gate' if up else 'rollback watch'}: {decision.reason}",
        document=document,
        valid_for_seconds=valid_for_seconds,
    )
    words = "promoted by the gate" if up else "served again: its successor did worse"
    title = f"Revision {revision} of {name} is {words}"
    _notice(connection, name, kind, decision, title, publication=published.number)
    return 1


def _order(
    connection: Connection,
    name: str,
    state: MonitorState,
    decision: ScheduleFit,
    settings: LoopSettings,
) -> MonitorState:
    options = RecalibrationOptions(
        method="segments" if decision.segmented else settings.method_for(decision.rows),
        window=FrozenBatches(decision.window_from, decision.through),
        minimum_rows=settings.fit_position_rows,
        evaluation_share=settings.fit_judged_share,
        reason=decision.reason,
        promote="gate",
    )
    job = enqueue(connection, name, "recalibration", options.to_mapping(), actor=ACTOR)
    title = f"A recalibration of {name} is ordered: {decision.reason}"
    _notice(connection, name, "recalibration_scheduled", decision, title, job=job.id)
    return fit_ordered(state, job.id)


def _acts(decision: Decision) -> bool:
    return isinstance(decision, Alarm) and decision.level == "act"


def _alarm(
    connection: Connection,
    name: str,
    alarm: Alarm,
    settings: LoopSettings,
    theta_loss: float | None,
) -> None:
    where = "" if alarm.position is None else f" at position {alarm.position}"
    if alarm.segment:
        where += f" for {segment_name(alarm.segment)}"
    elif alarm.segment is not None:
        where += f" for segments {OTHER}"
    act = alarm.level == "act"
    what = "Calibration has drifted" if act else "Calibration may be drifting"
    details = decision_dict(alarm) | {
        "since": None if alarm.since is None else iso_time(alarm.since),
        "false_alarms_per_million_rows": 1e6
        / (settings.act_threshold if act else settings.warn_threshold),
        "theta_loss": theta_loss,
        "reason": alarm.leading,
        "exploration_share": settings.exploration(warned=True),
    }
    open_event(
        connection,
        "drift",
        "critical" if act else "warning",
        f"{what} on {name}{where}",
        drafter=name,
        details=details,
        dedup_key=_key(name, "drift"),
    )


def _hold(connection: Connection, name: str, hold: Hold) -> None:
    open_event(
        connection,
        "data_quality",
        "warning",
        f"Telemetry of {name} holds recalibration: {hold.monitor.replace('_', ' ')}",
        drafter=name,
        details=decision_dict(hold),
        dedup_key=_key(name, hold.dedup_key),
    )


def _notice(
    connection: Connection, name: str, kind: EventKind, decision: Decision, title: str, **more: Any
) -> None:
    warned = kind in ("promotion_refused", "rolled_back")
    open_event(
        connection,
        kind,
        "warning" if warned else "info",
        title,
        drafter=name,
        details=decision_dict(decision) | more,
    )


def _refused(decision: Refuse, name: str) -> str:
    word = decision.refusal.replace("_", " ")
    return f"Revision {decision.challenger} of {name} is not promoted: {word}"


def forget_alarms(connection: Connection, drafter: str) -> None:
    """Resolve what the loop has opened: its evidence is lost, and opens anew what still holds."""
    for key in ("drift", *(f"data_quality/{fault}" for fault in QualityFault)):
        resolve(connection, _key(drafter, key))


def _key(drafter: str, key: str) -> str:
    """``drift`` becomes ``drift/<drafter>``, ``data_quality/x`` ``data_quality/<drafter>/x``."""
    kind, _, rest = key.partition("/")
    return f"{kind}/{drafter}/{rest}" if rest else f"{kind}/{drafter}"
