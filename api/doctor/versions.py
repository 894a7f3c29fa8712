"""Whether the plugin knows the version of an engine."""

from __future__ import annotations

import re

from api.doctor.findings import Finding, Level

__all__ = ["KNOWN", "version_finding"]

KNOWN = {"sglang": ((0, 5, 22), (0, 5, 23)), "vllm": ((0, 33, 0), (0, 33, 0))}
"""Oldest and newest version that ``dspark_calib_client.plugins`` attaches to, by engine."""


def version_finding(engine: str, version: str) -> Finding:
    """What comes of the plugin in an engine of this version.

    Args:
        engine: ``sglang`` or ``vllm``.
        version: as the engine tells it.
    """
    oldest, newest = KNOWN[engine]
    ends = [".".join(map(str, end)) for end in (oldest, newest)]
    known = ends[0] if oldest == newest else " to ".join(ends)
    read = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    if read is None:
        text = f"{engine} tells no version that can be read: {version!r:.40}"
        return Finding("version", Level.UNKNOWN, text)
    if oldest <= tuple(int(part) for part in read.groups()) <= newest:
        return Finding("version", Level.OK, f"{engine} {version}, which the plugin knows")
    remedy = "run a version that it knows, or use files until it knows this one"
    text = f"the plugin steps aside for {engine} {version}: it knows {known}"
    return Finding("version", Level.FAIL, text, remedy)
