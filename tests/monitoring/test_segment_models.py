from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from calib.errors import FormatError
from calib.records import AcceptanceRecords
from calib.segment_model import SegmentFit, SegmentModel
from calib.segment_tags import POOL, SegmentBuckets, SegmentKey, SegmentLevels
from calib.survival_model import Hazard, SurvivalModel
from monitoring.segment_models import read_segment_model, segment_model_dict, segmented_survival

CODE = SegmentKey.of({"domain": "code"})
MODEL = SegmentModel(
    gamma=2,
    buckets=SegmentBuckets(),
    levels=SegmentLevels((("domain",),)),
    segments={
        POOL: SegmentFit(POOL, POOL, (100, 50), (1.0, 1.0), (0.0, 0.0)),
        CODE: SegmentFit(CODE, POOL, (40, 20), (0.5, 1.0), (1.0 / 3.0, 0.0)),
    },
    seen={"domain": ("code", "chat")},
    evidence=(),
)


def records(*domains: str) -> AcceptanceRecords:
    rows = len(domains)
    columns = {
        "confidence_logits": np.ones((rows, 2), dtype=np.float32),
        "verified": [2] * rows,
        "accepted": [1] * rows,
        "domain": np.array(domains, dtype=object),
    }
    return AcceptanceRecords.from_columns(2, columns)


def sigmoid(odds: float) -> float:
    return float(1.0 / (1.0 + np.exp(-odds)))


def test_what_is_stored_is_what_is_read() -> None:
    stored = json.loads(json.dumps(segment_model_dict(MODEL), allow_nan=False))
    found = read_segment_model(stored)
    assert found.segments[CODE].intercepts == (0.333333333, 0.0)
    assert (found.levels, found.buckets, dict(found.seen)) == (
        MODEL.levels,
        MODEL.buckets,
        dict(MODEL.seen),
    )
    assert segment_model_dict(found) == segment_model_dict(MODEL)


def test_survival_of_a_row_is_its_segments() -> None:
    found = segmented_survival(MODEL, None, records("code", "chat", "code"))
    own = sigmoid(0.5 + 1.0 / 3.0)
    expected = [own * sigmoid(1.0), sigmoid(1.0) ** 2, own * sigmoid(1.0)]
    assert found[:, 1].tolist() == pytest.approx(expected, rel=1e-6)


def test_what_the_next_logit_reveals_is_carried_over_from_the_pool() -> None:
    pooled = SurvivalModel((1.0, 1.0), (0.0, 0.0), (Hazard(1, 0.25, 1.0, 0.5, 90.0),), (100, 50))
    found = segmented_survival(MODEL, pooled, records("code"))
    # The pool's hazard moved by what the segment adds to the pool's conditional.
    reached = sigmoid(0.25 + 1.0 / 3.0 + 0.5 * 1.0 + 0.5 * 1.0)
    assert found[0, 1] == pytest.approx(reached * sigmoid(1.0), rel=1e-6)


@pytest.mark.parametrize("change", [{"format": "x"}, {"segments": []}, {"levels": [["size"]]}])
def test_damaged_models_are_named(change: dict[str, Any]) -> None:
    with pytest.raises(FormatError, match="fit it again"):
        read_segment_model({**segment_model_dict(MODEL), **change})
