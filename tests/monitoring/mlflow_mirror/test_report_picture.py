from __future__ import annotations

import struct
from typing import Any

from monitoring.mlflow_mirror.report_picture import report_picture


def bins(shift: float) -> list[dict[str, Any] | None]:
    filled = [{"mean_prediction": p, "mean_label": p + shift, "count": 40} for p in (0.2, 0.5, 0.8)]
    return [None, *filled]


def test_a_png_with_a_panel_a_position() -> None:
    positions = [{"ece": 0.1, "bins": bins(0.1)}, {"ece": None, "bins": [None]}]
    overall = {name: {"survival": {"positions": positions}} for name in ("raw", "calibrated")}
    drawn = report_picture({"evaluation": {"overall": overall}})
    assert drawn is not None
    assert drawn[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", drawn[16:24])
    assert (width, height) == (484, 242)  # two panels of 2.2 inches at 110 dots an inch


def test_no_picture_without_an_evaluation() -> None:
    assert report_picture({"evaluation": None}) is None
