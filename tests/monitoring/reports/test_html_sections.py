from __future__ import annotations

from typing import Any

import pytest

from monitoring.reports.document_node import Node
from monitoring.reports.html_sections import Sides, method_word, sections
from monitoring.reports.markup import joined
from tests.monitoring.reports.page_reading import Page, read_page


def shown(document: dict[str, Any]) -> Page:
    return read_page(joined(sections(Node(document))).encode())


def test_a_refusal_is_said_once_and_first() -> None:
    page = shown(
        {
            "refusal": "not_better: worse by 2 points",
            "sentences": ["Nothing is published. not_better: worse by 2 points.", "More."],
        }
    )
    assert page.text.count("worse by 2 points") == 1
    assert page.text.startswith("In shortNothing is published: not_better")


def test_both_sides_are_one_where_nothing_was_recalibrated() -> None:
    side = {"survival": {"positions": []}}
    same = Sides.of(Node({"evaluation": {"overall": {"raw": side, "calibrated": dict(side)}}}))
    other = {"survival": {"positions": [{"n": 1}]}}
    differ = Sides.of(Node({"evaluation": {"overall": {"raw": side, "calibrated": other}}}))
    assert (same.recalibrated, same.served("survival"), same.served_name) == (False, None, "raw")
    assert differ.recalibrated
    assert len(differ.served("survival") or ()) == 1


def test_regret_is_shown_with_its_interval_where_the_cost_is_known() -> None:
    replay = {"theta": 4802.1, "predicted_theta": 4710.8, "tau": 100.9, "steps": 438}
    page = shown(
        {
            "throughput": {
                "loss": 0.0125,
                "loss_low": 0.01,
                "loss_high": 0.015,
                "raw": replay,
                "calibrated": replay | {"theta": 4863.0},
                "loads": [{"requests": 32, "loss": 0.5, "modelled_share": 0.25}],
                "segments": [{"tags": {"domain": "<b>"}, "rows": 9, "value": 0.125}],
            }
        }
    )
    numbers = {pointer: text for pointer, _, text in page.numbers}
    assert numbers["/throughput/loss"] in ("1.2 %", "1.3 %")
    assert numbers["/throughput/loss_low"] == "1.0 %"
    assert numbers["/throughput/calibrated/theta"] == "4,863.0"
    assert "Replay of 438 steps" in page.text
    assert numbers["/throughput/loads/0/loss"] == "50.0 %"
    assert numbers["/throughput/loads/0/modelled_share"] == "25.0 %"
    assert numbers["/throughput/segments/0/value"] == "12.5 %"
    assert "domain=<b>" in page.text


def test_r22_a_position_that_no_temperature_can_fit_says_so() -> None:
    reason = "no positive temperature moves a confidence across 0.5; the affine form can"
    page = shown(
        {
            "calibration": {
                "method": "sts",
                "status": "partial",
                "temperatures": [1.0],
                "slopes": [0.961],
                "intercepts": [-0.495],
                "position_statuses": ["temperature_cannot_fit"],
                "evidence": {"positions": [{"reason": reason}]},
            }
        }
    )
    assert "temperature cannot fit" in page.text
    assert reason in page.text
    assert "0.961" in page.text
    assert "−0.495" in page.text


@pytest.mark.parametrize(("imputed", "expected"), [(True, "survival"), (False, "sts")])
def test_a_projection_is_called_by_the_method_that_made_it(imputed: bool, expected: str) -> None:
    calibration = {"method": "sts", "evidence": {"imputed_survival": imputed}}
    assert method_word(Node(calibration)) == expected
    page = shown({"calibration": {**calibration, "temperatures": [1.2], "status": "fitted"}})
    assert f"{expected}, fitted" in page.text


def test_raw_confidence_has_no_temperatures_to_show() -> None:
    page = shown({"calibration": {"method": "identity", "temperatures": [1.0]}})
    assert "Temperatures" not in page.text
