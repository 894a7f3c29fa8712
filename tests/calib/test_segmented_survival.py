from __future__ import annotations

import numpy as np

from calib.conditional_likelihood import ConditionalLikelihood
from calib.segment_fitting import fit_segments
from calib.segment_sketches import SegmentSketches
from calib.segmented_survival import segmented_survival
from calib.survival_model import fit_survival_model, pair_folds
from tests.support.segment_generator import segment_errors, simulate_segments


def test_segments_are_nearer_to_their_truth_than_the_pool() -> None:
    fit, judged = simulate_segments(6000, 1), simulate_segments(12_000, 2)
    records = fit.records()
    pooled = fit_survival_model(
        ConditionalLikelihood("affine").fit_records(records), pair_folds(records)
    )
    segments = fit_segments(SegmentSketches.from_records(records))
    found = segmented_survival(segments, pooled, judged.records())
    alone = pooled.survival(judged.blocks.logits)
    assert found.shape == alone.shape
    assert np.nanmean(segment_errors(found, judged)) < 0.6 * np.nanmean(
        segment_errors(alone, judged)
    )
