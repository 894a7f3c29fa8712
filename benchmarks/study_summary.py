"""The study in two small tables, for README: fits beside fits, alarms beside alarms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.study_tables import MISSING, count, delay_cell, number, percent, table

__all__ = ["NEEDED", "summary"]

Document = Mapping[str, Any]

NEEDED = ("peers_10k", "peers_100k", "segments", "cost_1m", "drift_null", "drift_delay")

# Ours are temperatures throughout: by the survival method, which the loop takes on few rows, and by
# segment where segments differ.
FITTERS = (
    "raw",
    "SGLang's fitter",
    "netcal temperature, conditional",
    "ours: temperatures, survival",
)
SEGMENTS = (
    "raw",
    "pooled sequential scaling",
    "pooled conditional temperature",
    "segments served, temperatures",
)
OUR_FIT = "ours: survival model, projected"
DETECTORS = {
    "lr_act_0.01_1e6": "ours, act",
    "lr_warn_0.003_1e5": "ours, warn",
    "river_ADWIN_R": "ADWIN on residuals",
    "river_ADWIN_accept": "ADWIN on acceptance",
    "river_PageHinkley_R": "Page-Hinkley on residuals",
}
SHIFTS = ("T x 1.6", "T x 1.25", "shift -0.3", "fresh: position 4 only, shift 0.7")
DRIFTING = "drifting_but_calibrated"


def summary(parts: Document) -> str:
    """Both tables with their conditions; empty while a part that they need is missing."""
    if any(name not in parts for name in NEEDED):
        return ""
    results = {name: parts[name]["result"] for name in NEEDED}
    return "\n\n".join(
        (
            "Simulated traffic, so that the truth is known. ECE, the mean gap between claimed and "
            "exact survival, is a mean over seven positions. *Trimmed* is what a scheduler leaves "
            "at 128 requests a step; *leak* is how much the next logit knows of the token before "
            "it. Temperatures by position are netcal's, on the labels that were really observed; "
            "where segments differ, one such vector for all. Ours are temperatures too: by the "
            "survival method, and by segment where segments differ.",
            _fits(results),
            "Rows from a change to the alarm (runs that alarmed at all), and false alarms per "
            "million rows while traffic drifts and confidence stays true. *Act* asks for a fit, "
            "*warn* only tells. river's detectors run at their defaults; residuals are acceptance "
            "less confidence.",
            _alarms(results),
        )
    )


def _fits(results: Document) -> str:
    rows = [
        _errors(results["peers_10k"], "leak 0", trimmed=False),
        _errors(results["peers_10k"], "leak .18", trimmed=False),
        _errors(results["peers_10k"], "leak 0", trimmed=True),
        _errors(results["peers_10k"], "leak .18", trimmed=True),
        _errors(results["peers_100k"], "leak .18", trimmed=True),
        _lost(results["segments"]),
        _seconds(results["cost_1m"]),
    ]
    head = ["", "raw", "SGLang's fitter", "temperature by position", "dspark-calib"]
    return table(head, rows)


def _errors(found: Sequence[Document], shape: str, *, trimmed: bool) -> list[str]:
    one = next(t for t in found if t["shape"] == shape and t["trimmed"] is trimmed)
    log = "trimmed" if trimmed else "fully verified"
    what = f"ECE, {one['rows']:,} rows, {log}, {shape}"
    return [what, *(number(one["ece"][name]) for name in FITTERS)]


def _lost(found: Sequence[Document]) -> list[str]:
    one = next(t for t in found if t["rows"] == 3000 and t["shape"] == "one effect a segment")
    lost = (percent(one["arms"][name]["regret"]) for name in SEGMENTS)
    return ["throughput lost where eight segments differ, 3,000 rows", *lost]


def _seconds(found: Document) -> list[str]:
    def shown(name: str) -> str:
        return f"{found['methods'][name]['cpu_seconds']:.2g} s"

    fit = shown(OUR_FIT)
    return [f"CPU of a fit on {found['rows']:,} rows", MISSING, shown(FITTERS[1]), MISSING, fit]


def _alarms(results: Document) -> str:
    delays = results["drift_delay"]
    rows = [[_named(shift), *(delay_cell(delays[shift][d]) for d in DETECTORS)] for shift in SHIFTS]
    false = (results["drift_null"][detector][DRIFTING] for detector in DETECTORS)
    per_million = [count(1e6 * each["alarms"] / each["rows"]) for each in false]
    rows.append(["false alarms per million rows", *per_million])
    return table(["", *DETECTORS.values()], rows)


def _named(shift: str) -> str:
    return shift.removeprefix("fresh: ").replace("T x", "T ×").replace("-0.", "−.")
