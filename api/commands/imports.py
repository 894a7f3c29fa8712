"""``dspark-calib import FORMAT``: what engines and other tools wrote, as telemetry."""

from __future__ import annotations

from api.commands.format_group import format_group

__all__ = ["FORMATS", "imports"]

FORMATS = ("sglang", "vllm_metrics", "deepspec")

imports = format_group("import", FORMATS, "Files of engines and other tools as telemetry.")
