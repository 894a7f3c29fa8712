"""What is said: drafter, where, evidence, since, cost, help; and nothing where nothing is known."""

from __future__ import annotations

from monitoring.alerts.messages import alert_message, test_message
from tests.monitoring.alerts.alert_messages import BASE, NOW, event, message


def test_everything_that_is_known_is_said() -> None:
    assert message().text.splitlines() == [
        "code drifts",
        "Drafter: code",
        "Where: position 3 of segment domain=chat",
        "Evidence: e-value 10^7.25 against calibration, alarm at 10^6; overconfident by 4.1 points",
        "Since: 2026-11-29T23:40:00Z",
        "Cost: about 1.8 % of throughput",
        "Severity: critical",
        "Run: dspark-calib drift code",
        "See: https://calib.example.org/drafters/code",
    ]


def test_what_is_not_known_is_left_out() -> None:
    bare = message(drafter=None, details={}, severity="warning")
    assert bare.text.splitlines() == [
        "code drifts",
        "Since: 2026-11-29T23:50:00.000Z",
        "Severity: warning",
        "See: https://calib.example.org/",
    ]


def test_other_forms_of_details_are_understood() -> None:
    found = message(
        details={
            "segment": "domain=code",
            "monitor": "silence",
            "evidence": 1000.0,
            "mean_residual": 0.02,
            "change_point": {"row": 900, "since": NOW - 3600.0},
        }
    )
    assert found.where == "segment domain=code of monitor silence"
    assert found.evidence == "e-value 10^3 against calibration; underconfident by 2.0 points"
    assert found.since == "2026-11-29T23:00:00.000Z"
    assert message(details={"reason": "8 rows"}).evidence == "8 rows"
    alarm = {"evidence_log10": 6.1, "leading": "overconfident at position 3", "segment": {}}
    assert message(details=alarm).evidence == (
        "e-value 10^6.1 against calibration; leading alternative: overconfident at position 3"
    )
    assert message(details=alarm).where is None
    odd = {"position": True, "evidence": {"wealth": 3}, "theta_loss": float("inf"), "since": 3e40}
    assert (message(details=odd).where, message(details=odd).evidence) == (None, None)
    assert message(details=odd).cost is None
    assert message(details=odd).since == "2026-11-29T23:50:00.000Z"


def test_worse_and_over_are_named_and_over_needs_no_command() -> None:
    assert message("escalated").headline == "Worse: code drifts"
    over = message("resolved", resolved_at=NOW)
    assert over.headline == "Resolved: code drifts"
    assert ("Until", "2026-11-30T00:00:00.000Z") in over.facts
    assert "Run:" not in over.text
    assert [message(kind).status for kind in ("opened", "escalated", "resolved", "noticed")] == [
        "firing",
        "firing",
        "resolved",
        "notice",
    ]


def test_names_are_safe_in_addresses() -> None:
    found = alert_message("opened", event(drafter="a/../b?x"), base_url=BASE)
    assert found.page == "https://calib.example.org/drafters/a%2F..%2Fb%3Fx"


def test_a_test_fire_has_everything_and_says_that_it_is_none() -> None:
    found = test_message(base_url=BASE, now=NOW)
    assert found.title.startswith("Test of dspark-calib")
    assert None not in (found.where, found.evidence, found.cost, found.command, found.cause)
