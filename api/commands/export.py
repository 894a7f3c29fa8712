"""``dspark-calib export FORMAT``: a calibration as the file that an engine loads."""

from __future__ import annotations

from api.commands.format_group import format_group

__all__ = ["FORMATS", "export"]

FORMATS = ("sglang", "deepspec", "tensorrt_llm")

export = format_group("export", FORMATS, "Calibrations as files that engines load.")
