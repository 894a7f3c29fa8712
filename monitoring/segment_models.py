"""Conditional models by segment as a revision stores them, and the survival they give to rows.

What engines apply of a segment is in ``Revision.segments``; what monitors test is here. It is
part of ``provenance["model"]`` (:mod:`monitoring.revision_model`)::

    {"format": "dspark-calib/segment-model/1", "buckets": {…}, "levels": [[tag]], "seen": {…},
     "segments": [{"tags": {…}, "parent": {…}, "rows": [γ], "slopes": [γ], "intercepts": [γ]}]}

Letters: N rows, γ draft positions.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from calib.canonical_json import round_numbers
from calib.errors import CalibrationError, FormatError
from calib.records import AcceptanceRecords
from calib.segment_model import SegmentFit, SegmentModel
from calib.segment_tags import POOL, SegmentBuckets, SegmentKey, SegmentLevels, leaf_segments
from calib.survival_model import SurvivalModel

__all__ = ["read_segment_model", "segment_model_dict", "segmented_survival"]

FORMAT: Final = "dspark-calib/segment-model/1"


def segment_model_dict(model: SegmentModel) -> dict[str, Any]:
    """The model as plain JSON, at nine significant digits: more than fp32 confidences can show."""
    found: dict[str, Any] = round_numbers(
        {
            "format": FORMAT,
            "buckets": model.buckets.to_dict(),
            "levels": model.levels.to_list(),
            "seen": {tag: list(buckets) for tag, buckets in sorted(model.seen.items())},
            "segments": [model.segments[key].to_dict() for key in sorted(model.segments)],
        },
        digits=9,
    )
    return found


def read_segment_model(values: Mapping[str, Any]) -> SegmentModel:
    """The model that :func:`segment_model_dict` wrote, without the evidence of its fit.

    Raises:
        FormatError: another format, or fields that are missing or wrong.
    """
    if values.get("format") != FORMAT:
        raise FormatError("segment model", f"'format' is not {FORMAT!r}", "fit it again")
    try:
        fits = {fit.key: fit for fit in map(_fit, values["segments"])}
        edges = {tag: tuple(found) for tag, found in values["buckets"].items()}
        return SegmentModel(
            gamma=len(fits[POOL].slopes),
            buckets=SegmentBuckets(**edges),
            levels=SegmentLevels(tuple(tuple(level) for level in values["levels"])),
            segments=MappingProxyType(fits),
            seen=MappingProxyType({tag: tuple(found) for tag, found in values["seen"].items()}),
            evidence=(),
        )
    except (KeyError, TypeError, AttributeError, CalibrationError) as error:
        raise FormatError("segment model", f"{error}", "fit it again") from error


def segmented_survival(
    model: SegmentModel, pooled: SurvivalModel | None, records: AcceptanceRecords
) -> NDArray[np.float32]:
    """S of every row by its segment, fp32 [N, γ]; may rise along k.

    Args:
        model: conditionals by segment.
        pooled: survival model of all rows, whose hazards are carried over; None: the product.
        records: rows of its γ.
    """
    codes, keys = leaf_segments(records, model.buckets, model.levels.tags)
    survival = np.empty((len(records), model.gamma), dtype=np.float32)
    for code, key in enumerate(keys):
        rows = np.flatnonzero(codes == code)
        own = model.survival_model(model.resolve(key).key, pooled)
        survival[rows] = own.survival(records.confidence_logits[rows])
    return survival


def _fit(entry: Mapping[str, Any]) -> SegmentFit:
    return SegmentFit(
        key=SegmentKey.of(entry["tags"]),
        parent=SegmentKey.of(entry["parent"]),
        rows=tuple(entry["rows"]),
        slopes=tuple(entry["slopes"]),
        intercepts=tuple(entry["intercepts"]),
    )
