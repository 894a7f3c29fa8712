"""How often the promotion gate is wrong, and how long it takes when there is something to gain."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from monitoring.promotion_gate import GateDecision, GateStatus, PromotionGate
from monitoring.promotion_gate_scores import ScoredRows
from tests.monitoring.gate_rows import EXACT, fitted, scored
from tests.monitoring.traffic import GAMMA, heads_traffic

STALE: dict[str, tuple[float, float]] = {
    "T x 1.1": (1.1, 0.0),
    "T x 1.25": (1.25, 0.0),
    "T x 1.6": (1.6, 0.0),
    "shift -0.3": (1.0, -0.3),
}


def judge(rows: ScoredRows, batch: int, ordinal: int = 1) -> GateDecision:
    """Feed batches until the gate decides, or the rows are over."""
    gate = PromotionGate(gamma=GAMMA, fitted_through=-1, ordinal=ordinal)
    state, index = gate.start(), np.arange(len(rows))
    for start in range(0, len(rows), batch):
        step = gate.update(state, rows.select((index >= start) & (index < start + batch)))
        state = step.state
        if step.decision.status is not GateStatus.WAITING:
            break
    return step.decision


def worse(runs: int, fit_rows: int) -> dict[str, Any]:
    """The champion is exact; what is refitted on few rows can only be worse."""
    wrong = 0
    for seed in range(runs):
        rng = np.random.default_rng([fit_rows, seed])
        rows = scored(heads_traffic(rng, 3000, threshold=0.3), EXACT, fitted(rng, fit_rows))
        wrong += judge(rows, 1000).status is GateStatus.PROMOTE
    return {"promoted": wrong, "runs": runs, "rows": 3000, "upper_bound": upper(wrong, runs)}


def hourly(days: int, hours: int = 24) -> dict[str, Any]:
    """A challenger an hour, none of them better, α spent over them: days with any promotion."""
    wrong = 0
    for day in range(days):
        rng = np.random.default_rng([24, day])
        wrong += any(
            judge(scored(heads_traffic(rng, 500), EXACT, fitted(rng, 20_000)), 1000, ordinal).status
            is GateStatus.PROMOTE
            for ordinal in range(1, hours + 1)
        )
    return {"days_with_a_promotion": wrong, "days": days, "upper_bound": upper(wrong, days)}


def better(runs: int, rows: int = 6000) -> dict[str, Any]:
    """A stale champion against a challenger fitted on 3,000 rows: rows to promotion."""
    result: dict[str, Any] = {}
    for name, stale in STALE.items():
        needed = []
        for seed in range(runs):
            rng = np.random.default_rng([125, seed])
            found = judge(scored(heads_traffic(rng, rows), stale, fitted(rng, 3000)), 50)
            needed.append(found.rows if found.status is GateStatus.PROMOTE else math.inf)
        median = float(np.median(needed))
        result[name] = {
            "runs": runs,
            "rows": rows,
            "promoted": int(np.isfinite(needed).sum()),
            "median_rows": round(median) if math.isfinite(median) else None,
        }
    return result


def upper(wrong: int, runs: int) -> float:
    """One-sided 95 % Clopper–Pearson bound of a share."""
    from scipy.stats import beta

    return 1.0 if wrong == runs else round(float(beta.ppf(0.95, wrong + 1, runs - wrong)), 4)


def gate(runs: int, days: int) -> dict[str, Any]:
    return {
        "worse": {str(rows): worse(runs, rows) for rows in (1000, 3000, 100_000)},
        "hourly": hourly(days),
    }
