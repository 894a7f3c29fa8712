from __future__ import annotations

import numpy as np

from api.service_demo.replay import ENGINES, deal, read_rows, shipped_key
from calib.records import AcceptanceRecords, validate_rows
from calib.shipped import shipped_telemetry


def test_every_row_goes_to_one_engine_and_requests_stay_together() -> None:
    records = read_rows(shipped_telemetry(), 7)
    parts = deal(records)
    assert [part.engine for part in parts] == list(ENGINES)
    assert sum(len(part.records) for part in parts) == len(records)
    assert all(len(part.records) > len(records) / 6 for part in parts)
    requests = [set(part.records.request) for part in parts if part.records.request is not None]
    assert sum(map(len, requests)) == len(set.union(*requests))


def test_steps_are_whole_rows_in_order_under_the_engines_name() -> None:
    (part, *_) = deal(read_rows(shipped_telemetry(), 7))
    steps = list(part.steps())
    assert {len(step["verified"]) for step in steps[:-1]} == {512}
    joined = np.concatenate([step["confidence_logits"] for step in steps])
    assert np.array_equal(joined, part.records.confidence_logits)
    assert set(steps[0]["engine"]) == {part.engine}
    assert set(steps[0]["applied_form"]) == {"identity"}
    records, rejected = validate_rows(7, steps[0])
    assert (len(records), rejected) == (512, [])


def test_rows_without_a_request_are_dealt_one_by_one() -> None:
    records = AcceptanceRecords.from_columns(
        1, {"confidence_logits": np.zeros((300, 1)), "verified": [1] * 300, "accepted": [0] * 300}
    )
    assert min(len(part.records) for part in deal(records)) > 50


def test_the_key_is_for_the_shipped_block_size() -> None:
    assert shipped_key().gamma == 7
    assert shipped_key().slot_convention == "anchor_excluded"
