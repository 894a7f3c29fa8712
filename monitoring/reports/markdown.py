"""The numbers of a fit report as Markdown, for README and cards: generated, never typed."""

from __future__ import annotations

from typing import Any

import pandas as pd

from monitoring.reports.fit_report import FitReport
from monitoring.reports.tables import (
    acceptance_table,
    leak_table,
    position_table,
    reference_table,
    segment_table,
)

__all__ = ["acceptance_markdown", "markdown_table", "results_markdown", "summary_markdown"]

_MISSING = "–"


def results_markdown(report: FitReport) -> str:
    """Held-out evidence in four tables with the conditions in words; ends with a newline.

    Args:
        report: a fit judged on prompts it has not seen.
    """
    evaluation = report.evaluation
    parts = [
        *_survival(report, segment_table(evaluation)),
        "What more flexible calibrators reach on the same split (one per position):",
        _references(reference_table(report)),
        "What the next logit knows, corr(y_i − c_i, z_{i+1}) on rows that reach position i "
        f"(c from the {evaluation.leak_model} fit), with 95 % intervals:",
        _leak(leak_table(evaluation)),
    ]
    return "\n\n".join(parts) + "\n"


def summary_markdown(report: FitReport) -> str:
    """The first two of those tables, with slices by one tag only; ends with a newline."""
    crossed = {part.name for part in report.evaluation.segments if len(part.tags) > 1}
    slices = segment_table(report.evaluation)
    return "\n\n".join(_survival(report, slices.drop(index=crossed & set(slices.index)))) + "\n"


def _survival(report: FitReport, slices: pd.DataFrame) -> list[str]:
    """Conditions, and survival by position and by slice."""
    split, evaluation = report.split, report.evaluation
    conditions = (
        f"Fitted by {report.method_words} on {split.fit_rows:,} blocks of "
        f"{split.fit_keys:,} prompts, judged on {split.evaluation_rows:,} blocks of "
        f"{split.evaluation_keys:,} other prompts; γ = {evaluation.gamma}, everything verified. "
        "ECE is plug-in with 15 equal-width bins; the debiased error is L2 with its 95 % "
        "interval over prompts; *perfect* is the plug-in ECE that a perfectly calibrated model "
        "would show on as many rows. All in percent, but for AUC and lengths."
    )
    return [
        conditions,
        "Survival confidence by position:",
        _positions(position_table(evaluation.overall, "survival")),
        "Survival confidence by slice, means over positions by their rows, and the debiased error "
        "over all:",
        _segments(slices),
    ]


def acceptance_markdown(report: FitReport) -> str:
    """Acceptance by position on the judged rows, with the exact label beside it."""
    table = acceptance_table(report.evaluation)
    rows = [
        {
            "position": position,
            "blocks that reach it": f"{int(row['observed']):,}",
            "accepted, given that": _percent(row["conditional"]),
            "mean c*": _percent(row.get("soft_label")),
            "accepted, of all blocks": _percent(row["marginal"]),
        }
        for position, row in table.iterrows()
    ]
    return markdown_table(rows)


def markdown_table(rows: list[dict[str, Any]]) -> str:
    """A Markdown table with the keys of the first row as its head."""
    head = list(rows[0])
    lines = [" | ".join(head), " | ".join("---" for _ in head)]
    lines += [" | ".join(str(row[name]) for name in head) for row in rows]
    return "\n".join(f"| {line} |" for line in lines)


def _positions(table: pd.DataFrame) -> str:
    return markdown_table(
        [
            {
                "position": position,
                "survived": _percent(row["observed"]),
                "raw mean": _percent(row["raw_mean"]),
                "ECE raw": _percent(row["raw_ece"]),
                "calibrated": _percent(row["calibrated_ece"]),
                "perfect": _percent(row["null_level"]),
                "debiased raw": _interval(row, "raw_debiased_ece"),
                "debiased calibrated": _interval(row, "calibrated_debiased_ece"),
                "AUC raw": _number(row["raw_auc"], 3),
                "AUC calibrated": _number(row["calibrated_auc"], 3),
            }
            for position, row in table.iterrows()
        ]
    )


def _segments(table: pd.DataFrame) -> str:
    return markdown_table(
        [
            {
                "slice": name,
                "blocks": f"{int(row['rows']):,}",
                "accepted length": _number(row["accepted_length"], 2),
                "ECE raw": _percent(row["raw_ece"]),
                "calibrated": _percent(row["calibrated_ece"]),
                "perfect": _percent(row["null_level"]),
                "debiased raw": _interval(row, "raw_block"),
                "debiased calibrated": _interval(row, "calibrated_block"),
                "AUC": _number(row["calibrated_auc"], 3),
            }
            for name, row in table.iterrows()
        ]
    )


def _references(table: pd.DataFrame) -> str:
    return markdown_table(
        [
            {
                "calibrator": name,
                "ECE": _percent(row["ece"]),
                "debiased": _interval(row, "block"),
                "log loss": _number(row["log_loss"], 4),
                "AUC": _number(row["auc"], 3),
            }
            for name, row in table.iterrows()
        ]
    )


def _leak(table: pd.DataFrame) -> str:
    return markdown_table(
        [
            {
                "position": position,
                "rows": f"{int(row['rows']):,}",
                "correlation": _signed(row, "correlation"),
                "given z_i": _signed(row, "partial"),
                "points that the product misses": _signed(row, "product_gap", 100.0, 2),
            }
            for position, row in table.iterrows()
        ]
    )


def _number(value: Any, digits: int) -> str:
    return _MISSING if value is None or pd.isna(value) else f"{value:.{digits}f}"


def _percent(value: Any) -> str:
    return _MISSING if value is None or pd.isna(value) else f"{100.0 * value:.1f}"


def _interval(row: pd.Series, name: str) -> str:
    low, high = _percent(row[f"{name}_low"]), _percent(row[f"{name}_high"])
    return f"{_percent(row[name])} [{low}, {high}]"


def _signed(row: pd.Series, name: str, scale: float = 1.0, digits: int = 3) -> str:
    if pd.isna(row[name]):
        return _MISSING
    value, low, high = (scale * row[f"{name}{end}"] for end in ("", "_low", "_high"))
    return f"{value:+.{digits}f} [{low:+.{digits}f}, {high:+.{digits}f}]"
