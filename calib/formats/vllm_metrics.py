"""vLLM's Prometheus counters of speculation, for drafters that send no telemetry.

A scrape of ``GET /metrics`` holds, for each model and engine, rounds, drafted tokens, accepted
tokens, and accepted tokens by position. They are sums: no confidence, no request, no label. What
can be had from them is a **marginal** rate, P(position k was verified and accepted), over all
traffic. Two cautions travel with every result:

* vLLM counts scheduled drafts. Under adaptive verification a draft that was trimmed counts as
  rejected, so the rates are lower bounds of acceptance there;
* a marginal rate is no conditional one: nothing can be calibrated with it, only watched.

Counters start anew when an engine does; between two scrapes a fall of any of them means that, and
what the later scrape shows then counts from zero.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from calib.engine_counters import EngineCounters, PooledLength, pooled_accepted_length
from calib.errors import FormatError

__all__ = [
    "NOTE_MARGINAL",
    "NOTE_TRIMMED",
    "EngineRates",
    "EngineSeries",
    "SpeculationCounters",
    "parse_scrape",
    "pooled_length",
    "rates_of_scrapes",
]

NOTE_MARGINAL = (
    "marginal rates: P(position verified and accepted) over all traffic; they can be watched, "
    "not calibrated with"
)
NOTE_TRIMMED = (
    "under adaptive verification trimmed drafts count as rejected: the rates are lower bounds"
)
_PREFIX = "vllm:spec_decode_num_"
_SINGLE = {"drafts": "drafts", "draft_tokens": "draft_tokens", "accepted_tokens": "accepted"}
_BY_POSITION = "accepted_tokens_per_pos"
_REMEDY = "give the body of vLLM's GET /metrics"
_LINE = re.compile(
    r"(?P<name>[a-zA-Z_:][\w:]*)\s*(?:\{(?P<labels>.*)\})?\s+(?P<value>\S+)(?:\s+-?\d+)?\s*"
)
_LABEL = re.compile(r'\s*(?P<name>[a-zA-Z_]\w*)\s*=\s*"(?P<value>(?:[^"\\]|\\.)*)"\s*(?:,|$)')
_ESCAPES = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}
# Counters are floats on the wire; beyond this they are not exact any more.
_LARGEST_COUNT = 2.0**53


class EngineSeries(NamedTuple):
    """Whose counters these are: vLLM's two labels."""

    model: str
    engine: str


@dataclass(frozen=True, slots=True)
class SpeculationCounters:
    """Counters of one engine in one scrape, since it started.

    Attributes:
        drafts: rounds in which something was drafted; None where it was not reported.
        draft_tokens: drafted tokens in them, as scheduled.
        accepted: accepted drafts, without bonus.
        per_position: accepted drafts of each position.
    """

    drafts: int | None = None
    draft_tokens: int | None = None
    accepted: int | None = None
    per_position: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class EngineRates:
    """Marginal rates of one engine over a span of scrapes.

    Attributes:
        series: whose.
        measured: False where speculation was off, unreported or idle: then no rate exists, and
            none may be compared or alarmed on.
        reason: why not, in words; None where measured.
        drafts: rounds.
        accepted: accepted drafts.
        marginal: share of rounds in which position k was verified and accepted; None unmeasured.
        ratio: that share over the one of the position before, the best guess at a conditional
            rate where nothing is trimmed; None where the position before was never accepted.
        accepted_length: tokens of a round, bonus included; None unmeasured.
        resets: times the engine's counters started anew.
    """

    series: EngineSeries
    measured: bool
    reason: str | None
    drafts: int
    accepted: int
    marginal: tuple[float | None, ...]
    ratio: tuple[float | None, ...]
    accepted_length: float | None
    resets: int


@dataclass
class _Span:
    """Increments of one engine, added up over scrapes."""

    drafts: int = 0
    accepted: int = 0
    per_position: list[int] = field(default_factory=list)
    resets: int = 0
    reported: bool = False


def parse_scrape(text: str, source: object = "metrics") -> dict[EngineSeries, SpeculationCounters]:
    """Speculation counters by model and engine; empty where speculation is off.

    Labels may come in any order, and others may stand beside them.

    Args:
        text: Prometheus' text format.
        source: named in errors.

    Raises:
        FormatError: no such text, a counter that is no count, a position that is missing or comes
            twice, or sums that contradict each other.
    """
    singles: dict[EngineSeries, dict[str, int]] = defaultdict(dict)
    positions: dict[EngineSeries, dict[int, int]] = defaultdict(dict)
    for name, labels, value in _samples(text, source):
        field_name = name.removeprefix(_PREFIX).removesuffix("_total")
        series = EngineSeries(labels.get("model_name", ""), labels.get("engine", "0"))
        if field_name in _SINGLE:
            _put(singles[series], _SINGLE[field_name], _count(name, value, source), source)
        elif field_name == _BY_POSITION:
            position = labels.get("position", "")
            if not position.isdecimal():
                raise FormatError(source, f"{name} has position {position!r}", _REMEDY)
            _put(positions[series], int(position), _count(name, value, source), source)
    return {
        series: _counters(singles[series], positions[series], series, source)
        for series in sorted({*singles, *positions})
    }


def rates_of_scrapes(
    scrapes: Sequence[Mapping[EngineSeries, SpeculationCounters]],
) -> tuple[EngineRates, ...]:
    """Rates over a span, by engine.

    Args:
        scrapes: in the order of time. One alone counts from each engine's start; an engine that
            appears later counts from its first scrape's zero, because it started in between.
    """
    spans: dict[EngineSeries, _Span] = {}
    seen: dict[EngineSeries, SpeculationCounters] = {}
    for number, scrape in enumerate(scrapes):
        for series, now in scrape.items():
            span = spans.setdefault(series, _Span())
            before = seen.get(series)
            if before is None and number == 0 and len(scrapes) > 1:
                _add(span, now, now)  # where the span begins
            else:
                _add(span, now, before)
            seen[series] = now
    return tuple(_rates(series, span) for series, span in sorted(spans.items()))


def pooled_length(rates: Sequence[EngineRates]) -> PooledLength:
    """Tokens of a round over all engines; those that were not measured are named, not zero."""
    return pooled_accepted_length(
        EngineCounters(
            f"{entry.series.model}/{entry.series.engine}",
            entry.drafts if entry.measured else None,
            entry.drafts + entry.accepted if entry.measured else None,
        )
        for entry in rates
    )


def _samples(text: str, source: object) -> Iterator[tuple[str, dict[str, str], str]]:
    lines = 0
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            lines += line.startswith("#")
            continue
        found = _LINE.fullmatch(line)
        if found is None:
            raise FormatError(source, f"no line of metrics: {line[:80]!r}", _REMEDY)
        lines += 1
        name = found["name"]
        if name.startswith(_PREFIX) and not name.endswith("_created"):
            yield name, _labels(found["labels"] or "", source), found["value"]
    if lines == 0:
        raise FormatError(source, "it holds no metrics", _REMEDY)


def _labels(text: str, source: object) -> dict[str, str]:
    labels: dict[str, str] = {}
    start = 0
    while text[start:].strip():
        found = _LABEL.match(text, start)
        if found is None:
            raise FormatError(source, f"labels that cannot be read: {text[:80]!r}", _REMEDY)
        labels[found["name"]] = re.sub(
            r"\\.", lambda escape: _ESCAPES.get(escape[0], escape[0]), found["value"]
        )
        start = found.end()
    return labels


def _count(name: str, value: str, source: object) -> int:
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    if not 0.0 <= number <= _LARGEST_COUNT or number != int(number):
        raise FormatError(source, f"{name} is {value!r}, not a count", _REMEDY)
    return int(number)


def _put(into: dict[Any, int], key: str | int, value: int, source: object) -> None:
    if key in into:
        raise FormatError(source, f"{key!r} of one engine comes twice", _REMEDY)
    into[key] = value


def _counters(
    single: Mapping[str, int], positions: Mapping[int, int], series: EngineSeries, source: object
) -> SpeculationCounters:
    if sorted(positions) != list(range(len(positions))):
        raise FormatError(source, f"{series}: positions {sorted(positions)} have a gap", _REMEDY)
    found = SpeculationCounters(
        **single, per_position=tuple(positions[place] for place in range(len(positions)))
    )
    limit = found.drafts
    for place, accepted in enumerate(found.per_position):
        if limit is not None and accepted > limit:
            reason = f"{series}: position {place + 1} was accepted {accepted} times of {limit}"
            raise FormatError(source, reason, "check whose counters these are")
        limit = accepted
    total = sum(found.per_position)
    if found.per_position and found.accepted not in (None, total):
        reason = f"{series}: {found.accepted} accepted tokens, {total} by position"
        raise FormatError(source, reason, "scrape again: the two were not read at one time")
    return found


def _add(span: _Span, now: SpeculationCounters, before: SpeculationCounters | None) -> None:
    if now.drafts is None or now.accepted is None:
        return
    span.reported = True
    old = before if before is not None and before.drafts is not None else SpeculationCounters()
    if _fell(now, old):
        span.resets += 1
        old = SpeculationCounters()
    span.drafts += now.drafts - (old.drafts or 0)
    span.accepted += now.accepted - (old.accepted or 0)
    width = max(len(now.per_position), len(span.per_position))
    span.per_position += [0] * (width - len(span.per_position))
    for place, accepted in enumerate(now.per_position):
        start = old.per_position[place] if place < len(old.per_position) else 0
        span.per_position[place] += accepted - start


def _fell(now: SpeculationCounters, old: SpeculationCounters) -> bool:
    """Whether any counter is below what it was, or the drafter has another length."""
    if old.per_position and len(old.per_position) != len(now.per_position):
        return True
    pairs = [(now.drafts, old.drafts), (now.accepted, old.accepted)]
    pairs += list(zip(now.per_position, old.per_position, strict=False))
    return any((new or 0) < (former or 0) for new, former in pairs)


def _rates(series: EngineSeries, span: _Span) -> EngineRates:
    reason = None
    if not span.reported:
        reason = "no counters: speculation is off, or the engine does not report it"
    elif span.drafts == 0:
        reason = "nothing was drafted in this span"
    if reason is not None:
        none = (None,) * len(span.per_position)
        return EngineRates(series, False, reason, 0, 0, none, none, None, span.resets)
    marginal = tuple(accepted / span.drafts for accepted in span.per_position)
    ratio: list[float | None] = []
    limit = span.drafts
    for accepted in span.per_position:
        ratio.append(accepted / limit if limit else None)
        limit = accepted
    length = 1.0 + span.accepted / span.drafts
    return EngineRates(
        *(series, True, None, span.drafts, span.accepted, marginal, tuple(ratio), length),
        span.resets,
    )
