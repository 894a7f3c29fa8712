"""A report as one HTML file: readable without network, script or colour, on screen and on paper.

Everything on the page comes from the report's JSON. Numbers stand in ``<data>`` elements with
their exact value and, in ``data-at``, the JSON pointer of the member they show.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Final

from monitoring.reports.document_node import Node
from monitoring.reports.html_sections import method_word, sections
from monitoring.reports.markup import Markup, element, escaped, joined
from monitoring.reports.page_policy import PAGE_POLICY
from monitoring.reports.shown_numbers import moment

__all__ = ["html_report"]

_TERMS: Final = (
    ("point", "a hundredth of a probability."),
    (
        "ECE",
        "mean distance of predicted and observed share over bins of the prediction, weighted by "
        "rows; never 0 on finite data, hence the next two.",
    ),
    (
        "perfect",
        "the ECE that a perfectly calibrated model would show on these very rows, by chance alone.",
    ),
    (
        "debiased",
        "root of the mean squared distance without the part that chance explains, with a 95 % "
        "interval; rows of one prompt count together.",
    ),
    (
        "effective",
        "how many independent rows the rows are worth, since rows of one prompt share luck.",
    ),
    ("coverage", "share of the rows that were verified to this position."),
    ("worst bin", "largest distance of predicted and observed share in any one bin."),
    ("AUC", "chance that an accepted row has a higher confidence than a rejected one."),
)


def html_report(document: Mapping[str, Any]) -> bytes:
    """The page, UTF-8.

    Args:
        document: plain JSON of a fit report, an evaluation report or a telemetry report, see
            :mod:`monitoring.reports.fit_report` and :mod:`monitoring.telemetry_report`. What it
            does not hold is left out of the page.
    """
    root = Node(document)
    title = _title(root)
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", http_equiv="Content-Security-Policy", content=PAGE_POLICY),
        element("title", title),
        element("style", Markup(_style())),
    )
    body = element(
        "body",
        element("a", "Skip to the report", href="#report", class_="skip"),
        element("header", element("h1", title), *_subtitle(root)),
        element("main", *sections(root), _terms(root), id="report", tabindex="-1"),
    )
    page = joined((Markup("<!doctype html>\n"), element("html", head, body, lang="en"), "\n"))
    return page.encode()


def _title(root: Node) -> str:
    drafter = root.at("drafter").text
    if drafter:
        return f"Calibration of {drafter}"
    source = root.at("source").text
    return f"Calibration on {source}" if source else "Calibration report"


def _subtitle(root: Node) -> Iterator[Markup]:
    said: list[Markup] = []
    if root.at("revision").exists:
        said.append(escaped(f"Revision {root.at('revision').text}"))
    elif root.at("calibration", "method").text:
        said.append(escaped(f"Method {method_word(root.at('calibration'))}"))
    created = root.at("created_at") if root.at("created_at").text else None
    created = created or root.at("calibration", "fitted_at")
    if created.text:
        said.append(moment(created))
    gamma = root.at("evaluation", "gamma").text
    if gamma:
        said.append(escaped(f"γ = {gamma}"))
    if said:
        separated = [part for entry in said for part in (" · ", entry)][1:]
        yield element("p", *separated, class_="about")
    if root.at("judged", "note").text:
        yield element("p", f"Judged on {root.at('judged', 'note').text}.", class_="about")
    for note in root.at("notes"):
        yield element("p", f"Note: {note.text}.", class_="about")


def _terms(root: Node) -> Markup:
    entries = [
        element("div", element("dt", name), element("dd", meaning)) for name, meaning in _TERMS
    ]
    rule = root.at("evaluation", "overall", "raw", "bin_rule").text
    bins = root.at("evaluation", "overall", "raw", "n_bins").text
    facts = [
        ("bins", f"{bins}, {rule}" if rule else ""),
        ("calibration digest", root.at("evaluation", "digest").text or root.at("digest").text),
        ("rows digest", root.at("window", "digest").text),
        ("format", root.at("format").text),
    ]
    known = [
        element("div", element("dt", name), element("dd", said, class_="code"))
        for name, said in facts
        if said
    ]
    return element(
        "section",
        element("h2", "Terms and provenance"),
        element("dl", *entries, *known, class_="terms"),
    )


@cache
def _style() -> str:
    path = files("monitoring.reports").joinpath("assets/report.css")
    return path.read_text(encoding="utf-8")
