"""Reports as terminal tables. Errors and rates are in points, 1/100 of a probability."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
from rich import box
from rich.console import Group, JustifyMethod, RenderableType
from rich.table import Table
from rich.text import Text

from calib.calibration import Calibration
from monitoring.reports.evaluation_report import EvaluationReport
from monitoring.reports.fit_report import FitReport
from monitoring.reports.sentences import evaluation_sentences, fit_sentences
from monitoring.reports.tables import (
    View,
    acceptance_table,
    leak_table,
    position_table,
    reference_table,
    segment_table,
)

__all__ = ["WIDTH", "evaluation_view", "fit_view"]

WIDTH = 126  # columns of the widest table; consoles that are no terminal get this width

_NOTHING = "–"
Columns = dict[str, list[str]]


def fit_view(report: FitReport, *, width: int = WIDTH) -> RenderableType:
    """A fit in sentences and tables.

    Args:
        report: what to show.
        width: columns of the terminal; below :data:`WIDTH` some columns are left out.
    """
    tables = list(_evaluation_tables(report.evaluation, report.calibration, width))
    if report.references:
        tables.append(_references(report))
    return Group(*_sentences(fit_sentences(report)), *tables)


def evaluation_view(
    report: EvaluationReport, calibration: Calibration, *, width: int = WIDTH
) -> RenderableType:
    """An evaluation in sentences and tables; arguments as in :func:`fit_view`."""
    tables = _evaluation_tables(report, calibration, width)
    return Group(*_sentences(evaluation_sentences(report)), *tables)


def _sentences(sentences: list[str]) -> Iterator[Text]:
    for sentence in sentences:
        yield Text(sentence)
    yield Text()


def _evaluation_tables(
    report: EvaluationReport, calibration: Calibration, width: int
) -> Iterator[RenderableType]:
    narrow = width < WIDTH
    yield _positions(report, calibration, "survival", narrow)
    yield _positions(report, calibration, "conditional", narrow)
    if report.segments:
        yield _segments(report, narrow)
    if report.leak.positions:
        yield _leak(report, narrow)


def _positions(
    report: EvaluationReport, calibration: Calibration, view: View, narrow: bool
) -> RenderableType:
    titles = {
        "survival": "Survival a_k on rows with ℓ ≥ k",
        "conditional": "Conditional c_k on rows with k ≤ min(n + 1, ℓ)",
    }
    frame = position_table(report.overall, view)
    columns = {
        "k": [str(position) for position in frame.index],
        **_numbers(report, calibration),
        "rows": _counts(frame["rows"]),
        "observed": _points(frame["observed"]),
        **_soft_labels(report, view),
        "predicted": _change(frame, "mean", _point),
        **_error_columns(frame, "debiased_ece", narrow),
    }
    if narrow:
        columns = {k: v for k, v in columns.items() if k not in ("observed", "c*", "predicted")}
    return _table(f"{titles[view]} (points, 95 % intervals)", columns)


def _numbers(report: EvaluationReport, calibration: Calibration) -> Columns:
    """The numbers that were judged: temperatures, or slopes and intercepts."""
    numbers = {"T": calibration.temperatures}
    if report.form == "affine":
        numbers = {"s": calibration.slopes or (), "b": calibration.intercepts or ()}
    return {name: [f"{value:.3f}" for value in values] for name, values in numbers.items()}


def _soft_labels(report: EvaluationReport, view: View) -> Columns:
    """Mean c* beside observed acceptance; c* says nothing about survival by itself."""
    if view == "survival" or report.soft_labels is None:
        return {}
    return {"c*": _points(acceptance_table(report)["soft_label"])}


def _segments(report: EvaluationReport, narrow: bool) -> RenderableType:
    frame = segment_table(report)
    pooled = frame["pooled"].map(lambda reason: isinstance(reason, str))
    names = frame.index.str.replace("domain=", "").str.replace("sampling_temperature=", "at ")
    columns = {
        "slice": list(names.str.replace(",", "")),
        "rows": _counts(frame["rows"]),
        "length": [
            "pooled" if hidden else _number(length, 2)
            for hidden, length in zip(pooled, frame["accepted_length"], strict=True)
        ],
        **_error_columns(frame, "block", narrow),
    }
    note = "length: accepted, with the bonus token; "
    note += "ECE, perfect and AUC: means over positions by their rows"
    if narrow:
        del columns["length"]
        columns["ECE"] = [
            "pooled" if hidden else text
            for hidden, text in zip(pooled, columns["ECE"], strict=True)
        ]
    if pooled.any():
        note += f"\npooled: fewer than {report.minimum_segment_rows:,} rows, counted above only"
    return _table("Survival by domain and sampling temperature (points)", columns, note)


def _leak(report: EvaluationReport, narrow: bool) -> RenderableType:
    frame = leak_table(report)
    columns = {
        "k": [str(position) for position in frame.index],
        "rows": _counts(frame["rows"]),
        "correlation": _intervals(frame, "correlation", _fraction),
        "partial, given z": _intervals(frame, "partial", _fraction),
        "product gap (points)": _intervals(frame, "product_gap", _point),
    }
    if narrow:
        del columns["correlation"]
    return _table("What the next logit knows: y − c against the next z (95 % intervals)", columns)


def _references(report: FitReport) -> RenderableType:
    frame = reference_table(report)
    columns = {
        "calibrator": [str(name) for name in frame.index],
        "ECE": _points(frame["ece"]),
        "perfect": _points(frame["null_level"]),
        "debiased": _intervals(frame, "block", _point),
        "log loss": [_number(value, 4) for value in frame["log_loss"]],
        "AUC": [_fraction(value) for value in frame["auc"]],
    }
    return _table("Survival: what flexible calibrators reach on the same split (points)", columns)


def _error_columns(frame: pd.DataFrame, debiased: str, narrow: bool) -> Columns:
    """ECE and AUC, raw to calibrated, around what a perfect model would show."""
    columns = {
        "ECE": _change(frame, "ece", _point),
        "perfect": _points(frame["null_level"]),
        "debiased, raw": _intervals(frame, f"raw_{debiased}", _point),
        "calibrated": _intervals(frame, f"calibrated_{debiased}", _point),
        "AUC": _change(frame, "auc", _fraction),
    }
    if narrow:
        del columns["debiased, raw"]
        columns["debiased"] = columns.pop("calibrated")
        columns["AUC"] = [_fraction(value) for value in frame["calibrated_auc"]]
    return columns


def _table(title: str, columns: Columns, note: str | None = None) -> RenderableType:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for name in columns:
        side: JustifyMethod = "left" if name in ("slice", "calibrator") else "right"
        table.add_column(name, justify=side, no_wrap=True)
    for row in zip(*columns.values(), strict=True):
        table.add_row(*row)
    parts: list[RenderableType] = [Text(title, style="bold"), table]
    return Group(*parts, *([Text(note, style="italic")] if note else []), Text())


def _change(frame: pd.DataFrame, name: str, shown: Callable[[Any], str]) -> list[str]:
    pairs = zip(frame[f"raw_{name}"], frame[f"calibrated_{name}"], strict=True)
    return [
        _NOTHING if pd.isna(before) and pd.isna(after) else f"{shown(before)} → {shown(after)}"
        for before, after in pairs
    ]


def _intervals(frame: pd.DataFrame, name: str, shown: Callable[[Any], str]) -> list[str]:
    triples = zip(frame[name], frame[f"{name}_low"], frame[f"{name}_high"], strict=True)
    return [
        _NOTHING if pd.isna(value) else f"{shown(value)} [{shown(low)}, {shown(high)}]"
        for value, low, high in triples
    ]


def _counts(values: pd.Series) -> list[str]:
    return [f"{int(value):,}" for value in values]


def _points(values: pd.Series) -> list[str]:
    return [_point(value) for value in values]


def _point(value: Any) -> str:
    return _NOTHING if pd.isna(value) else _number(100.0 * float(value), 1)


def _fraction(value: Any) -> str:
    return _number(value, 3)


def _number(value: Any, digits: int) -> str:
    if pd.isna(value):
        return _NOTHING
    text = f"{float(value):.{digits}f}"
    return text.lstrip("-") if float(text) == 0.0 else text
