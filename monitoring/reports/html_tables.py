"""Tables of a report's page: a caption, columns with names, cells that are markup or text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from calib.segment_tags import segment_name
from monitoring.reports.document_node import Node
from monitoring.reports.markup import Markup, element, joined
from monitoring.reports.shown_numbers import (
    DASH,
    change,
    count,
    decimal,
    interval,
    percent,
    points,
    word,
)

__all__ = [
    "Column",
    "excluded_table",
    "position_metrics_table",
    "segments_table",
    "table",
    "throughput_tables",
]

_WHY_EXCLUDED = {
    "warmup": "made while the engine warmed up",
    "replay": "sent again after a retry or a restart",
    "forced_acceptance": "acceptance was simulated or forced",
    "target_only_transform": "an allow-list, penalty or grammar that the draft did not see",
    "anticipating": "its own later logits could decide how far it was verified",
    "duplicates_dropped": "the same engine, request and step came twice",
    "older_dropped": "older than the newest rows that a report reads",
    "rejected": "refused on arrival: not valid telemetry",
}


@dataclass(frozen=True, slots=True)
class Column:
    """A column.

    Attributes:
        name: its heading.
        cells: one a row.
        is_text: set as words, to the left, instead of as numbers.
    """

    name: str
    cells: Sequence[object]
    is_text: bool = False


def table(caption: object, columns: Sequence[Column], *, note: object = None) -> Markup:
    """A table whose first column names the rows; it scrolls sideways where it is too wide."""
    head = [
        element("th", column.name, scope="col", class_="words" if column.is_text else None)
        for column in columns
    ]
    body = []
    for row in zip(*(column.cells for column in columns), strict=True):
        first, *others = row
        named = element("th", first, scope="row", class_="words" if columns[0].is_text else None)
        cells = [
            element("td", cell, class_="words" if column.is_text else None)
            for column, cell in zip(columns[1:], others, strict=True)
        ]
        body.append(element("tr", named, *cells))
    whole = element(
        "table",
        element("caption", caption),
        element("thead", element("tr", *head)),
        element("tbody", *body),
    )
    foot = element("p", note, class_="note") if note else ""
    # What scrolls must be reachable by keyboard, and then say what it is.
    name = None if isinstance(caption, Markup) else caption
    scrolls = element("div", whole, class_="wide", role="group", aria_label=name, tabindex="0")
    return joined((scrolls, foot))


def position_metrics_table(
    caption: str, raw: Sequence[Node], served: Sequence[Node] | None
) -> Markup:
    """Everything that one view says about each position, raw and served."""
    after = raw if served is None else served

    def both(name: str) -> list[Markup]:
        return [change(b.at(name), a.at(name)) for b, a in zip(raw, after, strict=True)]

    columns = [
        Column("k", list(range(1, len(raw) + 1))),
        Column("rows", [count(p.at("n")) for p in after]),
        Column("effective", [count(p.at("effective_n")) for p in after]),
        Column("coverage", [percent(p.at("coverage")) for p in after]),
        Column("observed", [points(p.at("mean_label")) for p in after]),
        Column("predicted", both("mean_prediction")),
        Column("ECE", both("ece")),
        Column("perfect", [points(p.at("null_level")) for p in after]),
        *([Column("debiased, raw", _debiased(raw))] if served is not None else ()),
        Column("debiased" if served is None else "debiased, recalibrated", _debiased(after)),
        Column("worst bin", both("worst_bin_gap")),
        Column("AUC", [_area(b, a) for b, a in zip(raw, after, strict=True)]),
    ]
    return table(caption, columns)


def _debiased(side: Sequence[Node]) -> list[Markup]:
    return [
        interval(p.at("debiased_ece"), p.at("debiased_ece_low"), p.at("debiased_ece_high"))
        for p in side
    ]


def _area(raw: Node, served: Node) -> Markup:
    """AUC raw and served, or why there is none."""
    shown = change(raw.at("auc"), served.at("auc"), decimal)
    reason = served.at("reasons", "auc")
    if served.at("auc").number is not None or not reason.text:
        return shown
    return joined((shown, " ", element("small", word(reason.text))))


def segments_table(evaluation: Node, *, recalibrated: bool) -> Markup:
    """Mean errors of every slice with enough rows, all rows first; the thin ones below."""
    overall = evaluation.at("overall")
    entries = [("all", evaluation.at("rows"), overall)]
    thin: list[Markup] = []
    for segment in evaluation.at("segments"):
        name = _tags(segment)
        if segment.at("comparison").exists:
            entries.append((name, segment.at("rows"), segment.at("comparison")))
        else:
            thin.append(joined((name, " (", count(segment.at("rows")), ")")))
    side = "calibrated" if recalibrated else "raw"

    def means(view: str, name: str) -> list[tuple[Node, Node]]:
        return [
            (c.at("raw", view, "weighted_mean", name), c.at(side, view, "weighted_mean", name))
            for *_, c in entries
        ]

    blocks = [c.at(side, "block", "survival") for *_, c in entries]
    columns = [
        Column("slice", [name for name, *_ in entries], is_text=True),
        Column("rows", [count(rows) for _, rows, _ in entries]),
        Column("survival ECE", [change(b, a) for b, a in means("survival", "ece")]),
        Column("perfect", [points(a) for _, a in means("survival", "null_level")]),
        Column("debiased", [interval(b.at("value"), b.at("low"), b.at("high")) for b in blocks]),
        Column("conditional ECE", [change(b, a) for b, a in means("conditional", "ece")]),
        Column("AUC", [change(b, a, decimal) for b, a in means("conditional", "auc")]),
        Column("accepted length", [_length(c, side) for *_, c in entries]),
    ]
    change_of = ", raw → recalibrated" if recalibrated else ""
    caption = f"Means over positions by their rows, in points{change_of}"
    return table(caption, columns, note=_thin_slices(thin, evaluation) if thin else None)


def _thin_slices(thin: Sequence[Markup], evaluation: Node) -> Markup:
    listed = [part for name in thin for part in (", ", name)][1:]
    return joined(
        (
            f"Fewer than {evaluation.at('minimum_segment_rows').text} rows, too few for numbers of "
            "their own, so counted in the wider slice only: ",
            *listed,
            ".",
        )
    )


def _length(comparison: Node, side: str) -> Markup:
    realised = comparison.at("lengths", "realised")
    if realised.number is None:
        return element("span", DASH, class_="none")
    predicted = comparison.at("lengths", side, "predicted")
    return joined((decimal(realised, 2), " (", decimal(predicted, 2), " predicted)"))


def throughput_tables(found: Node) -> Iterator[Markup]:
    """Regret at other loads and by segment, where the replay tells them."""
    loads = list(found.at("loads"))
    if loads:
        yield table(
            "At other loads",
            [
                Column("requests a step", [entry.at("requests").text for entry in loads]),
                Column("regret of raw", [_regret(entry, "loss") for entry in loads]),
                Column("tokens/s, raw", [decimal(e.at("raw_theta"), 1) for e in loads]),
                Column("recalibrated", [decimal(e.at("calibrated_theta"), 1) for e in loads]),
                Column("forecast off, raw", [percent(e.at("raw_forecast_bias")) for e in loads]),
                Column("recalibrated", [percent(e.at("calibrated_forecast_bias")) for e in loads]),
                Column("modelled", [percent(entry.at("modelled_share")) for entry in loads]),
            ],
            note="modelled: share of the tokens that no block shows, but a model of others tells",
        )
    segments = list(found.at("segments"))
    if segments:
        yield table(
            "What each segment's recalibration is worth",
            [
                Column("segment", [_tags(entry) for entry in segments], is_text=True),
                Column("rows", [count(entry.at("rows")) for entry in segments]),
                Column("of all tokens/s", [_regret(entry, "value") for entry in segments]),
                Column("verified", [decimal(entry.at("verified"), 2) for entry in segments]),
                Column("accepted", [decimal(entry.at("accepted"), 2) for entry in segments]),
                Column("forecast", [decimal(entry.at("forecast"), 2) for entry in segments]),
                Column("raw forecast", [decimal(e.at("raw_forecast"), 2) for e in segments]),
            ],
            note="verified, accepted and forecast: drafted tokens a block",
        )


def _regret(entry: Node, name: str) -> Markup:
    return interval(entry.at(name), entry.at(f"{name}_low"), entry.at(f"{name}_high"), percent)


def _tags(segment: Node) -> str:
    return segment_name({name: value.text for name, value in segment.at("tags").items()}) or "all"


def excluded_table(document: Node) -> Markup | None:
    """What was left out, how much, and why; None where nothing is known to have been."""
    window = document.at("window")
    inside = window.at("excluded") if window.exists else document.at("evaluation", "excluded")
    found = [(name, entry) for name, entry in inside.items() if entry.number]
    found += [
        (name, window.at(name))
        for name in ("duplicates_dropped", "older_dropped")
        if window.at(name).number
    ]
    rejected = document.at("telemetry", "rejected")
    found += [("rejected", rejected)] if rejected.number else []
    if not found:
        return None
    columns = [
        Column("left out", [word(name) for name, _ in found], is_text=True),
        Column("rows", [count(entry) for _, entry in found]),
        Column("why", [_WHY_EXCLUDED.get(name, word(name)) for name, _ in found], is_text=True),
    ]
    return table("Rows that no number here speaks about", columns)
