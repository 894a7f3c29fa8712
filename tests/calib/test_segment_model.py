from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from calib.records import AcceptanceRecords
from calib.segment_model import LevelEvidence, SegmentFit, SegmentModel
from calib.segment_tags import POOL, SegmentBuckets, SegmentKey, SegmentLevels
from calib.survival_model import Hazard, SurvivalModel

CODE = SegmentKey.of({"domain": "code"})
LEVELS = SegmentLevels((("domain",), ("domain", "adapter")))


def fit(
    key: SegmentKey, slopes: tuple[float, float], intercepts: tuple[float, float]
) -> SegmentFit:
    return SegmentFit(key, POOL, (100, 60), slopes, intercepts)


def model() -> SegmentModel:
    pool = fit(POOL, (1.0, 0.5), (0.0, 0.25))
    code = fit(CODE, (0.5, 0.5), (1.0, 0.25))
    return SegmentModel(
        gamma=2,
        buckets=SegmentBuckets(),
        levels=LEVELS,
        segments={POOL: pool, CODE: code},
        seen={"domain": ("chat", "code")},
        evidence=(LevelEvidence(("domain",), 1, (50.0, None), 0.75, 12.5),),
    )


def log() -> AcceptanceRecords:
    columns = {
        "confidence_logits": [[2.0, -1.0]] * 3,
        "verified": [2] * 3,
        "accepted": [1] * 3,
        "domain": ["code", "law", None],
        "adapter": ["x", None, "x"],
    }
    return AcceptanceRecords.from_columns(2, columns)


def sigma(odds: float) -> float:
    return float(1.0 / (1.0 + np.exp(-odds)))


def test_rows_are_predicted_by_their_segment_and_others_by_the_pool() -> None:
    """Position 1: .5·2 + 1 in code, 2 elsewhere; position 2: −.5 + .25 everywhere."""
    found = model().conditional(log())
    assert found[:, 0].tolist() == pytest.approx([sigma(2.0), sigma(2.0), sigma(2.0)])
    assert found[:, 1].tolist() == pytest.approx([sigma(-0.25)] * 3)
    slopes, intercepts = model().numbers(log())
    assert slopes.tolist() == [[0.5, 0.5], [1.0, 0.5], [1.0, 0.5]]
    assert intercepts.tolist() == [[1.0, 0.25], [0.0, 0.25], [0.0, 0.25]]
    survival = model().survival(log())
    assert survival.dtype == np.float32
    assert survival[0, 1] == pytest.approx(sigma(2.0) * sigma(-0.25))


def test_the_finest_fitted_segment_answers() -> None:
    deep = SegmentKey.of({"domain": "code", "adapter": "x"})
    assert model().resolve(deep).key == CODE
    assert model().resolve(SegmentKey.of({"domain": "law"})).key == POOL
    finer = replace(model(), segments={**model().segments, deep: fit(deep, (1, 1), (0, 0))})
    assert finer.resolve(deep).key == deep


def test_the_product_is_a_survival_model_without_reveal() -> None:
    logits = np.array([[2.0, -1.0], [0.5, 0.5]], dtype=np.float32)
    plain = model().survival_model(CODE, None)
    assert plain.is_product
    conditional = 1.0 / (1.0 + np.exp(-(logits * [0.5, 0.5] + [1.0, 0.25])))
    assert plain.survival(logits) == pytest.approx(np.cumprod(conditional, axis=1), rel=1e-6)


def test_what_the_next_logit_reveals_is_carried_over_in_log_odds() -> None:
    """Pool: g_1 = σ(.1 + 1.2 z_1 + .3 z_2) around c_1 = σ(z_1); code has c_1 = σ(.5 z_1 + 1)."""
    pooled = SurvivalModel(
        slopes=(1.0, 0.5),
        intercepts=(0.0, 0.25),
        hazards=(Hazard(1, 0.1, 1.2, 0.3, 500.0),),
        rows=(500, 300),
    )
    moved = model().survival_model(CODE, pooled)
    hazard = moved.hazards[0]
    assert hazard.intercept == pytest.approx(1.1)
    assert hazard.slope == pytest.approx(0.7)
    assert hazard.following == 0.3
    assert not moved.is_product
    same = model().survival_model(POOL, pooled)
    assert same.hazards == pooled.hazards
    with pytest.raises(KeyError):
        model().survival_model(SegmentKey.of({"domain": "law"}), None)


def test_evidence_is_plain_json() -> None:
    plain = json.loads(json.dumps(model().to_dict()))
    assert plain["levels"][0] == {
        "tags": ["domain"],
        "segments": 1,
        "strengths": [50.0, None],
        "weight": 0.75,
        "gain": 12.5,
    }
    assert plain["segments"][1]["tags"] == {"domain": "code"}
    assert plain["segments"][1]["rows"] == [100, 60]
