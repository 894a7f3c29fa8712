"""The project's targets beside what the study found, each met or missed, for docs/study.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.study_tables import count, number, percent, table

__all__ = ["targets"]

Document = Mapping[str, Any]
Line = tuple[str, str, str, bool]  # what, target, found, met

SERVED = "ours: temperatures, survival"
SGLANG = "SGLang's fitter"
FIT = "ours: conditional temperature"
REFITS = ("ours: refit from a sketch, temperature", "ours: refit from a sketch, affine")
SEGMENTS = "segments served, affine"


def targets(parts: Document) -> str:
    """One line a target, of the parts that are there."""
    lines = [*_cost(parts), *_accuracy(parts), *_real(parts), *_segments(parts)]
    lines += [*_drift(parts), *_gate(parts)]
    rows = [
        [what, wanted, found, "met" if met else "**missed**"] for what, wanted, found, met in lines
    ]
    return table(["what", "target", "found", ""], rows)


def _result(parts: Document, name: str) -> Any:
    return parts[name]["result"] if name in parts else None


def _cost(parts: Document) -> Iterator[Line]:
    for name, times in (("cost_100k", 100.0), ("cost_1m", 400.0)):
        found = _result(parts, name)
        if found is None:
            continue
        rows, methods = f"{found['rows']:,} rows", found["methods"]
        ratio = methods[FIT]["times_less_cpu"]
        what = f"conditional fit, {rows}: CPU less than SGLang's"
        yield what, f"≥ {times:g} times", f"{ratio:,.0f} times", ratio >= times
        memory = methods[FIT]["extra_megabytes"]
        if memory is not None:
            yield f"extra memory, {rows}", "≤ 10 MB", f"{memory:g} MB", memory <= 10.0
        slowest = max(methods[refit]["cpu_seconds"] for refit in REFITS)
        yield (
            f"refit from sketches of {rows}",
            "≤ 10 ms",
            f"{1e3 * slowest:.1f} ms",
            slowest <= 0.01,
        )
        if name == "cost_1m":
            for mode, least in (("parity", 15.0), ("histogram", 40.0)):
                ratio = methods[f"ours: STS, {mode} mode"]["times_less_cpu"]
                shown = f"{ratio:,.1f} times"
                yield f"STS {mode} mode, {rows}", f"≥ {least:g} times", shown, ratio >= least


def _accuracy(parts: Document) -> Iterator[Line]:
    names = ("accuracy_1k", "accuracy_10k", "accuracy_100k")
    tables = [found for name in names for found in _result(parts, name) or []]
    leaks = [found for found in tables if found["shape"].startswith("leak")]
    if leaks:
        won = [t for t in leaks if t["ece"][SERVED] < t["ece"][SGLANG]]
        lost = [
            f"{t['shape']} at {t['rows']:,} {'trimmed' if t['trimmed'] else 'whole'}"
            for t in leaks
            if t not in won
        ]
        found = f"{len(won)} of {len(leaks)}" + (f"; not {', '.join(lost)}" if lost else "")
        sizes = ", ".join(f"{rows:,}" for rows in sorted({t["rows"] for t in leaks}))
        what = f"served temperatures below SGLang's ECE, {sizes} rows"
        yield what, "everywhere", found, not lost
    for table_ in leaks:
        if table_["rows"] == 100_000 and table_["trimmed"]:
            limit = 0.005 if table_["shape"] == "leak 0" else 0.01
            value, theirs = table_["ece"][SERVED], table_["ece"][SGLANG]
            shown = f"{number(value)} (SGLang {number(theirs)})"
            what = f"ECE after trimming at R = 128, {table_['shape']}"
            yield what, f"≤ {number(limit, 3)}", shown, value <= limit


def _real(parts: Document) -> Iterator[Line]:
    found = _result(parts, "real")
    if found is None:
        return
    for log in ("full", "trimmed"):
        for name in (SERVED, "ours: affine by segment"):
            arm = found[log][name]
            shown = percent(arm["debiased_ece"])
            shown += f" [{percent(arm['low'])}, {percent(arm['high'])}]"
            fit = "as recorded" if log == "full" else "trimmed"
            what = f"real telemetry, fitted {fit}: {name.removeprefix('ours: ')}"
            yield what, "≤ 1 % (debiased)", shown, arm["debiased_ece"] <= 0.01


def _segments(parts: Document) -> Iterator[Line]:
    for found in _result(parts, "segments") or []:
        if found["rows"] == 3000 and found["shape"] == "one effect a segment":
            arm = found["arms"][SEGMENTS]
            error, regret = arm["mean_segment_ece"], arm["regret"]
            yield "eight segments, 3,000 rows: mean ECE", "≤ .016", number(error), error <= 0.016
            yield "the same: Θ regret", "≤ 0.1 %", percent(regret, 3), regret <= 0.001


def _drift(parts: Document) -> Iterator[Line]:
    long = _result(parts, "drift_long")
    if long is not None:
        alarms = [level for level, _ in long["raised"]].count("act")
        yield f"false act alarms in {long['rows']:,} rows", "0", str(alarms), alarms == 0
    extra = _result(parts, "drift_extra")
    if extra is not None:
        entry = extra["benign"]["lr_act"]
        shown = f"{entry['alarmed']} of {entry['runs']} runs"
        yield (
            "act alarms while traffic drifts and calibration holds",
            "0",
            shown,
            not entry["alarmed"],
        )
    delay = _result(parts, "drift_delay")
    if delay is not None:
        tolerable = delay["tolerable shift -0.03"]["lr_act_0.01_1e6"]["detected"]
        yield "act alarms on a tolerable shift", "0", str(tolerable), tolerable == 0
        for shape, limit in (
            ("T x 1.6", 250),
            ("shift -0.8", 250),
            ("T x 1.25", 2000),
            ("shift -0.3", 2000),
        ):
            mean = delay[shape]["lr_act_0.01_1e6"]["mean_delay"]
            met = mean is not None and mean <= limit
            yield f"act delay, {shape}", f"≤ {limit:,} rows", count(mean), met
    speed = _result(parts, "drift_cost")
    if speed is not None:
        for name in ("lr_act_0.01_1e6", "warn_and_act_and_survival"):
            shown = f"{speed[name] / 1e6:.2f} M"
            yield f"rows a CPU second, {name}", "≥ 1 M", shown, speed[name] >= 1e6


def _gate(parts: Document) -> Iterator[Line]:
    found = _result(parts, "gate")
    if found is None:
        return
    for rows, entry in found["worse"].items():
        share = entry["promoted"] / entry["runs"]
        shown = f"{entry['promoted']} of {entry['runs']}"
        yield f"worse challengers promoted, fitted on {int(rows):,}", "≤ 5 %", shown, share <= 0.05
    day = found["hourly"]
    shown = f"{day['days_with_a_promotion']} of {day['days']}"
    met = day["days_with_a_promotion"] / day["days"] <= 0.05
    yield "days of hourly challengers with a wrong promotion", "≤ 5 %", shown, met
    better = _result(parts, "gate_better")
    if better is None:
        return
    median = better["T x 1.25"]["median_rows"]
    met = median is not None and median <= 1000
    yield "a better one (T x 1.25) is promoted after (median)", "≤ 1,000 rows", count(median), met
