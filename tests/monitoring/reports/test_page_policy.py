from __future__ import annotations

from monitoring.reports.page_policy import PAGE_POLICY


def test_nothing_is_fetched_run_or_sent() -> None:
    rules = dict(rule.strip().split(" ", 1) for rule in PAGE_POLICY.split(";"))
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
    assert set(rules) == {"default-src", "style-src", "base-uri", "form-action"}
    assert "http" not in PAGE_POLICY
