"""The study's numbers as Markdown tables, one section a part, for docs/study.md."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

__all__ = ["SECTIONS", "render", "replace_between_markers"]

BEGIN = "<!-- study: begin {} -->"
END = "<!-- study: end {} -->"
MISSING = "–"

Document = Mapping[str, Any]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def number(value: float | None, digits: int = 4) -> str:
    if value is None:
        return MISSING
    return f"{value:.{digits}f}".replace("0.", ".", 1) if abs(value) < 1 else f"{value:.{digits}f}"


def count(value: float | None) -> str:
    return MISSING if value is None else f"{value:,.0f}"


def percent(value: float | None, digits: int = 2) -> str:
    return MISSING if value is None else f"{100.0 * value:.{digits}f} %"


def cost(parts: Sequence[Document]) -> str:
    found = [cost_table(part["result"]) for part in parts]
    return "\n\n".join(found)


def cost_table(found: Document) -> str:
    rows = [
        [
            name,
            f"{entry['cpu_seconds']:.4g}",
            f"{entry['times_less_cpu']:,.4g}",
            MISSING if entry["extra_megabytes"] is None else str(entry["extra_megabytes"]),
        ]
        for name, entry in found["methods"].items()
    ]
    head = [f"{found['rows']:,} rows; SGLang is {found['sglang_is']}"]
    return table([*head, "CPU s", "times less CPU than SGLang", "extra MB"], rows)


def ece_against_rows(found_in: Sequence[Document]) -> str:
    """One table a number of rows and log: arms down, generators across."""
    tables = [found for part in found_in for found in part["result"]]
    parts = []
    for trimmed in (False, True):
        for rows in sorted({found["rows"] for found in tables}):
            chosen = [t for t in tables if t["rows"] == rows and t["trimmed"] is trimmed]
            if not chosen:
                continue
            log = "trimmed" if trimmed else "fully verified"
            head = [f"{rows:,} rows, {log}", *(found["shape"] for found in chosen)]
            body = [
                [name, *(number(found["ece"][name]) for found in chosen)]
                for name in chosen[0]["ece"]
            ]
            seeds = chosen[0]["seeds"]
            means = f"Means of {seeds} seeds." if seeds > 1 else "One seed."
            parts.append(f"{table(head, body)}\n\n{means}")
    return "\n\n".join(parts)


def censoring(parts: Sequence[Document]) -> str:
    """The largest log, trimmed beside whole."""
    tables = parts[-1]["result"]
    largest = tables[0]["rows"]
    chosen = [t for t in tables if t["shape"].startswith("leak")]
    head = [f"{largest:,} rows"]
    head += [f"{t['shape']}, {'trimmed' if t['trimmed'] else 'whole'}" for t in chosen]
    return table(
        head,
        [[name, *(number(t["ece"][name]) for t in chosen)] for name in chosen[0]["ece"]],
    )


def scores(parts: Sequence[Document]) -> str:
    found = parts[0]["result"]
    head = [
        f"{found['rows']:,} trimmed rows, {found['shape']}",
        "ECE",
        "AUC",
        "log loss",
        "Θ regret",
        "forecast of Θ off by",
    ]
    return table(
        head,
        [
            [
                name,
                number(arm["ece"]),
                number(arm["auc"]),
                number(arm["log_loss"]),
                percent(arm["regret"], 3),
                percent(arm["forecast_bias"]),
            ]
            for name, arm in found["arms"].items()
        ],
    )


def segments(parts: Sequence[Document]) -> str:
    shown = []
    for found in parts[0]["result"]:
        head = [
            f"{found['rows']:,} rows, {found['shape']}",
            "pooled ECE",
            "mean segment",
            "worst segment",
            "Θ regret",
        ]
        body = [
            [
                name,
                number(arm["pooled_ece"]),
                number(arm["mean_segment_ece"]),
                number(arm["worst_segment_ece"]),
                percent(arm["regret"], 3),
            ]
            for name, arm in found["arms"].items()
        ]
        shown.append(table(head, body))
    return "\n\n".join(shown)


def drift_cost(parts: Sequence[Document]) -> str:
    body = [[name, count(value)] for name, value in parts[0]["result"].items()]
    return table(["detector", "rows a CPU second"], body)


def drift_null(parts: Sequence[Document]) -> str:
    found = parts[0]["result"]
    traffics = list(next(iter(found.values())))

    def cell(entry: Document) -> str:
        rows = entry["rows"]
        shown = count(entry["alarms"] * 1e6 / rows)
        return shown if rows >= 1_000_000 else f"{shown} ({entry['alarms']} in {rows:,})"

    head = ["alarms per million calibrated rows", *(t.replace("_", " ") for t in traffics)]
    return table(head, [[name, *(cell(e[t]) for t in traffics)] for name, e in found.items()])


def drift_long(parts: Sequence[Document]) -> str:
    found = parts[0]["result"]
    raised = found["raised"]
    levels = [level for level, _ in raised]
    return (
        f"One run of {found['rows']:,} calibrated rows at A = 10⁶ (act) and 10⁵ (warn): "
        f"act alarms {levels.count('act')}, warn alarms {levels.count('warn')}. "
        f"The bounds allow {found['rows'] / 1e6:g} and {found['rows'] / 1e5:g}."
    )


def drift_run_length(parts: Sequence[Document]) -> str:
    return table(
        ["A = 10³, cut at 20,000 rows", "mean rows to a false alarm", "share before 1,000", "runs"],
        [
            [name, count(e["mean_rows"]), percent(e["share_before_1000"], 1), str(e["runs"])]
            for name, e in parts[0]["result"].items()
        ],
    )


def delay_cell(entry: Document) -> str:
    share = "" if entry["detected"] == entry["runs"] else f" ({entry['detected']}/{entry['runs']})"
    early = f", {entry['before_the_change']} early" if entry["before_the_change"] else ""
    return count(entry["mean_delay"]) + share + early


def drift_delay(parts: Sequence[Document]) -> str:
    found = parts[0]["result"]
    names = list(next(iter(found.values())))
    head = ["mean delay in rows", *names]
    return table(
        head, [[shape, *(delay_cell(e[name]) for name in names)] for shape, e in found.items()]
    )


def alarmed(entry: Document) -> str:
    share = f"{entry['alarmed']}/{entry['runs']}"
    return f"{count(entry['mean_rows'])} ({share})"


def drift_extra(parts: Sequence[Document]) -> str:
    found = parts[0]["result"]
    start = found["wrong_from_the_start"]
    names = list(next(iter(start.values())))
    first = table(
        ["wrong from row 0: rows to the alarm", *names],
        [[shape, *(alarmed(e[name]) for name in names)] for shape, e in start.items()],
    )
    one = found["one_segment"]
    second = table(
        ["T × 1.6 in one of ten segments", "rows to the alarm (runs)"],
        [[name, alarmed(one[name])] for name in ("stream a segment", "one pooled stream")],
    )
    note = (
        f"Calibrated segments flagged: {one['calibrated_segments_flagged']} of "
        f"{one['calibrated_segments']}."
    )
    third = table(
        ["traffic drifts, calibration holds", "runs with an alarm", "first alarm after rows"],
        [
            [name, f"{e['alarmed']}/{e['runs']}", count(e["mean_rows"])]
            for name, e in found["benign"].items()
        ],
    )
    return "\n\n".join([first, second, note, third])


def gate(parts: Sequence[Document]) -> str:
    found = parts[0]["result"]
    rows = [
        [
            f"worse challenger, fitted on {int(name):,} rows",
            f"{entry['promoted']} of {entry['runs']}",
            percent(entry["upper_bound"]),
        ]
        for name, entry in found["worse"].items()
    ]
    day = found["hourly"]
    rows.append(
        [
            "a day of hourly challengers that are no better",
            f"{day['days_with_a_promotion']} of {day['days']} days",
            percent(day["upper_bound"]),
        ]
    )
    return table(["promoted in error", "found", "95 % bound"], rows)


def gate_better(parts: Sequence[Document]) -> str:
    return table(
        [
            "stale champion; challenger fitted on 3,000 rows",
            "promoted",
            "within rows",
            "median rows",
        ],
        [
            [
                name,
                f"{entry['promoted']} of {entry['runs']}",
                count(entry["rows"]),
                count(entry["median_rows"]),
            ]
            for name, entry in parts[0]["result"].items()
        ],
    )


def real(parts: Sequence[Document]) -> str:
    found = parts[0]["result"]
    shown = [
        f"{found['rows']:,} rows of {found['prompts']} prompts, each judged by fits on the other "
        f"{found['folds'] - 1} of {found['folds']} folds of prompts."
    ]
    for log in ("full", "trimmed"):
        head = [
            f"fitted on rows {'as recorded' if log == 'full' else 'trimmed at R = 128'}",
            "debiased ECE [95 %]",
            "equal mass",
            "plug-in ECE",
            "AUC",
            "log loss",
            "Θ against segments [95 %]",
            "forecast of Θ off by",
        ]
        body = [
            [
                name,
                f"{percent(arm['debiased_ece'])} [{percent(arm['low'])}, {percent(arm['high'])}]",
                percent(arm["debiased_ece_equal_mass"]),
                percent(arm["ece"]),
                number(arm["auc"]),
                number(arm["log_loss"]),
                f"{percent(arm['theta_against_segments'])} "
                f"[{percent(arm['theta_low'])}, {percent(arm['theta_high'])}]",
                percent(arm["forecast_bias"]),
            ]
            for name, arm in found[log].items()
        ]
        shown.append(table(head, body))
    return "\n\n".join(shown)


def replay(found: Document) -> str:
    """Recorded shifts: delays, what was done, and the error of what was served before and after."""
    rows = []
    for name, document in found.items():
        if "happenings" not in document:
            continue
        kinds = [happening["kind"] for happening in document["happenings"]]
        delays = "; ".join(
            f"{d['stretch']}: {count(d['warn'])} / {count(d['act'])}" for d in document["delays"]
        )
        last = document["changes"][-1] if document["changes"] else None
        rows.append(
            [
                name.replace("_", " ") + (" (synthetic)" if document["synthetic"] else ""),
                delays or MISSING,
                str(kinds.count("schedule_fit")),
                str(kinds.count("promote")),
                str(kinds.count("refuse") + kinds.count("fit_refused")),
                MISSING if last is None else interval(last["ece_before"]),
                MISSING if last is None else interval(last["ece_after"]),
                MISSING if last is None else last["form"],
            ]
        )
    head = ["shift", "delay in rows, warn / act", "fits", "promoted", "refused"]
    return table([*head, "last change: ECE before", "after", "judged by"], rows)


def interval(found: Document) -> str:
    shown = percent(found["value"])
    return f"{shown} [{percent(found['low'])}, {percent(found['high'])}]"


ACCURACY = ("accuracy_1k", "accuracy_10k", "accuracy_100k")
SECTIONS: dict[str, tuple[tuple[str, ...], Callable[[Sequence[Document]], str]]] = {
    "cost": (("cost_100k", "cost_1m"), cost),
    "accuracy": (ACCURACY, ece_against_rows),
    "censoring": (ACCURACY, censoring),
    "peers": (("peers_1k", "peers_10k", "peers_100k"), ece_against_rows),
    "scores": (("scores",), scores),
    "segments": (("segments",), segments),
    "drift_cost": (("drift_cost",), drift_cost),
    "drift_null": (("drift_null",), drift_null),
    "drift_long": (("drift_long",), drift_long),
    "drift_run_length": (("drift_run_length",), drift_run_length),
    "drift_delay": (("drift_delay",), drift_delay),
    "drift_extra": (("drift_extra",), drift_extra),
    "gate": (("gate",), gate),
    "gate_better": (("gate_better",), gate_better),
    "real": (("real",), real),
}


def render(parts: Document, replays: Document) -> dict[str, str]:
    """Sections by the name of their markers; parts without a result are named as such."""
    found = {}
    for name, (wanted, section) in SECTIONS.items():
        there = [parts[part] for part in wanted if part in parts]
        text = [section(there), conditions(there)] if there else []
        missing = " ".join(part for part in wanted if part not in parts)
        if missing:
            text.append(f"*No result yet: `python benchmarks/study.py --only {missing}`.*")
        found[name] = "\n\n".join(text)
    if replays:
        found["replay"] = replay(replays)
    return found


def conditions(parts: Sequence[Document]) -> str:
    """Where and how long it ran."""
    machine = parts[-1]["machine"]
    seconds = sum(part["cpu_seconds"] for part in parts)
    load = machine["load_average"][0]
    return (
        f"*{seconds:,.0f} CPU seconds; {machine['processors']} cores, "
        f"load average {load:g} at the end.*"
    )


def replace_between_markers(page: str, sections: Mapping[str, str]) -> str:
    """The page with every named section replaced; text between other markers stays.

    Raises:
        ValueError: a section without its two markers.
    """
    for name, text in sections.items():
        begin, end = BEGIN.format(name), END.format(name)
        pattern = re.compile(re.escape(begin) + r".*?" + re.escape(end), re.DOTALL)
        found = pattern.search(page)
        if found is None:
            raise ValueError(f"no markers '{begin}' … '{end}' on the page")
        page = f"{page[: found.start()]}{begin}\n{text}\n{end}{page[found.end() :]}"
    return page
