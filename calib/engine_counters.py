"""Checks of what engines report about themselves, before anybody believes it.

Engines count speculation in many ways. These functions pool counters without inventing zeros,
and refuse figures that contradict each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite

from calib.errors import RecordError
from calib.record_schema import check_gamma

# Engines round reported lengths to two decimals.
LENGTH_TOLERANCE = 0.01


@dataclass(frozen=True, slots=True)
class EngineCounters:
    """Counters of one engine; None where it did not report them.

    Attributes:
        engine: its name.
        verifies: verification rounds.
        emitted_tokens: tokens emitted in them, bonus included.
    """

    engine: str
    verifies: int | None
    emitted_tokens: int | None


@dataclass(frozen=True, slots=True)
class PooledLength:
    """Accepted length over several engines.

    Attributes:
        accepted_length: Σ tokens / Σ verifies; None where nothing was reported.
        verifies: Σ verifies.
        emitted_tokens: Σ tokens.
        missing: engines without counters, left out rather than counted as 0.
    """

    accepted_length: float | None
    verifies: int
    emitted_tokens: int
    missing: tuple[str, ...]


def pooled_accepted_length(counters: Iterable[EngineCounters]) -> PooledLength:
    """Tokens per verification over all engines that report both counters.

    Raises:
        RecordError: a negative counter, or fewer tokens than verifications: each of them emits
            one token at least.
    """
    verifies = tokens = 0
    missing = []
    for counter in counters:
        if counter.verifies is None or counter.emitted_tokens is None:
            missing.append(counter.engine)
            continue
        _check_count("verifies", counter.verifies)
        if counter.emitted_tokens < counter.verifies:
            remedy = f"engine {counter.engine}: give at least one token per verification"
            raise RecordError("emitted_tokens", counter.emitted_tokens, remedy)
        verifies += counter.verifies
        tokens += counter.emitted_tokens
    length = tokens / verifies if verifies else None
    return PooledLength(length, verifies, tokens, tuple(missing))


@dataclass(frozen=True, slots=True)
class LengthMeasurement:
    """What a histogram of emitted lengths says about speculation.

    Attributes:
        measured: False where speculation was off or nothing ran: then no rate exists, and none
            may be compared or alarmed on.
        rounds: decode steps in the histogram.
        accepted_length: mean length with the bonus token; None where not measured.
    """

    measured: bool
    rounds: int
    accepted_length: float | None


def measure_lengths(
    histogram: Mapping[int, int],  # emitted length, bonus included -> decode steps
    gamma: int,
    proposed_drafts: int | None = None,  # drafted positions in these steps, where reported
) -> LengthMeasurement:
    """Tell an engine that does not speculate from one that speculates badly.

    A step without speculation emits one token, and so does a block rejected at once. Only the
    number of proposed drafts tells them apart; where it is not reported, lengths of 1 and
    nothing else count as not measured, because a wrong zero rate would raise alarms.

    Raises:
        RecordError: a length outside 1…γ + 1, a negative count, or longer lengths than 1 though
            no draft was proposed.
    """
    gamma = check_gamma(gamma)
    for length, steps in histogram.items():
        if not _is_whole(length) or not 1 <= length <= gamma + 1:
            remedy = f"give emitted lengths from 1 to {gamma + 1}, bonus included"
            raise RecordError("histogram", length, remedy)
        _check_count(f"histogram[{length}]", steps)
    rounds = sum(histogram.values())
    longer = any(length > 1 and steps > 0 for length, steps in histogram.items())
    if proposed_drafts is not None:
        _check_count("proposed_drafts", proposed_drafts)
        if longer and proposed_drafts == 0:
            remedy = "lengths above 1 need proposed drafts: check which steps were counted"
            raise RecordError("proposed_drafts", proposed_drafts, remedy)
    measured = rounds > 0 and (longer if proposed_drafts is None else proposed_drafts > 0)
    tokens = sum(length * steps for length, steps in histogram.items())
    return LengthMeasurement(measured, rounds, tokens / rounds if measured else None)


def check_reported_length(
    drafts: int,
    accepted_per_position: Sequence[int],  # [gamma]
    reported_length: float,
    tolerance: float = LENGTH_TOLERANCE,
) -> float:
    """The accepted length that the counters imply, after comparing it with the reported one.

    Args:
        drafts: draft rounds.
        accepted_per_position: rounds in which position k was accepted, k = 1 first.
        reported_length: mean accepted length as the engine reports it, bonus included.
        tolerance: largest absolute difference that rounding explains.

    Raises:
        RecordError: no rounds, counts that rise along the block or exceed the rounds, or a
            reported length other than 1 + Σ accepted / drafts.
    """
    _check_count("drafts", drafts)
    if drafts == 0:
        raise RecordError("drafts", drafts, "no rounds, nothing measured: leave the report out")
    limit = drafts
    for position, accepted in enumerate(accepted_per_position, start=1):
        _check_count("accepted_per_position", accepted)
        if accepted > limit:
            remedy = f"position {position}: give at most {limit}, a later position is never ahead"
            raise RecordError("accepted_per_position", accepted, remedy)
        limit = accepted
    expected = 1.0 + sum(accepted_per_position) / drafts
    if not isfinite(reported_length) or abs(reported_length - expected) > tolerance:
        remedy = f"the counters imply {expected:g}, bonus included: check what was counted"
        raise RecordError("reported_length", reported_length, remedy)
    return expected


def _check_count(name: str, count: int) -> None:
    if not _is_whole(count) or count < 0:
        raise RecordError(name, count, "give a whole number of at least 0")


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
