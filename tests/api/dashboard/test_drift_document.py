from __future__ import annotations

import json

import pytest

from api.dashboard.drift_document import read_drift
from api.drift_schemas import DriftDocument as Contract
from tests.api.dashboard.seeding import drift_document


def test_it_reads_what_the_contract_writes() -> None:
    written = json.dumps(drift_document("a", 1e9, peak=7.2))
    Contract.model_validate_json(written, strict=True)
    drift = read_drift(written.encode())
    assert drift is not None
    assert drift.status == "drift"
    assert (drift.threshold_log10("warn"), drift.threshold_log10("act")) == (5.0, 6.0)
    worst = drift.worst
    assert worst is not None
    assert (worst.position, worst.share) == (3, pytest.approx(1.2))
    assert drift.tests[-1].segment_name == "domain=chat"
    assert len(drift.history) == 60
    assert drift.explanations.told == [
        ("acceptance", "62.0%", "55.0%"),
        ("verified length", "4.10", "3.90"),
        ("domain=chat", "31.0%", "64.0%"),
    ]


def test_holds_are_the_monitors_that_hold() -> None:
    quality = [{"monitor": "a", "status": "calm"}, {"monitor": "b", "status": "held"}]
    drift = read_drift(json.dumps({"status": "held", "data_quality": quality}).encode())
    assert drift is not None
    assert [held.monitor for held in drift.holds] == ["b"]


def test_members_that_are_missing_or_new_do_no_harm() -> None:
    drift = read_drift(b'{"status": "collecting", "news": {"of": "tomorrow"}}')
    assert drift is not None
    assert (drift.worst, drift.threshold_log10("act"), drift.challenger) == (None, None, None)


@pytest.mark.parametrize("document", [b"", b"[]", b'{"status": "fine"}', b'{"tests": 3}'])
def test_what_cannot_be_read_is_no_document(document: bytes) -> None:
    assert read_drift(document) is None
