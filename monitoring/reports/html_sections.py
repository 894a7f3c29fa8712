"""The sections of a report's page, each from its part of the JSON; empty parts make no section."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from monitoring.reports.document_node import Node
from monitoring.reports.html_tables import (
    Column,
    excluded_table,
    position_metrics_table,
    segments_table,
    table,
    throughput_tables,
)
from monitoring.reports.markup import Markup, element
from monitoring.reports.reliability_chart import FEW_ROWS, bins_of, reliability_chart
from monitoring.reports.report_charts import error_chart, length_chart, temperature_chart
from monitoring.reports.shown_numbers import (
    change,
    count,
    decimal,
    interval,
    moment,
    percent,
    plain_points,
    points,
    word,
)

__all__ = ["Sides", "method_word", "sections"]

_VIEWS: Final = {
    "survival": (
        "Survival",
        "How likely position k and all before it are accepted: what a scheduler spends on. "
        "Judged on rows that were verified to position k or further.",
    ),
    "conditional": (
        "Conditional confidence",
        "How likely position k is accepted given that all before it were: what the head predicts. "
        "Judged on rows whose outcome at position k was seen.",
    ),
}


@dataclass(frozen=True, slots=True)
class Sides:
    """The evaluation and whether anything was recalibrated in it.

    Attributes:
        evaluation: of the document.
        recalibrated: whether served confidence differs from raw.
    """

    evaluation: Node
    recalibrated: bool

    @classmethod
    def of(cls, document: Node) -> Sides:
        """Raw and served sides of a document of any of the three report formats."""
        evaluation = document.at("evaluation")
        overall = evaluation.at("overall")
        raw, served = overall.at("raw").value, overall.at("calibrated").value
        return cls(evaluation, raw != served)

    @property
    def served_name(self) -> str:
        """Member of a comparison that holds what is served."""
        return "calibrated" if self.recalibrated else "raw"

    def raw(self, view: str) -> list[Node]:
        """Metrics of raw confidence by position."""
        return list(self.evaluation.at("overall", "raw", view, "positions"))

    def served(self, view: str) -> list[Node] | None:
        """Metrics of what is served by position; None where nothing was recalibrated."""
        if not self.recalibrated:
            return None
        return list(self.evaluation.at("overall", "calibrated", view, "positions"))


def sections(document: Node) -> Iterator[Markup]:
    """The page's sections in their order."""
    sides = Sides.of(document)
    yield _in_short(document, sides)
    if sides.evaluation.exists:
        for view in _VIEWS:
            yield _reliability(sides, view)
        yield _errors(sides)
        yield from _segments(sides)
        yield from _lengths(sides)
    yield from _throughput(document)
    yield from _temperatures(document)
    yield from _references(document)
    yield from _excluded(document)


def _section(title: str, *parts: object, class_: str | None = None) -> Markup:
    return element("section", element("h2", title), *parts, class_=class_)


def _in_short(document: Node, sides: Sides) -> Markup:
    sentences = [entry.text for entry in document.at("sentences")]
    parts: list[object] = []
    if document.at("refusal").text:
        parts.append(
            element("p", "Nothing is published: ", document.at("refusal").text, class_="refused")
        )
        sentences = [said for said in sentences if not said.startswith("Nothing is published")]
    if not sides.evaluation.exists:
        reason = word(document.at("reason").text or "no_rows")
        parts.append(element("p", f"There is nothing to judge yet: {reason}.", class_="refused"))
    headline = document.at("headline").text
    if headline:
        parts.append(element("p", headline, class_="headline"))
    sentences = [said for said in sentences if said != headline]
    if sentences:
        parts.append(element("ul", *(element("li", said) for said in sentences), class_="said"))
    if sides.evaluation.exists:
        parts.append(_facts(sides))
    return _section("In short", *parts)


def _facts(sides: Sides) -> Markup:
    evaluation, name = sides.evaluation, sides.served_name
    overall = evaluation.at("overall")
    lengths = overall.at("lengths")
    mean = overall.at(name, "survival", "weighted_mean")
    facts: list[tuple[str, Markup]] = [
        ("blocks judged", count(evaluation.at("rows"))),
        (
            f"{evaluation.at('cluster_column').text or 'block'}s among them",
            count(evaluation.at("clusters")),
        ),
        (
            "mean survival ECE, points",
            change(overall.at("raw", "survival", "weighted_mean", "ece"), mean.at("ece")),
        ),
        ("a perfect model would show", points(mean.at("null_level"))),
        (
            "mean conditional ECE, points",
            change(
                overall.at("raw", "conditional", "weighted_mean", "ece"),
                overall.at(name, "conditional", "weighted_mean", "ece"),
            ),
        ),
        ("accepted length", decimal(lengths.at("realised"), 2)),
        (
            "length predicted",
            change(
                lengths.at("raw", "predicted"),
                lengths.at(name, "predicted"),
                lambda node: decimal(node, 2),
            ),
        ),
    ]
    return element(
        "dl",
        *(element("div", element("dt", said), element("dd", value)) for said, value in facts),
        class_="facts",
    )


def _reliability(sides: Sides, view: str) -> Markup:
    title, meaning = _VIEWS[view]
    raw, served = sides.raw(view), sides.served(view)
    after = raw if served is None else served
    panels = [
        _panel(index + 1, before, None if served is None else served[index], title)
        for index, before in enumerate(raw)
    ]
    caption = (
        f"{title} by position (points, 95 % intervals{', raw → recalibrated' if served else ''})"
    )
    return _section(
        f"{title}: predicted against observed",
        element("p", meaning),
        _legend(recalibrated=served is not None),
        element("div", *panels, class_="panels") if panels else "",
        position_metrics_table(caption, raw, served) if after else "",
        class_="reliability",
    )


def _panel(position: int, raw: Node, served: Node | None, title: str) -> Markup:
    after = raw if served is None else served
    label = f"{title} at position {position}: {_in_words(raw, after)}"
    before = bins_of(raw)
    chart = reliability_chart(before, None if served is None else bins_of(served), label=label)
    errors = ("ECE ", change(raw.at("ece"), after.at("ece")), " · perfect ")
    rows = ("N ", count(after.at("n")), " · effective ", count(after.at("effective_n")))
    head = element(
        "figcaption",
        element("strong", f"Position {position}"),
        element("span", *errors, points(after.at("null_level"))),
        element("span", *rows),
        element("span", "AUC ", decimal(after.at("auc"))),
    )
    return element("figure", head, chart)


def _in_words(raw: Node, served: Node) -> str:
    """A panel for readers without sight."""
    predicted, label = served.at("mean_prediction").number, served.at("mean_label").number
    if predicted is None or label is None:
        return "no rows."
    gap = predicted - label
    direction = "overconfident" if gap > 0 else "underconfident"
    said = (
        f"mean prediction {predicted:.3f}, observed {label:.3f}, {direction} by "
        f"{plain_points(abs(gap))} points"
    )
    ece, before = served.at("ece").number, raw.at("ece").number
    if ece is not None:
        said += f"; ECE {plain_points(ece)} points"
        if before is not None and raw.pointer != served.pointer:
            said += f", {plain_points(before)} before recalibration"
    return f"{said}."


def _legend(*, recalibrated: bool) -> Markup:
    note = (
        "Across: predicted, up: observed. Band: 95 % interval of what was observed. Pale: fewer "
        f"than {FEW_ROWS} rows. Below each panel: how many rows each bin holds."
    )
    keys = _keys(("line", "a perfect model"), recalibrated=recalibrated)
    return element("p", *keys, element("span", note, class_="small"), class_="legend")


def _keys(perfect: tuple[str, str], *, recalibrated: bool) -> list[Markup]:
    """Marks with their meaning."""
    said = [("raw", "raw confidence"), ("served", "recalibrated"), perfect]
    return [
        element("span", element("span", class_=f"key {name}"), meaning)
        for name, meaning in said
        if recalibrated or name != "served"
    ]


def _errors(sides: Sides) -> Markup:
    figures = []
    for view, (title, _) in _VIEWS.items():
        raw, served = sides.raw(view), sides.served(view)
        label = f"{title}: debiased calibration error by position; the table above has the numbers."
        chart = error_chart(raw, served, label=label)
        figures.append(element("figure", element("figcaption", f"{title}, points"), chart))
    return _section(
        "Calibration error by position",
        element(
            "p",
            "Debiased ECE with 95 % intervals. The grey steps are the plug-in ECE that a perfectly "
            "calibrated model would show on these rows: an error below them is no evidence.",
        ),
        _legend_of_errors(recalibrated=sides.recalibrated),
        element("div", *figures, class_="pair"),
    )


def _legend_of_errors(*, recalibrated: bool) -> Markup:
    keys = _keys(("level", "a perfect model's ECE"), recalibrated=recalibrated)
    return element("p", *keys, class_="legend")


def _segments(sides: Sides) -> Iterator[Markup]:
    if list(sides.evaluation.at("segments")):
        yield _section(
            "By segment",
            segments_table(sides.evaluation, recalibrated=sides.recalibrated),
        )


def _lengths(sides: Sides) -> Iterator[Markup]:
    lengths = sides.evaluation.at("overall", "lengths")
    if lengths.at("realised").number is None:
        return
    names = ["raw", "calibrated"] if sides.recalibrated else ["raw"]
    said = {"raw": "raw confidence", "calibrated": "recalibrated"}
    rows = [lengths.at(name) for name in names]
    columns = [
        Column("forecast by", [said[name] for name in names], is_text=True),
        Column("predicted", [decimal(row.at("predicted"), 3) for row in rows]),
        Column("realised", [decimal(lengths.at("realised"), 3) for _ in rows]),
        Column(
            "predicted − realised",
            [
                interval(
                    row.at("error"),
                    row.at("error_low"),
                    row.at("error_high"),
                    lambda node: decimal(node, 3),
                )
                for row in rows
            ],
        ),
    ]
    groups = list(lengths.at("groups"))
    chart = length_chart(
        groups,
        recalibrated=sides.recalibrated,
        label="Realised against predicted accepted length, by tenths of the first confidence.",
    )
    yield _section(
        "Accepted length: predicted against realised",
        element(
            "p",
            "Tokens a block yields, bonus token included, within what was verified. Points are "
            "tenths of the blocks by their first confidence, which is known before any outcome.",
        ),
        element(
            "div",
            element("figure", chart) if chart else "",
            table("Tokens a block, 95 % intervals", columns),
            class_="pair",
        ),
    )


def _throughput(document: Node) -> Iterator[Markup]:
    found = document.at("throughput")
    if not found.exists:
        return
    if found.at("loss").number is None:
        reason = found.at("reason").text
        yield _section("Throughput", element("p", f"Not known: {reason}."))
        return
    rows = [("raw confidence", found.at("raw")), ("recalibrated", found.at("calibrated"))]
    columns = [
        Column("scheduled by", [name for name, _ in rows], is_text=True),
        Column("tokens/s Θ", [decimal(row.at("theta"), 1) for _, row in rows]),
        Column("forecast Θ", [decimal(row.at("predicted_theta"), 1) for _, row in rows]),
        Column("tokens/step τ", [decimal(row.at("tau"), 3) for _, row in rows]),
        Column("forecast τ", [decimal(row.at("predicted_tau"), 3) for _, row in rows]),
        Column("verified/block", [decimal(row.at("verified"), 2) for _, row in rows]),
    ]
    loss = interval(found.at("loss"), found.at("loss_low"), found.at("loss_high"), percent)
    yield _section(
        "Throughput",
        element(
            "p",
            "Regret of raw confidence against recalibrated, in tokens a second: ",
            loss,
            ". These blocks were scheduled again with the engine's cost table; below zero raw "
            "confidence is faster, and an interval around zero shows no difference.",
        ),
        table(f"Replay of {found.at('raw', 'steps').text} steps", columns),
        *throughput_tables(found),
    )


def _temperatures(document: Node) -> Iterator[Markup]:
    history = list(document.at("revisions"))
    calibration = document.at("calibration")
    if calibration.at("method").text == "identity":
        calibration = Node(None)  # raw confidence has no temperatures to show
    if not history and not calibration.exists:
        return
    parts: list[object] = []
    if calibration.exists:
        parts.append(_temperature_table(calibration))
    if history:
        label = "Temperature of each position over revisions; the table has the numbers."
        chart = temperature_chart(history, label=label)
        parts += [element("figure", chart, class_="lone") if chart else "", _history(history)]
    yield _section(
        "Temperatures" if calibration.exists else "Temperatures over revisions",
        element("p", "A temperature divides the raw logit: above 1 it makes confidence humbler."),
        *parts,
    )


def _temperature_table(calibration: Node) -> Markup:
    temperatures = list(calibration.at("temperatures"))
    statuses = calibration.at("position_statuses")
    fits = calibration.at("evidence", "positions")
    positions = range(len(temperatures))
    columns = [
        Column("k", [k + 1 for k in positions]),
        Column("T", [decimal(value) for value in temperatures]),
        *(
            Column(name, [decimal(value) for value in calibration.at(field)])
            for name, field in (("slope", "slopes"), ("intercept", "intercepts"))
            if calibration.at(field).exists
        ),
        Column("status", [word(statuses.at(k).text) for k in positions], is_text=True),
        Column("why", [fits.at(k, "reason").text for k in positions], is_text=True),
    ]
    status = word(calibration.at("status").text)
    return table(f"{method_word(calibration)}, {status}", columns)


def method_word(calibration: Node) -> str:
    """Method of a calibration, as ``fit --method`` names it: a projection carries ``sts``."""
    imputed = calibration.at("evidence", "imputed_survival").value is True
    return "survival" if imputed else calibration.at("method").text


def _history(history: Sequence[Node]) -> Markup:
    gamma = max(len(list(entry.at("temperatures"))) for entry in history)
    newest = list(reversed(history))
    columns = [
        Column("revision", [entry.at("revision").text for entry in newest]),
        Column("made", [moment(entry.at("created_at")) for entry in newest], is_text=True),
        Column("alias", [entry.at("alias").text for entry in newest], is_text=True),
        Column("method", [word(entry.at("method").text) for entry in newest], is_text=True),
        *(
            Column(f"T{k + 1}", [decimal(entry.at("temperatures").at(k)) for entry in newest])
            for k in range(gamma)
        ),
    ]
    return table("Revisions, newest first", columns)


def _references(document: Node) -> Iterator[Markup]:
    found = list(document.at("references").items())
    if not found:
        return
    means = [entry.at("survival", "weighted_mean") for _, entry in found]
    columns = [
        Column("calibrator", [name for name, _ in found], is_text=True),
        Column("ECE", [points(mean.at("ece")) for mean in means]),
        Column("perfect", [points(mean.at("null_level")) for mean in means]),
        Column("log loss", [decimal(mean.at("log_loss"), 4) for mean in means]),
    ]
    yield _section(
        "What flexible calibrators reach",
        element("p", "Fitted on the same rows; no engine can apply them."),
        table("Survival, means over positions by their rows, points", columns),
    )


def _excluded(document: Node) -> Iterator[Markup]:
    found = excluded_table(document)
    nothing = element("p", "Nothing was left out.")
    yield _section("What was left out, and why", found or nothing)
