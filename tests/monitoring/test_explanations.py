"""Differences are measured right, add up exactly and never judge."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from calib.errors import FormatError, RecordError
from calib.records import AcceptanceRecords
from monitoring.explanations import (
    TrafficSummary,
    explain,
    kolmogorov_smirnov,
    population_stability_index,
)


def batch(rows: int, seed: int = 0, shift: float = 0.0, **columns: Any) -> AcceptanceRecords:
    rng = np.random.default_rng(seed)
    data = {
        "confidence_logits": rng.normal(size=(rows, 2)) + shift,
        "verified": np.full(rows, 2),
        "accepted": rng.integers(0, 3, rows),
    }
    return AcceptanceRecords.from_columns(2, data | columns)


def test_population_stability_index_by_hand() -> None:
    # Half a row is added: shares 700.5/1001 and 300.5/1001; (q − p) ln(q/p), twice.
    p, q = 700.5 / 1001, 300.5 / 1001
    expected = 2 * (q - p) * np.log(q / p)
    assert population_stability_index([700, 300], [300, 700]) == pytest.approx(expected)
    assert population_stability_index([5, 0, 5], [10, 0, 10]) == pytest.approx(0.0, abs=1e-12)
    assert population_stability_index([10, 0], [0, 10]) == pytest.approx(5.535, abs=1e-3)  # finite
    assert population_stability_index([0, 0], [1, 2]) is None


def test_kolmogorov_smirnov_by_hand() -> None:
    assert kolmogorov_smirnov([1, 1, 2], [2, 1, 1]) == pytest.approx(0.25)
    assert kolmogorov_smirnov([4, 0], [0, 4]) == 1.0
    assert kolmogorov_smirnov([1, 2], [0, 0]) is None


def test_counts_are_checked() -> None:
    for wrong in ([1.0], [1.0, -1.0]):
        with pytest.raises(RecordError):
            population_stability_index([1.0, 2.0], wrong)


def test_summaries_add_exactly_and_survive_json() -> None:
    domain = np.array(["code", "chat", None, "code"] * 50, dtype=object)
    whole = batch(200, domain=domain)
    parts = TrafficSummary.from_records(whole.select(slice(0, 70)))
    parts = parts + TrafficSummary.from_records(whole.select(slice(70, 200)))
    assert parts.to_dict() == TrafficSummary.from_records(whole).to_dict()
    assert parts.tags == {"domain": {"(unknown)": 50, "chat": 50, "code": 100}}
    stored = json.loads(json.dumps(parts.to_dict(), allow_nan=False))
    assert TrafficSummary.from_dict(stored).to_dict() == parts.to_dict()
    with pytest.raises(FormatError, match="traffic summary"):
        TrafficSummary.from_dict({})


def test_only_usable_rows_count() -> None:
    records = batch(100).with_flag(1, np.arange(40))
    assert TrafficSummary.from_records(records).logit_counts.sum(axis=1).tolist() == [60, 60]


def test_extreme_logits_have_a_cell() -> None:
    logits = np.array([[3e38, -3e38]] * 3)
    counts = TrafficSummary.from_records(batch(3, confidence_logits=logits)).logit_counts
    assert (counts[0, -1], counts[1, 0]) == (3, 3)


def test_what_changed_is_named_and_ranked() -> None:
    before = batch(4000, domain=np.array(["code"] * 3000 + ["chat"] * 1000, dtype=object))
    after = batch(
        4000,
        seed=1,
        shift=0.2,
        accepted=np.zeros(4000, int),
        domain=np.array(["code"] * 400 + ["chat"] * 3600, dtype=object),
    )
    found = explain(TrafficSummary.from_records(before), TrafficSummary.from_records(after))
    assert found.changes[0].what == "mix of domain"
    assert found.changes[0].sentence.endswith("chat went from 25.0% to 90.0% of the rows")
    by_name = {(change.what, change.measure): change.value for change in found.changes}
    assert by_name[("confidence at position 1", "psi")] > 0.02
    assert by_name[("mean verified length", "difference")] == 0.0
    assert by_name[("acceptance at position 1", "difference")] == pytest.approx(-0.667, abs=0.03)
    assert ("acceptance at position 2", "difference") not in by_name  # nobody reached it
    assert not hasattr(found, "alarm")
    assert json.dumps(found.to_dict(), allow_nan=False)


def test_same_traffic_differs_by_sampling_only() -> None:
    before, after = batch(20_000), batch(20_000, seed=1)
    found = explain(TrafficSummary.from_records(before), TrafficSummary.from_records(after))
    index = [change.value for change in found.changes if change.measure == "psi"]
    assert max(index) < 4 * 2 * 63 / 20_000


def test_empty_sides_and_other_gammas() -> None:
    some = TrafficSummary.from_records(batch(10))
    none = TrafficSummary.from_records(AcceptanceRecords.empty(2))
    assert explain(some, none).changes == ()
    with pytest.raises(RecordError, match="gamma"):
        explain(some, TrafficSummary.from_records(AcceptanceRecords.empty(3)))
