from __future__ import annotations

import json

from api.dashboard.report_document import read_report

POSITION = {
    "n": 4,
    "mean_prediction": 0.6,
    "mean_label": 0.5,
    "ece": 0.1,
    "bins": [None, {"count": 4, "mean_prediction": 0.6, "mean_label": 0.5, "more": 1}],
    "reasons": {},
}


def document(**more: object) -> bytes:
    side = {"survival": {"positions": [POSITION], "weighted_mean": {"ece": 0.1}}}
    values = {
        "revision": 3,
        "created_at": "2026-11-29T23:41:07Z",
        "evaluation": {
            "gamma": 1,
            "rows": 4,
            "overall": {"raw": side, "calibrated": side},
            "segments": [{"tags": {"domain": "chat", "adapter": "a"}, "rows": 2}],
        },
        **more,
    }
    return json.dumps(values).encode()


def test_bins_know_their_edges_and_empty_ones_are_left_out() -> None:
    report = read_report(document())
    assert report is not None
    assert report.evaluation is not None
    (position,) = report.evaluation.overall.raw.positions("survival")
    (found,) = position.bins
    assert (found.lower, found.upper, found.count) == (0.5, 1.0, 4)
    assert (found.low, found.high) == (0.5, 0.5)  # no interval was given
    assert position.gap == 0.09999999999999998
    assert report.evaluation.overall.raw.positions("conditional") == []
    assert report.evaluation.segments[0].name == "adapter=a, domain=chat"


def test_a_report_without_rows_says_why() -> None:
    report = read_report(document(evaluation=None, reason="no_rows"))
    assert report is not None
    assert (report.evaluation, report.reason) == (None, "no_rows")


def test_what_cannot_be_read_is_no_report() -> None:
    assert read_report(b'{"revision": "x"}') is None
    assert read_report(b"[]") is None
    assert read_report(b"") is None
