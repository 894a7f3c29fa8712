"""The detectors of a drafter as one step of the fold: all traffic, and every segment by itself.

Pooled: warn, act and survival (:mod:`monitoring.detectors.levels`). The act level's mixture holds
alternatives of single positions; each of them is an e-detector by itself, so evidence by position
costs nothing. Segments each run the act level's likelihood ratio on their own rows and are flagged
together (:mod:`monitoring.detectors.many_segments`). A row belongs to one segment, so that the sum
of their evidence is an e-detector of the whole stream, and with S segments at threshold A a false
flag within t rows has probability at most t / (A·S); the pooled level has the rest of the budget.

Letters: N rows, γ draft positions.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from calib.records import AcceptanceRecords
from calib.segment_tags import SegmentBuckets
from monitoring.detectors.change_point import estimate_change_point
from monitoring.detectors.e_cusum import CusumState
from monitoring.detectors.levels import DriftLevels, DriftVerdict, warn_tolerance
from monitoring.detectors.likelihood_ratio import LikelihoodRatioDetector
from monitoring.detectors.many_segments import SegmentsVerdict, flag_segments
from monitoring.detectors.observations import Observations
from monitoring.detectors.verdict import ChangePoint, Verdict
from monitoring.loop_decisions import Alarm
from monitoring.loop_settings import LoopSettings
from monitoring.monitor_state import MonitorState, SegmentStream, StreamMarks

__all__ = [
    "OTHER",
    "SEGMENT_TAGS",
    "StreamStep",
    "act_tolerance",
    "advance_streams",
    "flagged_segments",
    "leading_change",
    "of_other_settings",
    "pooled_detectors",
    "segment_detector",
    "segment_names",
]

SEGMENT_TAGS: Final = ("sampling_temperature", "domain")
OTHER: Final = "(other)"

_BUCKETS: Final = SegmentBuckets()
_POSITION: Final = re.compile(r"position (\d+)")
_LOG10: Final = 1.0 / math.log(10.0)

Named = tuple[NDArray[np.intp], tuple[tuple[str, Mapping[str, str]], ...]]
"""Segment of every row, [N], into names and tags."""


@dataclass(frozen=True, slots=True, eq=False)
class StreamStep:
    """Result of one step.

    Attributes:
        state: with detectors, marks and what was announced.
        alarms: levels entered by this step.
    """

    state: MonitorState
    alarms: tuple[Alarm, ...]


@lru_cache(maxsize=64)
def pooled_detectors(
    gamma: int, standard_error: float | None, settings: LoopSettings
) -> DriftLevels:
    """Detectors of all traffic under a champion with this error of its fit."""
    return DriftLevels.standard(
        gamma,
        standard_error=standard_error,
        threshold=settings.pooled_threshold,
        warn_threshold=settings.warn_threshold,
        tolerance=act_tolerance(standard_error, settings),
        acting=settings.acting,
    )


@lru_cache(maxsize=64)
def segment_detector(
    gamma: int, standard_error: float | None, settings: LoopSettings
) -> LikelihoodRatioDetector:
    """Detector of one segment."""
    tolerance = act_tolerance(standard_error, settings)
    return LikelihoodRatioDetector(gamma, tolerance, settings.act_threshold, name="segment")


def act_tolerance(standard_error: float | None, settings: LoopSettings) -> float:
    """δ of the act level: below twice its own error of estimation no fit is calibrated."""
    return min(max(settings.tolerance, warn_tolerance(standard_error)), 0.15)


def segment_names(records: AcceptanceRecords) -> Named:
    """Segment of every row [N], into names and tags; rows of no known tag have an empty name."""
    rows = len(records)
    temperatures = np.full(rows, -1, dtype=np.intp)
    if records.sampling_temperature is not None:
        temperatures = _BUCKETS.numbers("sampling_temperature", records.sampling_temperature)
    known: dict[str | None, int] = {None: -1}
    domains = np.full(rows, -1, dtype=np.intp)
    if records.domain is not None:
        values = records.domain.tolist()
        for value in sorted({value for value in values if value is not None}):
            known[value] = len(known) - 1
        domains = np.fromiter(map(known.__getitem__, values), np.intp, rows)
    names = [value for value in known if value is not None]
    width = len(names) + 1
    found, codes = np.unique((temperatures + 1) * width + domains + 1, return_inverse=True)
    labels = _BUCKETS.labels("sampling_temperature")
    keys = []
    for code in found.tolist():
        place, domain = code // width - 1, code % width - 1
        tags = {} if place < 0 else {"sampling_temperature": labels[place]}
        tags |= {} if domain < 0 else {"domain": names[domain]}
        keys.append((", ".join(f"{tag}={value}" for tag, value in tags.items()), tags))
    return codes.ravel().astype(np.intp), tuple(keys)


def of_other_settings(
    state: MonitorState, standard_error: float | None, settings: LoopSettings
) -> bool:
    """Whether the state's detectors were made with other settings: they cannot go on."""
    if state.drift is None:
        return False
    fresh = pooled_detectors(state.gamma, standard_error, settings).start()
    segment = segment_detector(state.gamma, standard_error, settings).start()
    found = [state.drift.warn, state.drift.act]
    wanted = [fresh.warn, fresh.act]
    pairs = [(a.signature, b.signature) for a, b in zip(found, wanted, strict=True)]
    pairs += [(each.state.signature, segment.signature) for each in state.segments.values()]
    if state.drift.survival is not None and fresh.survival is not None:
        pairs.append((state.drift.survival.signature, fresh.survival.signature))
    return any(mine != theirs for mine, theirs in pairs)


def advance_streams(
    state: MonitorState,
    segments: Named,
    observations: Observations,
    ingested: NDArray[np.int64],  # [N] stored batch of each row
    *,
    standard_error: float | None,
    now: float,
    settings: LoopSettings,
) -> StreamStep:
    """Detectors after more usable rows."""
    levels = pooled_detectors(state.gamma, standard_error, settings)
    drift = levels.start() if state.drift is None else state.drift
    marks = _marked(state.marks, drift.act.rows, ingested, now)
    step = levels.update(drift, observations)
    detector = segment_detector(state.gamma, standard_error, settings)
    streams = _advance_segments(state, segments, observations, ingested, detector, now, settings)
    state = replace(state, drift=step.state, marks=marks, segments=streams)
    alarms = []
    told = list(state.announced)
    for alarm in (_warn_alarm(state, step.verdict), _act_alarm(state, step.verdict)):
        if alarm is not None and alarm.level not in told:
            alarms.append(alarm)
            told.append(alarm.level)
    # All traffic speaks for its segments; a segment that stands out hides nothing of the rest.
    if "act" not in told:
        flagged = flagged_segments(state, standard_error, settings)
        for name in flagged.flagged:
            if f"segment:{name}" not in told:
                alarms.append(_segment_alarm(state, name, flagged, standard_error, settings))
                told.append(f"segment:{name}")
    state = replace(state, announced=tuple(told))
    for alarm in alarms:
        if alarm.level == "act":
            state = replace(state, act_row=(alarm.change_row, alarm.from_batch))
    return StreamStep(state, tuple(alarms))


def flagged_segments(
    state: MonitorState, standard_error: float | None, settings: LoopSettings
) -> SegmentsVerdict:
    """Segments whose own evidence stands out."""
    detector = segment_detector(state.gamma, standard_error, settings)
    evidence = {
        name: detector._cusum.log_evidence(stream.state) for name, stream in state.segments.items()
    }
    return flag_segments(
        evidence,
        threshold=settings.act_threshold,
        segments=settings.maximum_segments,
        rows=state.rows,
    )


def _advance_segments(
    state: MonitorState,
    segments: Named,
    observations: Observations,
    ingested: NDArray[np.int64],
    detector: LikelihoodRatioDetector,
    now: float,
    settings: LoopSettings,
) -> dict[str, SegmentStream]:
    streams = dict(state.segments)
    codes, names = segments
    groups: dict[str, list[int]] = {}
    tags: dict[str, Mapping[str, str]] = {OTHER: {}}
    for code, (name, buckets) in enumerate(names):
        if not name:
            continue
        known = name in streams or name in groups
        room = len({*streams, *groups} - {OTHER}) < settings.maximum_segments - 1
        key = name if known or room else OTHER
        groups.setdefault(key, []).append(code)
        tags[name] = buckets
    for name, members in groups.items():
        mask = codes == members[0] if len(members) == 1 else np.isin(codes, members)
        own = Observations(
            observations.conditional[mask], observations.verified[mask], observations.accepted[mask]
        )
        before = streams.get(name)
        start = detector.start() if before is None else before.state
        marks = StreamMarks() if before is None else before.marks
        marks = _marked(marks, start.rows, ingested[mask], now)
        after = detector.update(start, own).state
        streams[name] = SegmentStream(tags[name] if before is None else before.tags, after, marks)
    return streams


def _marked(marks: StreamMarks, rows: int, ingested: NDArray[np.int64], now: float) -> StreamMarks:
    batches, first = np.unique(ingested, return_index=True)
    for batch, place in zip(batches.tolist(), first.tolist(), strict=True):
        marks = marks.add(rows + place, batch, now)
    return marks


def _warn_alarm(state: MonitorState, verdict: DriftVerdict) -> Alarm | None:
    return _alarm("warn", "conditional", verdict.warn, state.marks)


def _act_alarm(state: MonitorState, verdict: DriftVerdict) -> Alarm | None:
    found = _alarm("act", "conditional", verdict.act, state.marks)
    if found is None and verdict.survival is not None:
        found = _alarm("act", "survival", verdict.survival, state.marks)
    return found


def _alarm(level: str, quantity: str, verdict: Verdict, marks: StreamMarks) -> Alarm | None:
    alarm = verdict.alarm
    if alarm is None:
        return None
    position = _POSITION.search(alarm.leading)
    batch, since = marks.at(alarm.change_point.row) or (0, None)
    return Alarm(
        level="warn" if level == "warn" else "act",
        detector=verdict.detector,
        quantity="survival" if quantity == "survival" else "conditional",
        position=int(position.group(1)) if position else None,
        segment=None,
        leading=alarm.leading,
        evidence_log10=alarm.log_evidence * _LOG10,
        threshold_log10=verdict.log_threshold * _LOG10,
        row=alarm.row,
        change_row=alarm.change_point.row,
        rows_ago=verdict.rows - alarm.change_point.row,
        from_batch=batch,
        since=since,
    )


def _segment_alarm(
    state: MonitorState,
    name: str,
    flagged: SegmentsVerdict,
    standard_error: float | None,
    settings: LoopSettings,
) -> Alarm:
    detector = segment_detector(state.gamma, standard_error, settings)
    stream = state.segments[name]
    point, leading = leading_change(detector, stream.state)
    batch, since = stream.marks.at(point.row) or (0, None)
    position = _POSITION.search(leading)
    total = 0 if state.drift is None else state.drift.act.rows
    begun = next(
        (r for r, b in zip(state.marks.rows, state.marks.batches, strict=True) if b >= batch), total
    )
    return Alarm(
        level="act",
        detector="segment",
        quantity="conditional",
        position=int(position.group(1)) if position else None,
        segment=dict(stream.tags),
        leading=leading,
        evidence_log10=detector._cusum.log_evidence(stream.state) * _LOG10,
        threshold_log10=flagged.log_threshold * _LOG10,
        row=total - 1,
        change_row=begun,
        rows_ago=total - begun,
        from_batch=batch,
        since=since,
    )


def leading_change(detector: LikelihoodRatioDetector, state: CusumState) -> tuple[ChangePoint, str]:
    """Change point and leading alternative of a stream, alarm or not."""
    weighted = detector._cusum._log_weights + state.log_values
    names = detector._cusum.names
    return estimate_change_point(weighted, state.starts), names[int(weighted.argmax())]
