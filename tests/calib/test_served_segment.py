from __future__ import annotations

from typing import Any

import pytest

from calib.calibration import Calibration
from calib.errors import CalibrationValueError, ConfigurationError
from calib.segment_tags import POOL
from calib.served_segment import ServedSegment, pool_segment
from calib.statuses import PositionStatus


def test_the_pool_is_its_calibration() -> None:
    calibration = Calibration(
        gamma=2, temperatures=(1.5, 1.25), slopes=(0.6, 0.7), intercepts=(0.1, -0.1)
    )
    entry = pool_segment(calibration, rows=12)
    assert entry.key == POOL
    assert (entry.rows, entry.temperatures) == (12, (1.5, 1.25))
    assert entry.affine(1) == {"slopes": [0.6], "intercepts": [0.1]}
    assert entry.statuses == calibration.position_statuses


@pytest.mark.parametrize("number", [float("nan"), 0.0, -1.0, 25.0, True, "1.5", 10**400])
def test_r69_no_table_holds_a_number_that_may_not_be_served(number: Any) -> None:
    with pytest.raises(CalibrationValueError, match="temperatures"):
        ServedSegment(POOL, 1, (1.0, number))
    with pytest.raises(CalibrationValueError, match="slopes"):
        ServedSegment(POOL, 1, (1.0, 1.0), (1.0, number), (0.0, 0.0))


def test_halves_of_a_segment_are_refused() -> None:
    with pytest.raises(CalibrationValueError, match="intercepts"):
        ServedSegment(POOL, 1, (1.0,), slopes=(1.0,))
    with pytest.raises(ConfigurationError, match="rows"):
        ServedSegment(POOL, -1, (1.0,))
    one = ServedSegment(POOL, 1, (1.234567891,), statuses=(PositionStatus.AT_BOUND,))
    assert one.temperatures == (1.23457,)
    assert ServedSegment.from_dict(one.to_dict()) == one
