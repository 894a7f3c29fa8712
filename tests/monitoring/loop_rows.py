"""Telemetry, revisions and folds for the tests of the closed loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.special import logit

from calib.calibration import Calibration
from calib.records import AcceptanceRecords
from monitoring.drift_monitor import FoldResult, fold
from monitoring.loop_decisions import Decision
from monitoring.loop_settings import LoopSettings
from monitoring.monitor_state import MonitorState, start_monitor
from monitoring.store.revisions import Revision
from tests.monitoring.traffic import GAMMA, heads_traffic

START = 1_700_000_000.0


def rows(
    seed: int, count: int, *, scale: Any = 1.0, first_step: int = 0, **columns: Any
) -> AcceptanceRecords:
    """Rows of 64 requests side by side whose logits, divided by ``scale``, tell the truth."""
    center = columns.pop("center", 0.0)
    traffic = heads_traffic(np.random.default_rng(seed), count, center=center)
    truth = np.clip(traffic.conditional, 1e-6, 1.0 - 1e-6)
    index = first_step + np.arange(count)
    given = {
        "confidence_logits": (logit(truth) * np.reshape(scale, (-1, 1))).astype(np.float32),
        "verified": traffic.verified,
        "accepted": traffic.accepted,
        "engine": ["engine"] * count,
        "request": [f"r{slot}" for slot in (index % 64).tolist()],
        "step": index // 64,
        **columns,
    }
    return AcceptanceRecords.from_columns(GAMMA, given)


def revision(number: int, temperature: float = 1.0, **provenance: Any) -> Revision:
    """A revision that divides every logit by ``temperature``."""
    calibration = Calibration.from_temperatures([temperature] * GAMMA, gamma=GAMMA)
    if temperature == 1.0:
        calibration = Calibration.identity(GAMMA)
    return Revision("d", number, calibration, None, provenance, 0.0, "test")


def started(settings: LoopSettings) -> MonitorState:
    return start_monitor("d", GAMMA, now=START, window_rows=settings.window_rows)


def folded(
    state: MonitorState,
    records: AcceptanceRecords,
    *,
    champion: Revision,
    settings: LoopSettings,
    batch_rows: int = 500,
    first_batch: int = 1,
    **options: Any,
) -> tuple[MonitorState, list[Decision]]:
    """All rows in batches; the state after them and every decision."""
    decisions: list[Decision] = []
    for number, start in enumerate(range(0, len(records), batch_rows), first_batch):
        found = one(
            state,
            records.select(slice(start, start + batch_rows)),
            champion,
            settings,
            number,
            **options,
        )
        state = found.state
        decisions += found.decisions
    return state, decisions


def one(
    state: MonitorState,
    records: AcceptanceRecords,
    champion: Revision,
    settings: LoopSettings,
    batch: int,
    **options: Any,
) -> FoldResult:
    """One fold, a second after the one before."""
    now = options.pop("now", state.updated_at + 1.0)
    return fold(
        state, records, champion=champion, now=now, settings=settings, ingested=batch, **options
    )


def of_kind(decisions: Sequence[Decision], kind: type) -> list[Any]:
    return [decision for decision in decisions if isinstance(decision, kind)]
