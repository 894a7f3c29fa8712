from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from calib.calibration import FORMS, Calibration

pytestmark = [
    pytest.mark.slow,  # MLflow is imported
    pytest.mark.filterwarnings("default"),  # MLflow's own
]

OWN = Calibration(
    gamma=3, temperatures=(1.5, 2.0, 0.8), slopes=(0.8, 1.0, 1.2), intercepts=(0.1, 0.0, -0.3)
)

CODE = Calibration.from_temperatures([3.0, 0.5, 1.0], gamma=3)


@pytest.fixture
def model(tmp_path: Path) -> Any:
    from monitoring.mlflow_mirror.calibration_model import CalibrationModel

    numbers = {name: getattr(OWN, name) for name in ("gamma", "temperatures", "slopes")}
    numbers["segments"] = {
        "domain=code": {"temperatures": CODE.temperatures, "slopes": None, "intercepts": None}
    }
    path = tmp_path / "calibration.json"
    path.write_text(json.dumps({**numbers, "intercepts": OWN.intercepts}))
    loaded = CalibrationModel()
    loaded.load_context(SimpleNamespace(artifacts={"calibration": str(path)}))
    return loaded


def test_every_form_and_quantity_equals_the_library_bit_for_bit(model: Any) -> None:
    logits = np.random.default_rng(7).normal(0.0, 20.0, (2000, 3)).astype(np.float32)
    logits[:3] = [[0.0, -0.0, 1e-30], [3e38, -3e38, 800.0], [-800.0, 90.0, -90.0]]
    for form in FORMS:
        for quantity in ("conditional", "survival"):
            found = model.predict(None, logits, {"form": form, "quantity": quantity})
            expected = getattr(OWN, quantity)(logits, form=form)
            np.testing.assert_array_equal(found, expected)
            assert found.dtype == np.float32
    np.testing.assert_array_equal(model.predict(None, logits), OWN.conditional(logits))


def test_the_stored_file_knows_the_forms_of_the_library(model: Any) -> None:
    assert sys.modules[type(model).__module__].FORMS == FORMS


def test_a_segment_has_numbers_of_its_own(model: Any) -> None:
    logits = np.random.default_rng(8).normal(0.0, 3.0, (20, 3)).astype(np.float32)
    found = model.predict(None, logits, {"segment": "domain=code"})
    np.testing.assert_array_equal(found, CODE.conditional(logits))
    pooled = model.predict(None, logits, {"segment": ""})
    np.testing.assert_array_equal(pooled, OWN.conditional(logits))


def test_what_it_cannot_use_is_refused_with_a_reason(model: Any) -> None:
    fine = np.zeros((1, 3), dtype=np.float32)
    for logits, params, reason in [
        (fine[:, :2], None, "give \\[n, 3\\]"),
        (fine + np.nan, None, "NaN or infinity"),
        (fine, {"quantity": "joint"}, "quantity"),
        (fine, {"form": "isotonic"}, "form"),
        (fine, {"segment": "domain=law"}, "this version knows domain=code"),
        (fine, {"segment": "domain=code", "form": "affine"}, "form"),
    ]:
        with pytest.raises(ValueError, match=reason):
            model.predict(None, logits, params)
