from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from calib.calibration import Calibration
from calib.errors import FormatError
from calib.records import AcceptanceRecords
from calib.survival_model import Hazard, SurvivalModel
from monitoring.revision_model import RevisionModel
from monitoring.store.revisions import Revision

# Case M1: c_1 = .6; the next logit is +2.2 after the easy token, -2.2 after the hard one.
LOGIT = float(np.log(0.6 / 0.4))
MODEL = RevisionModel(
    SurvivalModel(
        slopes=(1.0, 1.0),
        intercepts=(0.0, 0.0),
        hazards=(Hazard(1, 0.5, 0.25, 2.0, 100.0, gain=3.5),),
        rows=(100, 60),
    ),
    confidence_errors=(0.01, None),
)


def records(logits: list[list[float]]) -> AcceptanceRecords:
    rows = len(logits)
    columns = {
        "confidence_logits": np.array(logits, dtype=np.float32),
        "verified": [2] * rows,
        "accepted": [1] * rows,
    }
    return AcceptanceRecords.from_columns(2, columns)


def revision(provenance: dict[str, Any], calibration: Calibration) -> Revision:
    return Revision("d", 1, calibration, None, provenance, 0.0, "tests")


def sigmoid(odds: float) -> float:
    return float(1.0 / (1.0 + np.exp(-odds)))


def test_survival_reads_the_next_logit_and_conditionals_do_not() -> None:
    rows = records([[LOGIT, 2.2], [LOGIT, -2.2]])
    c = MODEL.conditional(rows)
    assert c[:, 0].tolist() == pytest.approx([0.6, 0.6])
    survival = MODEL.survival(rows)
    for row, following in enumerate((2.2, -2.2)):
        reached = sigmoid(0.5 + 0.25 * LOGIT + 2.0 * following)
        assert survival[row].tolist() == pytest.approx(
            [0.6, reached * sigmoid(following)], rel=1e-5
        )
    assert MODEL.conditional(rows.select(slice(0, 0))).shape == (0, 2)
    assert MODEL.survival(rows.select(slice(0, 0))).shape == (0, 2)


def test_what_is_stored_is_what_is_read() -> None:
    stored = json.loads(json.dumps(MODEL.to_dict(), allow_nan=False))
    found = RevisionModel.of(revision({"model": stored}, Calibration.identity(2)))
    assert found.to_dict() == MODEL.to_dict()
    assert found.pooled == MODEL.pooled
    assert found.confidence_errors == (0.01, None)


def test_without_a_model_a_revision_is_the_product_of_what_it_serves() -> None:
    plain = Calibration.from_temperatures([2.0, 0.5], gamma=2)
    rows = records([[1.0, -1.0]])
    found = RevisionModel.of(revision({}, plain))
    assert found.conditional(rows)[0].tolist() == pytest.approx([sigmoid(0.5), sigmoid(-2.0)])
    assert found.survival(rows)[0, 1] == pytest.approx(sigmoid(0.5) * sigmoid(-2.0))
    affine = Calibration(2, (2.0, 0.5), slopes=(1.0, 1.0), intercepts=(0.5, 0.0))
    shifted = RevisionModel.of(revision({}, affine)).conditional(rows)
    assert shifted[0].tolist() == pytest.approx([sigmoid(1.5), sigmoid(-1.0)])


@pytest.mark.parametrize(
    "change", [{"format": "other/1"}, {"slopes": None}, {"hazards": [{"a": 1}]}]
)
def test_damaged_models_are_named(change: dict[str, Any]) -> None:
    with pytest.raises(FormatError, match="fit it again"):
        RevisionModel.from_dict({**MODEL.to_dict(), **change})
