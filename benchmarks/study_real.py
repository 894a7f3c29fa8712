"""The shipped telemetry: a real drafter and target, every estimator judged on other prompts.

Prompts are dealt into five folds; each fold is predicted by fits on the other four, and all rows
are judged together: a half kept apart would leave a fit 110 prompts, whose luck is larger than what
tells calibrators apart.

Everything was verified when it was recorded. ``trimmed`` fits on the same rows cut as a scheduler
at 128 requests that trusts the raw confidences would have cut them; the judged rows stay whole.
Errors are debiased L2 with 95 % intervals that treat a prompt as one piece of luck.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.study_accuracy import BASELINES, OURS, REQUESTS
from benchmarks.study_peers import peer_arms
from calib.clusters import cluster_codes
from calib.conditional_likelihood import ConditionalLikelihood
from calib.cost_table_shapes import analytic_cost_table
from calib.evaluation import evaluate
from calib.formats.arrow import read_parquet
from calib.records import AcceptanceRecords
from calib.regret import ThroughputReplay
from calib.replay_outcomes import FullyVerified
from calib.segment_fitting import fit_segments
from calib.segment_projection import project_segments
from calib.segment_rescaling import rescale_segments
from calib.segment_sketches import SegmentSketches
from calib.shipped import shipped_telemetry
from tests.support.leaky_generator import trimmed_lengths

GAMMA = 7
FOLDS = 5
SHOWN = ("debiased_ece", "debiased_ece_equal_mass", "ece", "auc", "log_loss", "null_level")


@dataclass(frozen=True, eq=False)
class Fixed:
    """Survivals of the judged rows, whoever made them."""

    values: NDArray[np.float32]

    def survival(self, confidence_logits: NDArray[np.float32], /) -> NDArray[np.float32]:
        return self.values

    def conditional(self, confidence_logits: NDArray[np.float32], /) -> NDArray[np.float32]:
        before = np.concatenate([np.ones_like(self.values[:, :1]), self.values[:, :-1]], axis=1)
        return np.clip(self.values / np.maximum(before, 1e-9), 0.0, 1.0).astype(np.float32)


def segment_arms(fit: AcceptanceRecords, judged: AcceptanceRecords) -> dict[str, Any]:
    """What the segment table serves the judged rows, in both forms."""
    # Segments carry an affine form only where the pool does.
    pooled = ConditionalLikelihood("affine", minimum_rows=0, minimum_affine_rows=0).fit_records(fit)
    table = project_segments(
        fit_segments(SegmentSketches.from_records(fit)), fit, pooled.calibration()
    )
    if FullyVerified(fit).known.mean() > 0.5:  # else trimmed: what is left was chosen by confidence
        table, _ = rescale_segments(table, fit)
    return {
        "ours: temperatures by segment": table.survival(judged),
        "ours: affine by segment": table.survival(judged, "affine"),
    }


def trimmed(records: AcceptanceRecords) -> AcceptanceRecords:
    """The same rows as a scheduler would have left them."""
    columns = {name: v for name, v in records.columns().items() if v is not None}
    lengths = np.minimum(trimmed_lengths(records.confidence_logits, REQUESTS), records.verified)
    columns |= {
        "verified": lengths,
        "accepted": np.minimum(records.accepted, lengths),
    }
    if "scheduled" in columns:
        columns["scheduled"] = lengths
    for name in ("explored", "propensity"):
        columns.pop(name, None)
    return AcceptanceRecords.from_columns(records.gamma, columns)


def survivals(fit: AcceptanceRecords, judged: AcceptanceRecords, peers: bool) -> dict[str, Any]:
    arms = BASELINES | (peer_arms() if peers else {}) | OURS
    return {name: arm(fit)(judged.confidence_logits) for name, arm in arms.items()} | segment_arms(
        fit, judged
    )


def crossed(
    records: AcceptanceRecords, fitted: AcceptanceRecords, fold: NDArray[np.intp], peers: bool
) -> dict[str, Any]:
    """Survivals of all rows, each by fits on the folds that its prompt is not in.

    ``fitted`` holds the rows as the fits see them.
    """
    found: dict[str, Any] = {}
    for number in range(FOLDS):
        held = fold == number
        predicted = survivals(fitted.select(~held), records.select(held), peers)
        for name, values in predicted.items():
            found.setdefault(name, np.empty((len(records), GAMMA)))[held] = values
    return found


def judged_arms(judged: AcceptanceRecords, predicted: dict[str, Any]) -> dict[str, Any]:
    replay = ThroughputReplay.of(
        judged,
        analytic_cost_table("smooth", max_batch_tokens=8 * REQUESTS),
        batch_size=REQUESTS,
    )
    best = replay.theta(_ranked(predicted["ours: affine by segment"]))
    found = {}
    for name, survival in predicted.items():
        values = np.clip(survival, 0.0, 1.0).astype(np.float32)
        view = evaluate(judged, Fixed(values)).survival
        report = replay.regret(_ranked(survival), best, replicates=200)
        found[name] = {
            **{key: getattr(view.mean, key) for key in SHOWN},
            # Interval of the mean: positions share their prompts, so errors are taken as one.
            "low": float(np.mean([m.debiased_ece_low or 0.0 for m in view])),
            "high": float(np.mean([m.debiased_ece_high or 0.0 for m in view])),
            "theta_against_segments": -report.loss,
            "theta_low": None if report.loss_high is None else -report.loss_high,
            "theta_high": None if report.loss_low is None else -report.loss_low,
            "forecast_bias": report.candidate.forecast_bias,
        }
    return found


def _ranked(survival: Any) -> Any:
    return np.minimum.accumulate(np.clip(np.asarray(survival, dtype=np.float64), 0.0, 1.0), axis=1)


def real(peers: bool = True, limit: int | None = None) -> dict[str, Any]:
    records = read_parquet(shipped_telemetry(), GAMMA).fitting_rows()
    if limit is not None:
        records = records.select(slice(0, limit))
    prompts = cluster_codes(np.asarray(records.prompt))
    result: dict[str, Any] = {
        "rows": len(records),
        "prompts": int(prompts.max()) + 1,
        "folds": FOLDS,
    }
    for name, rows in (("full", records), ("trimmed", trimmed(records))):
        beside = peers and name == "full"
        result[name] = judged_arms(records, crossed(records, rows, prompts % FOLDS, beside))
    return result
