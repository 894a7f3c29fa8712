"""How well survival is known on blocks nobody fitted on: every estimator, on simulated logs.

Arms are functions from telemetry rows to a predictor of survival. ``ours`` holds what this project
offers: the two served projections by method, the survival model, and ``chosen`` (the method that
recalibration picks on rows held back from the fit, as the service does). Errors are against exact
survival of 200,000 other blocks.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from scipy.special import expit
from scipy.stats import rankdata

from benchmarks.study_peers import Fit, Predictor, peer_arms
from calib.conditional_likelihood import ConditionalLikelihood
from calib.cost_table_shapes import analytic_cost_table
from calib.records import AcceptanceRecords
from calib.regret import ThroughputReplay
from calib.replay_outcomes import ExpectedOutcomes
from calib.sts_parity import fit_sts_parity
from calib.survival_model import fit_survival_model, pair_folds
from calib.survival_projection import SurvivalProjection, project_survival
from monitoring.recalibration_choice import choose_method
from monitoring.recalibration_methods import MethodRules, fit_pool
from monitoring.recalibration_rows import FitRows
from tests.support.leaky_generator import (
    LeakyBlocks,
    simulate_leaky,
    survival_ece,
    trimmed_lengths,
)

SHAPES: dict[str, dict[str, Any]] = {
    "leak 0": {"partial": 0.0},
    "leak .09": {"partial": 0.09},
    "leak .18": {"partial": 0.18},
    "misfit, leak .18": {"partial": 0.18, "misfit": True},
    "shared difficulty, leak .18": {"partial": 0.18, "shared": True},
}
LEAKS = ("leak 0", "leak .09", "leak .18")
PEER_SHAPES = ("leak 0", "leak .18")
REQUESTS = 128
PROJECTION_ROWS = 20_000


def served(temperatures: Any) -> Predictor:
    scaled = np.clip(np.asarray(temperatures, dtype=np.float64), 0.05, 20.0)
    return lambda logits: np.cumprod(expit(logits.astype(np.float64) / scaled), axis=1)


def affine(slopes: Any, intercepts: Any) -> Predictor:
    s, b = np.asarray(slopes, dtype=np.float64), np.asarray(intercepts, dtype=np.float64)
    return lambda logits: np.cumprod(expit(logits.astype(np.float64) * s + b), axis=1)


def raw(records: AcceptanceRecords) -> Predictor:
    return served(np.ones(records.gamma))


def sglang(records: AcceptanceRecords) -> Predictor:
    """SGLang's search, to the digit; its collector reads what was trimmed as rejected."""
    mask = (np.arange(records.gamma) < records.accepted[:, None]).astype(np.float32)
    return served(fit_sts_parity(records.confidence_logits, mask).temperatures)


def temperature(records: AcceptanceRecords) -> Predictor:
    return served(ConditionalLikelihood(minimum_rows=0).fit_records(records).temperatures_)


def conditional_affine(records: AcceptanceRecords) -> Predictor:
    found = ConditionalLikelihood("affine", minimum_rows=0).fit_records(records)
    return affine(found.slopes_, found.intercepts_)


_latest: list[tuple[AcceptanceRecords, Any, SurvivalProjection]] = []


def _model_and_projection(records: AcceptanceRecords) -> tuple[Any, SurvivalProjection]:
    """Fitted once for the arms that share it."""
    if not _latest or _latest[0][0] is not records:
        _latest[:] = [(records, *_fit_model_and_projection(records))]
    return _latest[0][1:]


def _fit_model_and_projection(records: AcceptanceRecords) -> tuple[Any, SurvivalProjection]:
    fit = ConditionalLikelihood("affine", minimum_rows=0).fit_records(records)
    model = fit_survival_model(fit, pair_folds(records))
    sample = records.confidence_logits[:PROJECTION_ROWS]
    return model, project_survival(sample, model.survival(sample), evidence_rows=model.rows)


def survival_model(records: AcceptanceRecords) -> Predictor:
    model, _ = _model_and_projection(records)
    return lambda logits: np.asarray(model.survival(logits), dtype=np.float64)


def projected(records: AcceptanceRecords) -> Predictor:
    return served(_model_and_projection(records)[1].temperatures)


def projected_affine(records: AcceptanceRecords) -> Predictor:
    found = _model_and_projection(records)[1]
    return affine(found.slopes, found.intercepts)


def chosen(records: AcceptanceRecords) -> Predictor:
    """Temperatures by the method that the service's ``auto`` picks."""
    return _of_method(records, choose_method(records, 1.0, MethodRules(minimum_rows=0)).method)


def _of_method(records: AcceptanceRecords, method: Any) -> Predictor:
    fit = fit_pool(method, FitRows.of(records), MethodRules(minimum_rows=0))
    return served(fit.calibration.temperatures)


OURS: dict[str, Fit] = {
    "ours: temperatures, conditional": temperature,
    "ours: temperatures, survival": projected,
    "ours: temperatures, chosen": chosen,
    "ours: affine, conditional": conditional_affine,
    "ours: affine, survival": projected_affine,
    "ours: survival model": survival_model,
}
BASELINES: dict[str, Fit] = {"raw": raw, "SGLang's fitter": sglang}


def records_of(blocks: LeakyBlocks, trimmed: bool) -> AcceptanceRecords:
    return blocks.records(trimmed_lengths(blocks.logits, REQUESTS) if trimmed else None)


@lru_cache(maxsize=2)
def held_out(shape: str, rows: int) -> LeakyBlocks:
    return simulate_leaky(rows, seed=10_000, **SHAPES[shape])


def table(
    rows: int, seeds: int, test_rows: int, shape: str, *, trimmed: bool, arms: dict[str, Fit]
) -> dict[str, Any]:
    """Mean and standard error over seeds of the mean error over positions, by arm."""
    options = SHAPES[shape]
    test = held_out(shape, test_rows)
    errors: dict[str, list[float]] = {name: [] for name in arms}
    for seed in range(seeds):
        records = records_of(simulate_leaky(rows, seed, **options), trimmed)
        for name, fit in arms.items():
            errors[name].append(float(survival_ece(fit(records)(test.logits), test).mean()))
    return {
        "shape": shape,
        "rows": rows,
        "trimmed": trimmed,
        "seeds": seeds,
        "ece": {name: round(float(np.mean(found)), 5) for name, found in errors.items()},
        "standard_error": {
            name: round(float(np.std(found, ddof=1)) / seeds**0.5, 5) if seeds > 1 else None
            for name, found in errors.items()
        },
    }


def accuracy(
    rows: int, seeds: int, test_rows: int, shapes: tuple[str, ...]
) -> list[dict[str, Any]]:
    """SGLang's fitter and ours, trimmed and not."""
    arms = BASELINES | OURS
    return [
        table(rows, seeds, test_rows, shape, trimmed=trimmed, arms=arms)
        for shape in shapes
        for trimmed in (False, True)
    ]


def peers(rows: int, seeds: int, test_rows: int, shapes: tuple[str, ...]) -> list[dict[str, Any]]:
    """The other libraries, beside SGLang and the served numbers."""
    names = ("ours: temperatures, survival", "ours: affine, survival", "ours: survival model")
    arms = BASELINES | peer_arms() | {name: OURS[name] for name in names}
    return [
        table(rows, seeds, test_rows, shape, trimmed=trimmed, arms=arms)
        for shape in shapes
        for trimmed in (False, True)
    ]


def scores(rows: int, test_rows: int, shape: str = "leak .18") -> dict[str, Any]:
    """ECE, AUC, log loss and throughput regret of one trimmed fit, every arm."""
    records = records_of(simulate_leaky(rows, 0, **SHAPES[shape]), trimmed=True)
    test = simulate_leaky(test_rows, seed=10_000, **SHAPES[shape])
    replay = ThroughputReplay.of(
        test.records(),
        analytic_cost_table("smooth", max_batch_tokens=8 * REQUESTS),
        batch_size=REQUESTS,
        outcomes=ExpectedOutcomes(test.survival),
    )
    oracle = replay.theta(np.minimum.accumulate(test.survival, axis=1))
    labels = np.arange(test.logits.shape[1]) < test.accepted[:, None]
    found = {}
    for name, fit in (BASELINES | peer_arms() | OURS).items():
        p = np.clip(fit(records)(test.logits), 1e-6, 1.0 - 1e-6)
        loss = -(test.survival * np.log(p) + (1.0 - test.survival) * np.log1p(-p))
        # A scheduler ranks by the running minimum: survival must not rise along a block.
        report = replay.regret(np.minimum.accumulate(p, axis=1), oracle, replicates=1)
        found[name] = {
            "ece": round(float(survival_ece(p, test).mean()), 5),
            "auc": round(float(np.mean([area(p[:, k], labels[:, k]) for k in range(7)])), 5),
            "log_loss": round(float(loss.mean()), 5),
            "regret": round(report.loss, 6),
            "forecast_bias": round(report.candidate.forecast_bias, 5),
        }
    return {"rows": rows, "shape": shape, "trimmed": True, "arms": found}


def area(p: Any, labels: Any) -> float:
    """Area under the ROC curve, ties counted half."""
    positive = int(labels.sum())
    negative = len(labels) - positive
    ranks = rankdata(p)[labels].sum()
    return float((ranks - positive * (positive + 1) / 2) / (positive * negative))
