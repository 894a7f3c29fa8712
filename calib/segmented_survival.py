"""Survival of rows by the models of their segments.

Letters: N rows, γ positions.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from calib.records import AcceptanceRecords
from calib.segment_model import SegmentModel
from calib.segment_tags import leaf_segments
from calib.survival_model import SurvivalModel

__all__ = ["segmented_survival"]


def segmented_survival(
    segments: SegmentModel, pooled: SurvivalModel, records: AcceptanceRecords
) -> NDArray[np.float32]:
    """S of every row by the finest segment that holds it, fp32 [N, γ]; may rise along k.

    Args:
        segments: conditional models by segment.
        pooled: survival model of all rows, whose hazards the segments share.
        records: of the segments' γ.
    """
    codes, keys = leaf_segments(records, segments.buckets, segments.levels.tags)
    model = None if pooled.is_product else pooled
    survival = np.empty(records.confidence_logits.shape, dtype=np.float32)
    for code, key in enumerate(keys):
        rows = np.flatnonzero(codes == code)
        fitted = segments.survival_model(segments.resolve(key).key, model)
        survival[rows] = fitted.survival(records.confidence_logits[rows])
    return survival
