"""What monitors test and gates compare."""

from __future__ import annotations

import numpy as np

from calib.conditional_likelihood import ConditionalLikelihood
from monitoring.challenger_fit import fit_challenger
from monitoring.recalibration_options import RecalibrationOptions
from monitoring.revision_predictions import RevisionPredictions
from monitoring.store.revisions import Revision
from tests.monitoring.loop_rows import revision, rows


def test_a_revision_made_by_hand_is_its_own_model() -> None:
    records = rows(1, 100)
    found = RevisionPredictions.of(revision(3, 2.0))
    expected = 1.0 / (1.0 + np.exp(-records.confidence_logits / 2.0))
    np.testing.assert_allclose(found.conditional(records), expected, atol=1e-6)
    np.testing.assert_allclose(found.survival(records), np.cumprod(expected, axis=1), atol=1e-5)
    np.testing.assert_allclose(found.served_survival(records), found.survival(records), atol=1e-5)
    assert found.standard_error is None


def test_the_error_of_a_fit_is_one_number_weighted_by_labels() -> None:
    records = rows(2, 3000, scale=1.5)
    options = RecalibrationOptions(method="temperature", minimum_rows=100)
    fit = fit_challenger(records, options)
    assert fit.calibration is not None
    made = Revision("d", 1, fit.calibration, None, {"model": fit.model}, 0.0, "test")
    error = RevisionPredictions.of(made).standard_error
    assert error is not None
    alone = ConditionalLikelihood(minimum_rows=100).fit_records(records)
    assert 0.5 * alone.confidence_errors_.min() < error < 2.0 * alone.confidence_errors_.max()
