from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from scipy.special import expit

from calib.calibration import Calibration
from calib.errors import ConfigurationError
from calib.records import AcceptanceRecords
from monitoring.reports.comparison import KINDS, fit_reference, reference_judgements
from tests.support.telemetry import synthetic_records


@pytest.mark.parametrize("kind", KINDS)
def test_reference_mends_a_known_distortion(kind: str) -> None:
    fit, judged = synthetic_records(6000), synthetic_records(6000, seed=1)
    raw = reference_error(judged, None)
    assert reference_error(judged, fit_reference(fit, kind)) < 0.6 * raw  # type: ignore[arg-type]


def reference_error(records: AcceptanceRecords, model: object) -> float:
    from monitoring.reports.evaluation_report import judge

    found = judge(records, model or Calibration.identity(7), 15)  # type: ignore[arg-type]
    return found.block["survival"].value or 0.0


def test_platt_is_scikit_learns_logistic_regression() -> None:
    from sklearn.linear_model import LogisticRegression

    records = synthetic_records(2000, gamma=1)
    reference = fit_reference(records, "platt")
    model = LogisticRegression(C=1e6).fit(records.confidence_logits, records.accepted >= 1)
    grid = np.linspace(-4, 4, 9, dtype=np.float32)[:, None]
    found = reference.conditional(grid)
    assert np.allclose(found, model.predict_proba(grid)[:, 1:], atol=1e-5)
    # With one position the survival view is the same fit.
    assert np.allclose(reference.survival(grid), found, atol=1e-5)


def test_isotonic_rises_and_stays_inside() -> None:
    records = synthetic_records(3000)
    reference = fit_reference(records, "isotonic")
    grid = np.repeat(np.linspace(-60, 60, 200, dtype=np.float32)[:, None], 7, axis=1)
    curve = reference.conditional(grid)
    assert (np.diff(curve, axis=0) >= 0).all()
    assert curve.min() > 0.0
    assert curve.max() < 1.0


def test_positions_without_two_classes_keep_raw_confidence() -> None:
    records = AcceptanceRecords.from_columns(
        2,
        {
            "confidence_logits": np.full((100, 2), 0.7),
            "verified": [2] * 100,
            "accepted": [1] * 100,
        },
    )
    reference = fit_reference(records, "platt")
    grid = np.array([[0.3, 0.4]], dtype=np.float32)
    assert reference.conditional(grid)[0] == pytest.approx(expit([0.3, 0.4]), abs=1e-6)


def test_both_kinds_are_judged_on_the_evaluation_part() -> None:
    fit, judged = synthetic_records(1000), synthetic_records(700, seed=1)
    judgements = reference_judgements(fit, judged)
    assert list(judgements) == list(KINDS)
    assert {found.report.n_rows for found in judgements.values()} == {700}


def test_unknown_kind() -> None:
    with pytest.raises(ConfigurationError, match="isotonic, platt"):
        fit_reference(synthetic_records(100), "beta")  # type: ignore[arg-type]


@pytest.mark.slow
def test_scikit_learn_is_imported_when_a_reference_is_fitted() -> None:
    script = "import monitoring.reports.comparison, sys; print('sklearn' in sys.modules)"
    answer = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert answer.stdout.strip() == "False"
