"""A replay as plain JSON: what happened when, and what it did to the calibration error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from calib.canonical_json import plain_json
from monitoring.loop_decisions import Alarm
from monitoring.replay import ReplayResult
from monitoring.replay_errors import ServedChange
from monitoring.replay_shifts import Stream

__all__ = ["detection_delays", "replay_document"]

FORMAT = "dspark-calib/replay/1"


def replay_document(
    stream: Stream,
    result: ReplayResult,
    changes: Sequence[ServedChange],
    settings: Mapping[str, Any],
) -> dict[str, Any]:
    """The document that ``replay --json`` prints.

    Args:
        stream: what was replayed.
        result: of the replay.
        changes: errors before and after each change of what was served.
        settings: of the loop.
    """
    document: dict[str, Any] = plain_json(
        {
            "format": FORMAT,
            "rows": result.rows,
            "synthetic": list(stream.synthetic),
            "stretches": [asdict(stretch) for stretch in result.stretches],
            "settings": dict(settings),
            "happenings": [happening.to_dict() for happening in result.happenings],
            "delays": detection_delays(result),
            "champions": [{"row": row, "revision": number} for row, number in result.champions],
            "revisions": {
                str(number): {
                    "temperatures": list(revision.calibration.temperatures),
                    "affine": revision.calibration.slopes is not None,
                    "segments": revision.segments is not None,
                    "by": revision.created_by,
                }
                for number, revision in result.revisions.items()
            },
            "changes": [change.to_dict() for change in changes],
            "counts": {
                "rows_total": result.state.rows_total,
                "duplicates": result.state.duplicates,
                "held": result.state.held,
                "excluded": dict(result.state.excluded),
            },
            "seconds": round(result.seconds, 2),
            "fold_cpu_seconds": round(result.fold_seconds, 3),
        }
    )
    return document


def detection_delays(result: ReplayResult) -> list[dict[str, Any]]:
    """Rows from the beginning of each phase but the first to its first alarm of each level."""
    found = []
    for stretch in result.stretches[1:]:
        end = stretch.first + stretch.rows
        entry: dict[str, Any] = {"stretch": stretch.name, "warn": None, "act": None}
        for happening in result.happenings:
            inside = stretch.first < happening.row <= end
            if happening.kind != Alarm.__name__.lower() or not inside:
                continue
            level = happening.details["level"]
            if entry[level] is None:
                entry[level] = happening.row - stretch.first
        found.append(entry)
    return found
