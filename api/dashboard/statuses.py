"""One word for how a drafter is, and plain sentences for why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from api.dashboard.drift_document import DriftDocument, DriftTest
from api.dashboard.fleet_queries import EngineCounts, TelemetryMark
from api.dashboard.formats import ago, plural, points, power_of_ten, seconds_of, signed_points
from api.dashboard.report_shelf import ReportSummary

__all__ = [
    "STATUSES",
    "Findings",
    "Status",
    "drift_sentence",
    "drift_subject",
    "headline",
    "sentences",
    "status_of",
]


@dataclass(frozen=True, slots=True)
class Status:
    """How a drafter is.

    Attributes:
        word: for machines and the style sheet.
        label: for people.
        symbol: tells it apart without colour.
        rank: the most urgent first.
        meaning: one sentence.
    """

    word: str
    label: str
    symbol: str
    rank: int
    meaning: str


_ALL: Final = (
    Status("drift", "Drift", "■", 0, "Confidence is no longer calibrated; evidence is enough."),
    Status("held", "Held", "◆", 1, "The data look wrong, so nothing is recalibrated from them."),
    Status("warning", "Warning", "▲", 2, "Evidence against calibration grows."),
    Status("stale", "Stale", "○", 3, "No telemetry has come for a while: nothing is known anew."),
    Status("silent", "Silent engines", "◌", 4, "Some engines have stopped polling."),
    Status("collecting", "Collecting", "…", 5, "Too few rows yet to say anything."),
    Status("calibrated", "Calibrated", "●", 6, "No test speaks against the calibration."),
)
STATUSES: Final = {status.word: status for status in _ALL}
"""Every status by its word, the most urgent first."""


@dataclass(frozen=True, slots=True)
class Findings:
    """What is known of a drafter.

    Attributes:
        drift: its drift document, or None.
        report: its newest report, or None.
        engines: who runs what.
        telemetry: totals.
        champion: number of the champion.
        now: seconds since the epoch.
        stale_after: age of the newest telemetry from which nothing is known anew.
    """

    drift: DriftDocument | None
    report: ReportSummary | None
    engines: EngineCounts
    telemetry: TelemetryMark
    champion: int
    now: float
    stale_after: float

    @property
    def silence(self) -> float | None:
        """Age of the newest telemetry in seconds; None where none ever came."""
        last = self.telemetry.last_received_at
        return None if last is None else max(0.0, self.now - last)

    @property
    def is_stale(self) -> bool:
        """Whether telemetry has stopped, by the service's own setting."""
        return self.silence is not None and self.silence > self.stale_after


def status_of(found: Findings) -> Status:
    """The most urgent status that holds."""
    word = found.drift.status if found.drift is not None else "collecting"
    if word in ("drift", "held", "warning"):
        return STATUSES[word]
    if found.is_stale:
        return STATUSES["stale"]
    return STATUSES["silent" if found.engines.silent else word]


def headline(found: Findings) -> str:
    """The most important thing about a drafter, in one sentence."""
    drift = found.drift
    if drift is not None and drift.status == "held":
        message = drift.holds[0].message if drift.holds else "a data-quality monitor holds"
        return f"Recalibration is held: {_closed(message)}"
    if drift is not None and drift.status in ("drift", "warning") and drift.leading is not None:
        return drift_sentence(drift.leading, drift.loudest_position)
    if found.telemetry.rows == 0:
        return "No telemetry has come yet."
    if found.silence is not None and found.is_stale:
        return f"No telemetry for {ago(found.silence)}."
    if found.report is not None and found.report.revision == found.champion:
        return report_sentence(found.report)
    if drift is None:
        return f"{plural(found.telemetry.rows, 'row')} so far; the first report is being made."
    return f"{plural(drift.rows, 'row')} since revision {drift.revision} was published."


def sentences(found: Findings) -> list[str]:
    """What holds beyond the headline, the most important first."""
    said: list[str] = []
    drift = found.drift
    if drift is not None:
        said += _tests(drift)
        said += [f"Recalibration is held: {_closed(held.message)}" for held in drift.holds]
        said += _trials(drift, found.now)
    counts = found.engines
    if counts.behind:
        said.append(f"{plural(counts.behind, 'engine')} still on an older publication.")
    if counts.silent:
        said.append(f"{plural(counts.silent, 'engine')} silent: no poll for a while.")
    if found.report is not None and found.report.revision == found.champion:
        said.append(report_sentence(found.report))
    elif found.report is not None:
        said.append(
            f"The newest report judges revision {found.report.revision}, not {found.champion}."
        )
    first = headline(found)
    return [sentence for sentence in dict.fromkeys(said) if sentence != first]


def report_sentence(report: ReportSummary) -> str:
    """How far what is served is off."""
    if report.gap is not None and report.gap_position is not None:
        said = signed_points(report.gap).capitalize()
        return f"{said} at position {report.gap_position} (survival)."
    if report.ece is None:
        return "The newest report had no rows to judge."
    level = (
        "" if report.perfect is None else f"; a perfect model would show {points(report.perfect)}"
    )
    return f"No position is off by more than chance: ECE {points(report.ece)} points{level}."


def drift_subject(test: DriftTest) -> str:
    """What a test looks at."""
    if test.scope == "position" and test.position is not None:
        return f"at position {test.position}"
    if test.scope == "segment" and test.segment_name is not None:
        place = "" if test.position is None else f", position {test.position}"
        return f"in {test.segment_name}{place}"
    return "over all positions"


def drift_sentence(test: DriftTest, loudest: int | None = None) -> str:
    """What a test has found: how far, where, how sure, since when.

    Args:
        test: it.
        loudest: position to name where the test is about all of them.
    """
    if test.mean_residual is None:
        found = "Off calibration"
    else:  # residuals are label minus confidence
        found = signed_points(-test.mean_residual).capitalize()
    level = "act" if test.status == "alarm" else "warn"
    threshold = test.threshold_log10.get(level)
    reached = test.evidence_log10
    if level == "warn" and test.warn_evidence_log10 is not None:
        reached = test.warn_evidence_log10  # by a test of its own, which is more easily stirred
    proof = f"evidence {power_of_ten(reached)}"
    if threshold is not None:
        proof += f", {level} level {power_of_ten(threshold)}"
    since = ""
    if test.change_point is not None and test.change_point.row is not None:
        since = f", since about {plural(test.change_point.row, 'row')} ago"
    where = drift_subject(test)
    if test.quantity == "survival":
        where += ", in survival"
    elif test.position is None and test.segment is None and loudest is not None:
        where += f", most at position {loudest}"
    return f"{found} {where} ({proof}){since}."


def _tests(drift: DriftDocument) -> list[str]:
    loud = [test for test in drift.tests if test.status in ("alarm", "warning")]
    loud.sort(key=lambda test: (test.status != "alarm", -test.share))
    if drift.leading in loud:
        loud.remove(drift.leading)  # the headline has it
    said = [drift_sentence(test) for test in loud[:3]]
    if len(loud) > 3:
        said.append(f"{plural(len(loud) - 3, 'more test')} beyond a level: see Drift.")
    if drift.status == "calibrated":
        said.append(
            f"No test has reached its warning level in {plural(drift.rows, 'row')} since "
            f"revision {drift.revision} was published."
        )
    return said


def _trials(drift: DriftDocument, now: float) -> list[str]:
    said = []
    trial = drift.challenger
    if trial is not None and trial.status == "collecting":
        said.append(
            f"Revision {trial.revision} runs beside the champion as challenger: "
            f"{plural(trial.rows, 'row')} compared so far."
        )
    if drift.watch is not None:
        said.append(
            f"Revision {drift.watch.revision} is new and watched: it is rolled back if "
            f"revision {drift.watch.previous} proves better."
        )
    if (seconds_of(drift.cool_down_until) or 0.0) > now:
        said.append("Automatic changes pause after the last one (cool-down).")
    return said


def _closed(message: str) -> str:
    text = message.strip() or "a data-quality monitor holds"
    return text if text.endswith((".", "!", "?")) else text + "."
