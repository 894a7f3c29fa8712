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
# Requests that all begin together speak of first steps alone, which are accepted more than any head
# says: of such starts 7 % alarmed within 64 to 255 rows.
_LEAST_ROWS: Final = 256
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
        design_effect=settings.design_effect,
        minimum_rows=_LEAST_ROWS,
    )


@lru_cache(maxsize=64)
def segment_detector(
    gamma: int, standard_error: float | None, settings: LoopSettings
) -> LikelihoodRatioDetector:
    """Detector of one segment."""
    tolerance = act_tolerance(standard_error, settings)
    return LikelihoodRatioDetector(
        gamma,
        tolerance,
        settings.act_threshold,
        name="segment",
        design_effect=settings.design_effect,
    )


def act_tolerance(standard_error: float | None, settings: LoopSettings) -> float:
    """δ of the act level: below twice its own error of estimation no fit is calibrated."""
    return min(max(settings.tolerance, warn_tolerance(standard_error)), 0.15)


def segment_names(records: AcceptanceRecords) -> Named:
    """Segment of every row [N], into names and tags; rows of no known tag have an empty name."""
    rows = len(records)
    temperatures = np.full(rows, -1, dtype=np.intp)
    if records.sampling_temperature is not None:
        temperatures = _BUCKETS.numbers("sampling_temperature", records.sampling_temperature)
    names: list[str] = []
    domains = np.full(rows, -1, dtype=np.intp)
    if records.domain is not None:
        values = records.domain.tolist()
        names = sorted(set(values) - {None})
        known = {name: code for code, name in enumerate([None, *names], -1)}
        domains = np.fromiter(map(known.__getitem__, values), np.intp, rows)
    width = len(names) + 1
    combined = (temperatures + 1) * width + domains + 1
    present = np.bincount(combined) > 0
    found = np.flatnonzero(present)
    codes = (np.cumsum(present) - 1)[combined]
    labels = _BUCKETS.labels("sampling_temperature")
    keys = []
    for code in found.tolist():
        place, domain = code // width - 1, code % width - 1
        tags = {} if place < 0 else {"sampling_temperature": labels[place]}
        tags |= {} if domain < 0 else {"domain": names[domain]}
        keys.append((", ".join(f"{tag}={value}" for tag, value in tags.items()), tags))
    return codes.astype(np.intp), tuple(keys)


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
    place_of: dict[str, int] = {}
    tags: dict[str, Mapping[str, str]] = {OTHER: {}}
    places = np.full(len(names), -1, dtype=np.intp)
    for code, (name, buckets) in enumerate(names):
        if not name:
            continue
        known = name in streams or name in place_of
        room = len({*streams, *place_of} - {OTHER}) < settings.maximum_segments - 1
        key = name if known or room else OTHER
        places[code] = place_of.setdefault(key, len(place_of))
        tags[name] = buckets
    if not place_of:
        return streams  # no row names a tag
    row_places = places[codes]
    if (places < 0).any():
        tagged = np.flatnonzero(row_places >= 0)
        observations, ingested = observations.select(tagged), ingested[tagged]
        row_places = row_places[tagged]
    starts = [streams[name].state if name in streams else detector.start() for name in place_of]
    after = detector.update_many(starts, observations, row_places)
    order = np.argsort(row_places, kind="stable")
    sorted_batches = np.split(ingested[order], np.cumsum(np.bincount(row_places))[:-1])
    for name, start, found, batches in zip(place_of, starts, after, sorted_batches, strict=True):
        before = streams.get(name)
        marks = StreamMarks() if before is None else before.marks
        marks = _marked(marks, start.rows, batches, now)
        streams[name] = SegmentStream(tags[name] if before is None else before.tags, found, marks)
    return streams


def _marked(marks: StreamMarks, rows: int, ingested: NDArray[np.int64], now: float) -> StreamMarks:
    """With a mark for each stored batch; batches ascend."""
    if not len(ingested) or ingested[0] == ingested[-1]:
        return marks.add(rows, int(ingested[0]), now) if len(ingested) else marks
    first = np.flatnonzero(np.diff(ingested, prepend=-1))
    for batch, place in zip(ingested[first].tolist(), first.tolist(), strict=True):
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
