"""What SGLang asks of its calibration file, written down apart from the code that writes it.

The fields are those of the frozen struct that SGLang 0.5.23 decodes strictly: a null, a NaN or a
text in one of the lists makes it refuse the whole file, an unknown key does not.
"""

from __future__ import annotations

import msgspec


class SglangCalibration(msgspec.Struct, frozen=True):
    """SGLang's view of the file."""

    temperatures: list[float]
    dataset: str = ""
    num_samples: int = 0
    ece_before: list[float] = []
    ece_after: list[float] = []


def load_as_sglang(data: bytes, gamma: int) -> SglangCalibration:
    """Decode the file as SGLang does, and check it as its planner does."""
    found = msgspec.json.decode(data, type=SglangCalibration)
    if len(found.temperatures) != gamma:
        raise ValueError(f"{len(found.temperatures)} temperatures for gamma {gamma}")
    if not all(temperature > 0.0 for temperature in found.temperatures):
        raise ValueError("temperatures must be above 0")
    return found
