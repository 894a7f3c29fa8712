from __future__ import annotations

import numpy as np
import pytest

from calib.cost_table import MeasuredCostTable
from calib.errors import RecordError
from calib.records import AcceptanceRecords
from calib.regret import ThroughputReplay
from calib.segment_value import segment_values

# A second token costs half a step more.
COST = MeasuredCostTable((2, 3, 4), (0.02, 0.03, 0.04))


def replay() -> ThroughputReplay:
    """Ten steps of a good and a bad request: the good one's token is always accepted."""
    rows = 20
    columns = {
        "confidence_logits": [[0.0]] * rows,
        "verified": [1] * rows,
        "accepted": [1, 0] * 10,
        "step": [row // 2 for row in range(rows)],
        "domain": ["good", "bad"] * 10,
        "engine": ["e"] * rows,
    }
    records = AcceptanceRecords.from_columns(1, columns)
    return ThroughputReplay.of(records, COST)


def test_values_by_hand() -> None:
    """Calibrated, the good token alone is verified: 3 tokens in .0299 s.

    With raw confidence for "bad" (.99) both are: 3 tokens in .0395 s. With raw confidence for
    "good" (.1) none is: 2 tokens in .02 s.
    """
    calibrated = np.array([[1.0], [0.0]] * 10)
    raw = np.array([[0.1], [0.99]] * 10)
    slightly = MeasuredCostTable((2, 3, 4), (0.02, 0.0299, 0.0395))
    engine = ThroughputReplay.of(replay().records, slightly)
    good, bad = sorted(
        segment_values(engine, calibrated, raw, replicates=20),
        key=lambda each: each.tags["domain"],
        reverse=True,
    )
    assert bad.tags == {"domain": "bad"}
    assert bad.value == pytest.approx(1.0 - (3 / 0.0395) / (3 / 0.0299))
    assert good.value == pytest.approx(1.0 - 100.0 / (3 / 0.0299))
    assert (good.rows, good.verified, good.accepted, good.wasted) == (10, 1.0, 1.0, 0.0)
    assert (good.forecast, good.raw_forecast) == (1.0, pytest.approx(0.1))
    assert (bad.verified, bad.accepted, bad.forecast) == (0.0, 0.0, 0.0)
    assert bad.value_low is not None
    assert bad.value_low <= bad.value


def test_the_most_valuable_comes_first_and_tags_can_be_chosen() -> None:
    found = segment_values(
        replay(), np.array([[1.0], [0.0]] * 10), np.array([[0.1], [0.99]] * 10), replicates=20
    )
    assert found[0].value >= found[1].value
    survival = np.full((20, 1), 0.5)
    assert len(segment_values(replay(), survival, survival, most=1, replicates=20)) == 1
    whole = segment_values(replay(), np.full((20, 1), 0.5), np.full((20, 1), 0.5), tags=())
    assert [each.tags for each in whole] == [{}]
    assert whole[0].value == 0.0
    with pytest.raises(RecordError, match="raw"):
        segment_values(replay(), np.full((20, 1), 0.5), np.full((10, 1), 0.5))
