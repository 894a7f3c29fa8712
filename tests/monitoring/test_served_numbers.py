from __future__ import annotations

import numpy as np
import pytest

from calib.calibration import Calibration
from calib.errors import FormatError, RecordError
from calib.records import AcceptanceRecords
from calib.segment_serving import SegmentTable
from calib.segment_tags import POOL, SegmentBuckets, SegmentKey, SegmentLevels
from calib.served_segment import ServedSegment
from monitoring.served_numbers import ServedNumbers, stored_table
from monitoring.store.revisions import Revision

CODE = SegmentKey.of({"domain": "code"})
PLAIN = Calibration.from_temperatures([2.0, 1.0], gamma=2)
AFFINE = Calibration(2, (2.0, 1.0), slopes=(1.0, 0.5), intercepts=(0.25, 0.0))
TABLE = SegmentTable(
    gamma=2,
    buckets=SegmentBuckets(),
    levels=SegmentLevels((("domain",),)),
    segments={
        POOL: ServedSegment(POOL, 10, (2.0, 1.0)),
        CODE: ServedSegment(CODE, 5, (4.0, 1.0)),
    },
    seen={"domain": ("code",)},
)
RECORDS = AcceptanceRecords.from_columns(
    2,
    {
        "confidence_logits": np.full((2, 2), 2.0, dtype=np.float32),
        "verified": [2, 2],
        "accepted": [1, 2],
        "domain": np.array(["code", "chat"], dtype=object),
    },
)


def sigmoid(odds: float) -> float:
    return float(1.0 / (1.0 + np.exp(-odds)))


def test_rows_are_served_the_numbers_of_their_segment() -> None:
    found = ServedNumbers.of(Revision("d", 1, PLAIN, TABLE.to_dict(), {}, 0.0, "tests"))
    expected = [sigmoid(0.5), sigmoid(1.0)]
    assert found.conditional(RECORDS)[:, 0].tolist() == pytest.approx(expected, rel=1e-6)
    survival = [value * sigmoid(2.0) for value in expected]
    assert found.survival(RECORDS)[:, 1].tolist() == pytest.approx(survival, rel=1e-6)
    assert found.on(RECORDS).survival(RECORDS.confidence_logits).tolist() == (
        found.survival(RECORDS).tolist()
    )


def test_engines_without_the_affine_form_get_temperatures() -> None:
    served = ServedNumbers(AFFINE)
    assert served.conditional(RECORDS, "affine")[0].tolist() == pytest.approx(
        [sigmoid(2.25), sigmoid(1.0)], rel=1e-6
    )
    assert served.conditional(RECORDS)[0, 0] == pytest.approx(sigmoid(1.0), rel=1e-6)
    plain = ServedNumbers(PLAIN)
    assert np.array_equal(plain.conditional(RECORDS, "affine"), plain.conditional(RECORDS))


def test_confidences_of_other_rows_are_not_lent() -> None:
    model = ServedNumbers(PLAIN).on(RECORDS)
    with pytest.raises(RecordError, match="confidence_logits"):
        model.survival(np.zeros((3, 2), dtype=np.float32))


def test_stored_segments() -> None:
    assert stored_table(None) is None
    assert stored_table({"by": "hand"}) is None
    found = stored_table(TABLE.to_dict())
    assert found is not None
    assert found.digest == TABLE.digest
    with pytest.raises(FormatError):
        stored_table({"format": TABLE.to_dict()["format"]})
