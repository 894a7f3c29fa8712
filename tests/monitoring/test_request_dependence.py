"""Dependence of the rows of a request, from sums that are kept while requests interleave."""

from __future__ import annotations

import numpy as np
import pytest

from calib.records import AcceptanceRecords
from monitoring import request_dependence
from monitoring.detectors.observations import Observations
from monitoring.detectors.residuals import conditional_residual
from monitoring.request_dependence import RequestDependence
from tests.monitoring.traffic import GAMMA, Traffic, shared_luck_traffic


def named(traffic: Traffic, requests: list[str | None], engine: str = "e") -> AcceptanceRecords:
    count = len(traffic)
    return AcceptanceRecords.from_columns(
        GAMMA,
        {
            "confidence_logits": np.zeros((count, GAMMA), dtype=np.float32),
            "verified": traffic.verified,
            "accepted": traffic.accepted,
            "engine": [engine] * count,
            "request": requests,
        },
    )


def folded(observed: Observations, records: AcceptanceRecords, batch: int) -> RequestDependence:
    found = RequestDependence()
    for start in range(0, len(records), batch):
        part = slice(start, start + batch)
        found = found.add(observed.select(part), records.select(part))
    return found


@pytest.mark.parametrize("batch", [64, 700, 12_800])
def test_what_a_request_shares_is_measured_across_folds(batch: int) -> None:
    """Against sums over whole requests, which need all rows at once."""
    traffic = shared_luck_traffic(np.random.default_rng(3), 12_800, side_by_side=1)
    order = np.arange(12_800).reshape(128, 100).T.ravel()  # 128 requests, a row each in turn
    observed = traffic.served().select(order)
    records = named(traffic, [f"r{row // 100}" for row in range(12_800)]).select(order)
    residual = conditional_residual(observed) - conditional_residual(observed).mean()
    sums = np.bincount(order // 100, residual)
    found = folded(observed, records, batch).estimate()
    assert found is not None
    assert (found.requests, found.rows) == (128, 12_800)
    expected = float(sums @ sums) / float(residual @ residual)
    assert found.design_effect == pytest.approx(expected, rel=0.08)
    assert found.design_effect == pytest.approx(1.0 + 99.0 * found.intraclass)


def test_open_requests_are_bounded_and_closed_ones_still_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    traffic = shared_luck_traffic(np.random.default_rng(4), 6000, side_by_side=1)
    observed = traffic.served()
    records = named(traffic, [f"r{row // 100}" for row in range(6000)])
    whole = folded(observed, records, 250)
    monkeypatch.setattr(request_dependence, "OPEN_REQUESTS", 8)
    bounded = folded(observed, records, 250)
    assert (len(whole.keys), len(bounded.keys), bounded.requests) == (60, 8, 52)
    one, other = whole.estimate(), bounded.estimate()
    assert one is not None
    assert other is not None
    assert other.design_effect == pytest.approx(one.design_effect)


def test_rows_without_a_request_are_left_out_and_few_requests_say_nothing() -> None:
    traffic = shared_luck_traffic(np.random.default_rng(5), 300)
    nobody = RequestDependence().add(traffic.served(), named(traffic, [None] * 300))
    assert (nobody.rows, nobody.estimate()) == (0, None)
    some = named(traffic, [None if row % 3 else f"r{row % 30}" for row in range(300)])
    found = RequestDependence().add(traffic.served(), some)
    assert (found.rows, len(found.keys), found.estimate()) == (100, 10, None)


def test_engines_may_name_their_requests_alike() -> None:
    traffic = shared_luck_traffic(np.random.default_rng(6), 100)
    names: list[str | None] = [f"r{row % 10}" for row in range(100)]
    parts = [named(traffic, names, engine) for engine in ("a", "b")]
    both = AcceptanceRecords.concatenate(parts)
    observed = traffic.served()
    twice = Observations(np.concatenate([observed.conditional] * 2), both.verified, both.accepted)
    apart = RequestDependence().add(observed, parts[0]).add(observed, parts[1])
    assert len(RequestDependence().add(twice, both).keys) == len(apart.keys) == 20
