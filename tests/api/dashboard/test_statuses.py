from __future__ import annotations

import json
from typing import Any

import pytest

from api.dashboard.drift_document import DriftDocument, read_drift
from api.dashboard.fleet_queries import EngineCounts, TelemetryMark
from api.dashboard.report_shelf import ReportSummary
from api.dashboard.statuses import STATUSES, Findings, headline, sentences, status_of
from tests.api.dashboard.seeding import drift_document, drift_test

NOW = 1e9


def drift(**more: Any) -> DriftDocument:
    found = read_drift(json.dumps(drift_document("a", NOW, **more)).encode())
    assert found is not None
    return found


def findings(
    document: DriftDocument | None = None,
    *,
    report: ReportSummary | None = None,
    engines: EngineCounts | None = None,
    rows: int = 1000,
    silence: float = 5.0,
) -> Findings:
    mark = TelemetryMark(rows, 0, NOW - silence if rows else None)
    return Findings(document, report, engines or EngineCounts(3), mark, 1, NOW, 1800.0)


SILENT = EngineCounts(on_champion=2, silent=1)


@pytest.mark.parametrize(
    ("found", "word"),
    [
        (findings(drift()), "calibrated"),
        (findings(drift(peak=5.5)), "warning"),
        (findings(drift(peak=7.0)), "drift"),
        (findings(drift(status="held")), "held"),
        (findings(), "collecting"),
        (findings(rows=0), "collecting"),
        (findings(drift(), silence=7200.0), "stale"),
        (findings(drift(), engines=SILENT), "silent"),
        # What is more urgent is never hidden by what is less so.
        (findings(drift(peak=7.0), silence=7200.0, engines=SILENT), "drift"),
    ],
)
def test_the_most_urgent_status_is_shown(found: Findings, word: str) -> None:
    assert status_of(found).word == word


def test_every_status_has_a_symbol_of_its_own() -> None:
    symbols = [status.symbol for status in STATUSES.values()]
    assert len(set(symbols)) == len(symbols) == 7


def test_drift_is_told_plainly() -> None:
    # Residuals are label minus confidence: negative is overconfident.
    test = drift_test(3, 7.25, mean_residual=-0.04)
    found = findings(drift(peak=7.0, tests=[drift_test(1, 0.2), test]))
    assert headline(found) == (
        "Overconfident by 4.0 points at position 3 (evidence 10⁷·², act level 10⁶), since about "
        "1,230 rows ago."
    )


def test_a_test_of_all_positions_names_the_loudest() -> None:
    pooled = drift_test(None, 4.0, mean_residual=None, status="warning", warn_evidence_log10=5.5)
    found = findings(drift(peak=5.5, tests=[pooled, drift_test(2, 1.0), drift_test(5, 3.0)]))
    assert headline(found) == (
        "Off calibration over all positions, most at position 5 (evidence 10⁵·⁵, warn level 10⁵)."
    )


def test_all_traffic_is_told_before_a_loud_segment() -> None:
    segment = {"scope": "segment", "segment": {"domain": "code"}, "mean_residual": None}
    tests = [drift_test(None, 7.0, mean_residual=-0.02), drift_test(None, 30.0, **segment)]
    found = findings(drift(peak=7.0, tests=tests))
    assert headline(found).startswith("Overconfident by 2.0 points over all positions")
    assert sentences(found)[0].startswith("Off calibration in domain=code (evidence 10³⁰")


def test_a_hold_says_what_is_wrong() -> None:
    held = {"monitor": "x", "status": "held", "message": "acceptance is exactly 1"}
    found = findings(drift(status="held", data_quality=[held]))
    assert headline(found) == "Recalibration is held: acceptance is exactly 1."
    assert sentences(found).count(headline(found)) == 0  # once is enough


@pytest.mark.parametrize(
    ("report", "told"),
    [
        (
            ReportSummary(1, NOW, ece=0.02, gap_position=3, gap=0.04),
            "Overconfident by 4.0 points at position 3 (survival).",
        ),
        (
            ReportSummary(1, NOW, ece=0.009, perfect=0.005),
            "No position is off by more than chance: ECE 0.9 points; a perfect model would show "
            "0.5.",
        ),
    ],
)
def test_without_drift_the_report_speaks(report: ReportSummary, told: str) -> None:
    assert headline(findings(report=report)) == told


def test_the_report_speaks_beside_an_alarm() -> None:
    report = ReportSummary(1, NOW, ece=0.02, gap_position=3, gap=0.04)
    told = sentences(findings(drift(peak=7.0), report=report))
    assert "Overconfident by 4.0 points at position 3 (survival)." in told


def test_a_report_on_another_revision_is_called_old() -> None:
    found = findings(drift(), report=ReportSummary(0, NOW, ece=0.1))
    assert "The newest report judges revision 0, not 1." in sentences(found)


def test_what_holds_besides_is_told_too() -> None:
    trial = {"revision": 2, "status": "collecting", "rows": 4100}
    watch = {"revision": 1, "previous": 0}
    cool = {"cool_down_until": "2001-09-09T01:46:41Z"}  # a second after NOW
    counts = EngineCounts(on_champion=3, behind=1, silent=2)
    told = sentences(findings(drift(challenger=trial, watch=watch, **cool), engines=counts))
    assert told == [
        "No test has reached its warning level in 24,000 rows since revision 0 was published.",
        "Revision 2 runs beside the champion as challenger: 4,100 rows compared so far.",
        "Revision 1 is new and watched: it is rolled back if revision 0 proves better.",
        "Automatic changes pause after the last one (cool-down).",
        "1 engine still on an older publication.",
        "2 engines silent: no poll for a while.",
    ]
