"""Rows of telemetry from steps as engines count them: columns of many steps at once.

An engine's own module turns its tensors into :class:`StepRows`; here blocks are cut at the first
drafted stop token, accepted or not, and rows of a request that has ended are left out: with
overlapped scheduling an engine decodes one step more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from dspark_calib_client.coded_text import CodedText
from dspark_calib_client.plugins.common.request_tags import FORCED, STOPPED, RequestTags

__all__ = ["StepRows", "columns_of"]

_RULES = ("greedy", "rejection", "block")
_DRAFTS = ("greedy", "sampled")
_TAGS = ("domain", "tenant", "adapter")


class StepRows(NamedTuple):
    """One step on the host, in our way of counting: neither anchor nor bonus is a position.

    Attributes:
        tags: of its requests, by row.
        logits: [rows, gamma] float32.
        ids: [rows, gamma] drafted tokens.
        scheduled: [rows] positions that the target checked.
        accepted: [rows] of these.
        kept: [rows] drafts that became text; fewer than accepted where a cap shortens it.
        bonus: [rows] token that follows them.
        context: [rows] tokens before the block.
        step: the engine's count.
        timestamp: seconds since the epoch.
        propensity: of full verification, decided before the block was drafted; NaN unknown.
        explored: whether a coin had the step verify everything.
        greedy_draft: whether all drafts are the drafter's likeliest tokens.
        block_rule: whether sampled requests are verified as blocks.
        forced: whether acceptance was simulated.
        revision: calibration that the confidences were made with; one for all rows, or [rows].
        form: in which form; one for all rows, or one a row.
    """

    tags: Sequence[RequestTags]
    logits: Any
    ids: Any
    scheduled: Any
    accepted: Any
    kept: Any
    bonus: Any
    context: Any
    step: int
    timestamp: float
    propensity: float
    explored: bool
    greedy_draft: bool
    block_rule: bool
    forced: bool
    revision: Any
    form: Any


def columns_of(steps: Sequence[StepRows]) -> tuple[dict[str, Any], int]:
    """Columns of the row contract, and how many rows were past their request's end.

    Args:
        steps: in the engine's order.

    Returns:
        NumPy arrays and coded texts of equal length by column, possibly of no rows.

    Raises:
        ValueError: logits of other positions than were drafted.
    """
    import numpy

    counts = [len(step.tags) for step in steps]
    everyone = [tags for step in steps for tags in step.tags]
    places = {tags: place for place, tags in enumerate(dict.fromkeys(everyone))}
    who = numpy.fromiter(map(places.__getitem__, everyone), numpy.int32, len(everyone))
    people = list(places)
    for tags in people:
        tags.settle()
    flags = numpy.array([tags.flags for tags in people], dtype=numpy.int64)[who]

    def whole(name: str) -> Any:
        return numpy.concatenate([getattr(step, name) for step in steps])

    def repeated(name: str, kind: Any) -> Any:
        return numpy.repeat(numpy.array([getattr(s, name) for s in steps], dtype=kind), counts)

    logits, ids, scheduled = whole("logits"), whole("ids"), whole("scheduled")
    if logits.shape != ids.shape:
        raise ValueError(f"{logits.shape} logits of {ids.shape} drafts")
    verified, stopped, ends = _cut(ids, scheduled, whole("kept"), whole("bonus"), people, who)
    columns: dict[str, Any] = {
        "confidence_logits": logits,
        "verified": verified,
        "accepted": numpy.minimum(whole("accepted"), verified),
        "scheduled": scheduled,
        "flags": flags
        | (STOPPED * stopped + FORCED * repeated("forced", bool)).astype(flags.dtype),
        "context_length": whole("context"),
        "rank": numpy.zeros(len(who), dtype=numpy.int64),
        "step": repeated("step", numpy.int64),
        "step_requests": numpy.repeat(numpy.array(counts, dtype=numpy.int64), counts),
        "timestamp": repeated("timestamp", numpy.float64),
        "revision": numpy.concatenate(
            [numpy.broadcast_to(step.revision, n) for step, n in zip(steps, counts)]
        ).astype(numpy.int64),
        "sampling_temperature": numpy.array([tags.temperature for tags in people])[who],
        **_texts(steps, counts, people, who, repeated),
    }
    propensity = repeated("propensity", numpy.float64)
    if not numpy.isnan(propensity).all():
        columns["propensity"] = propensity
    if any(step.explored for step in steps):
        columns["explored"] = repeated("explored", bool)
    gone = _gone(everyone, counts, ends)
    if not gone:
        return columns, 0
    kept = numpy.delete(numpy.arange(len(who)), gone)
    return {name: cells[kept] for name, cells in columns.items()}, len(gone)


def _texts(
    steps: Sequence[StepRows],
    counts: Sequence[int],
    people: Sequence[RequestTags],
    who: Any,
    repeated: Any,
) -> dict[str, CodedText]:
    """Columns of text: how each row was drafted and judged, and whose it is."""
    import numpy

    greedy = numpy.array([tags.greedy for tags in people], dtype=bool)[who]
    rules = numpy.where(greedy, 0, 1 + repeated("block_rule", numpy.int32))
    drafts = numpy.where(greedy | repeated("greedy_draft", bool), 0, 1)
    forms: dict[Any, int] = {}
    codes = []
    for step, count in zip(steps, counts):
        if step.form is None or isinstance(step.form, str):
            codes.append(numpy.full(count, forms.setdefault(step.form, len(forms))))
        else:
            codes.append(numpy.array([forms.setdefault(form, len(forms)) for form in step.form]))
    found = {
        "acceptance_rule": CodedText(rules.astype(numpy.int32), _RULES),
        "draft_mode": CodedText(drafts.astype(numpy.int32), _DRAFTS),
        "applied_form": CodedText(numpy.concatenate(codes).astype(numpy.int32), list(forms)),
        "request": CodedText(who, [tags.request for tags in people]),
    }
    for name in _TAGS:
        texts = [getattr(tags, name) for tags in people]
        if any(text is not None for text in texts):
            found[name] = CodedText(who, texts)
    return found


def _cut(
    ids: Any,  # [rows, gamma] drafted tokens
    scheduled: Any,  # [rows] positions that the target checked
    kept: Any,  # [rows] drafts that became text
    bonus: Any,  # [rows] token that follows them
    people: Sequence[RequestTags],
    who: Any,  # [rows] places in people
) -> tuple[Any, Any, Any]:
    """ℓ after the cut, whether a stop token lies within the old ℓ, and whether the text ended."""
    import numpy

    is_stop = numpy.zeros(ids.shape, dtype=bool)
    last = numpy.zeros(len(ids), dtype=bool)
    kinds: dict[Any, list[int]] = {}
    for place, tags in enumerate(people):
        kinds.setdefault(tags.stops, []).append(place)
    for stops, places in kinds.items():
        rows = slice(None) if len(kinds) == 1 else numpy.isin(who, places)
        tokens = numpy.array(sorted(stops), dtype=numpy.int64)
        is_stop[rows] = numpy.isin(ids[rows], tokens)
        last[rows] = numpy.isin(bonus[rows], tokens)
    gamma = ids.shape[1]
    first = numpy.where(is_stop.any(axis=1), is_stop.argmax(axis=1) + 1, gamma + 1)
    # A bonus token is drawn only where no kept draft has ended the text before it.
    return numpy.minimum(scheduled, first), first <= scheduled, last | (first <= kept)


def _gone(everyone: Sequence[RequestTags], counts: Sequence[int], ends: Any) -> list[int]:
    """Rows behind the end of their request's text; ends are remembered in the order of steps."""
    import numpy

    gone: list[int] = []
    at = 0
    for count in counts:
        gone += [row for row in range(at, at + count) if everyone[row].ended]
        for row in numpy.flatnonzero(ends[at : at + count]).tolist():
            everyone[at + row].ended = True
        at += count
    return gone
