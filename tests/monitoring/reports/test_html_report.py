from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest

from calib.calibration import Calibration
from calib.records import AcceptanceRecords
from monitoring.reports.documents import evaluation_document, fit_document
from monitoring.reports.evaluation_report import evaluation_report
from monitoring.reports.fit_report import FitReport
from monitoring.reports.html_report import html_report
from tests.monitoring.reports.page_reading import Page, at_pointer, read_page
from tests.support.telemetry import TEMPERATURES, synthetic_records

HOSTILE = '"><script>alert(1)</script>&amp;<img src=x onerror="y">\x00\x1b\ud800\'</style>'
PRINTABLE = HOSTILE.translate(dict.fromkeys((0x0, 0x1B, 0xD800)))


@pytest.fixture(scope="module")
def document(fitted: FitReport) -> dict[str, Any]:
    return fit_document(fitted, notes=["a note"])


@pytest.fixture(scope="module")
def page(document: dict[str, Any]) -> Page:
    return read_page(html_report(document))


def judged(records: AcceptanceRecords, calibration: Calibration | None = None) -> dict[str, Any]:
    model = calibration or Calibration.identity(records.gamma)
    return evaluation_document(evaluation_report(records, model), model, source="rows")


def blocks(gamma: int, logits: Any, accepted: Any, **columns: Any) -> AcceptanceRecords:
    given = {
        "confidence_logits": np.asarray(logits, dtype=np.float32).reshape(-1, gamma),
        "verified": np.full(len(accepted), gamma),
        "accepted": np.asarray(accepted),
        **columns,
    }
    return AcceptanceRecords.from_columns(gamma, given)


def logit(share: float) -> float:
    return float(np.log(share / (1.0 - share)))


def test_every_number_is_the_one_of_the_json(document: dict[str, Any], page: Page) -> None:
    assert len(page.numbers) > 300
    for pointer, value, shown in page.numbers:
        member = at_pointer(document, pointer)
        assert float(value) == member, pointer
        plain = float(re.sub(r"[, %]", "", shown).replace("−", "-"))
        scale = 100.0 if "." in shown and plain == pytest.approx(100.0 * member, abs=0.051) else 1.0
        digits = len(shown.removesuffix(" %").partition(".")[2])
        assert plain == pytest.approx(scale * member, abs=0.501 * 10.0**-digits), pointer
    for pointer in page.blanks:
        assert at_pointer(document, pointer) is None


def test_each_position_shows_errors_of_both_views_before_and_after(page: Page) -> None:
    shown = {pointer for pointer, _, _ in page.numbers}
    overall = "/evaluation/overall"
    for view in ("survival", "conditional"):
        for k in range(7):
            for name in ("ece", "debiased_ece", "debiased_ece_low", "auc", "mean_prediction"):
                for side in ("raw", "calibrated"):
                    assert f"{overall}/{side}/{view}/positions/{k}/{name}" in shown
            for name in ("n", "effective_n", "null_level", "coverage", "mean_label"):
                assert f"{overall}/calibrated/{view}/positions/{k}/{name}" in shown
    assert f"{overall}/lengths/realised" in shown
    assert f"{overall}/lengths/raw/error_low" in shown
    assert "/references/isotonic/survival/weighted_mean/ece" in shown
    assert "/calibration/temperatures/6" in shown


def test_sentences_come_first_and_the_headline_before_them(
    document: dict[str, Any], page: Page
) -> None:
    text = page.text
    places = [text.index(said) for said in (document["headline"], *document["sentences"])]
    assert places[0] == min(places)
    assert max(places) < text.index("blocks judged")
    assert document["headline"].startswith("Over all positions the survival error falls from")
    assert "Note: a note." in text


def test_the_page_is_one_file_that_fetches_and_runs_nothing(document: dict[str, Any]) -> None:
    encoded = html_report(document)
    page = read_page(encoded)
    names = {name for name, _ in page.tags}
    assert not names & {"script", "img", "link", "iframe", "object", "embed", "image", "use", "a:"}
    for name, given in page.tags:
        for attribute, value in given.items():
            assert not attribute.startswith("on"), (name, attribute)
            if attribute in ("href", "src", "xlink:href", "action", "srcset", "data", "poster"):
                assert (value or "").startswith("#")
    assert b"@import" not in encoded
    assert b"url(" not in encoded
    assert b"://" not in encoded
    assert len(encoded) < 400_000


def test_readers_without_sight_or_mouse_are_served(page: Page) -> None:
    tags = page.tags
    assert dict(tags)["html"]["lang"] == "en"
    assert page.count("main") == page.count("h1") == 1
    charts = [given for name, given in tags if name == "svg"]
    assert len(charts) == 7 * 2 + 2 + 1
    assert all(given["role"] == "img" and given["aria-label"] for given in charts)
    assert len({given["aria-label"] for given in charts}) == len(charts)
    assert page.count("table") == page.count("caption")
    assert all(given["scope"] in ("col", "row") for name, given in tags if name == "th")
    scrolling = [given for _, given in tags if given.get("class") == "wide"]
    assert all(given["tabindex"] == "0" and given["aria-label"] for given in scrolling)
    links = [given["href"] for name, given in tags if name == "a"]
    targets = {f"#{given['id']}" for _, given in tags if "id" in given}
    assert set(links) <= targets


def test_hostile_names_stay_text() -> None:
    records = synthetic_records(3000, gamma=3)
    columns = dict(records.columns())
    domain = np.array(columns["domain"], dtype=object)
    domain[domain == "chat"] = PRINTABLE
    document = judged(AcceptanceRecords.from_columns(3, columns | {"domain": domain}))
    hostile = document | {"drafter": HOSTILE, "notes": [HOSTILE], "refusal": HOSTILE}
    encoded = html_report(hostile)
    page = read_page(encoded)
    names = {name for name, _ in page.tags}
    assert not names & {"script", "img"}
    assert page.count("style") == 1
    assert not any(attribute.startswith("on") for _, given in page.tags for attribute in given)
    assert page.text.count("<script>alert(1)</script>&amp;<img") >= 6
    assert PRINTABLE in page.text
    assert b"\x00" not in encoded
    assert b"\x1b" not in encoded


def test_without_rows_the_page_says_so() -> None:
    document = {
        "format": "dspark-calib/telemetry-report/1",
        "drafter": "code",
        "revision": 0,
        "created_at": "2026-11-29T12:00:00.000Z",
        "reason": "no_rows",
        "evaluation": None,
        "sentences": [],
        "window": {"rows": 12, "excluded": {"warmup": 12, "replay": 0}},
        "throughput": {"reason": "no cost table is known"},
        "revisions": [{"revision": 0, "temperatures": [1.0, 1.0], "alias": "champion"}],
    }
    page = read_page(html_report(document))
    assert "Calibration of code" in page.text
    assert "Revision 0 · 2026-11-29 12:00 UTC" in page.text
    assert "There is nothing to judge yet: no rows." in page.text
    assert "made while the engine warmed up" in page.text
    assert "Not known: no cost table is known." in page.text
    assert page.count("svg") == 0


def test_an_evaluation_of_no_rows_has_dashes_and_no_curves() -> None:
    document = judged(AcceptanceRecords.empty(2))
    page = read_page(html_report(document))
    assert page.count("svg", "reliability") == 4
    assert page.count("circle") == page.count("rect", "bar") == 0
    assert len(page.blanks) > 20


def test_one_position_only() -> None:
    rows = 400
    draw = np.random.default_rng(0)
    accepted = (draw.random(rows) < 0.7).astype(int)
    document = judged(blocks(1, np.full(rows, 3.0), accepted))
    page = read_page(html_report(document))
    assert page.count("svg", "reliability") == 2
    assert "overconfident by" in document["headline"]
    assert document["headline"] in page.text


def test_a_document_of_another_release_makes_a_page() -> None:
    assert read_page(html_report({})).count("h1") == 1
    strange = {
        "evaluation": {"overall": {"raw": [1], "calibrated": {"survival": 3}}, "rows": "many"},
        "sentences": "no list",
        "revisions": {"a": 1},
        "notes": [None, {"x": 1}],
        "references": [1],
    }
    assert read_page(html_report(strange)).count("h1") == 1


def test_r09_one_class_has_no_auc_but_its_reason() -> None:
    document = judged(blocks(1, [1.0, 2.0, 0.5] * 50, [1] * 150))
    position = document["evaluation"]["overall"]["raw"]["conditional"]["positions"][0]
    assert position["auc"] is None
    assert position["ece"] is not None
    page = read_page(html_report(document))
    assert "– one class" in page.text
    pointer = "/evaluation/overall/raw/conditional/positions/0/"
    assert pointer + "auc" in page.blanks
    assert pointer + "ece" in {found for found, _, _ in page.numbers}


def test_r14_a_small_ece_stands_beside_the_worst_bin() -> None:
    logits = [logit(0.9)] * 980 + [logit(0.1)] * 20
    document = judged(blocks(1, logits, [1] * 882 + [0] * 98 + [1] * 20))
    shown = {pointer: text for pointer, _, text in read_page(html_report(document)).numbers}
    place = "/evaluation/overall/raw/conditional/positions/0/"
    assert (shown[place + "ece"], shown[place + "worst_bin_gap"]) == ("1.8", "90.0")


def test_r16_errors_that_cancel_in_the_product_show_in_the_conditional_view() -> None:
    """True rates .7 and .8, confidences .8 and .7: 1,000 blocks, 700 pass 1, 560 pass both."""
    accepted = [0] * 300 + [1] * 140 + [2] * 560
    document = judged(blocks(2, [[logit(0.8), logit(0.7)]] * 1000, accepted))
    shown = {pointer: text for pointer, _, text in read_page(html_report(document)).numbers}
    place = "/evaluation/overall/raw/{}/positions/{}/ece"
    assert shown[place.format("survival", 1)] == "0.0"
    assert shown[place.format("conditional", 0)] == "10.0"
    assert shown[place.format("conditional", 1)] == "10.0"


def test_r37_coverage_stands_beside_the_rate_among_verified() -> None:
    """60 of 100 blocks verified to position 3, 54 accepted there."""
    records = AcceptanceRecords.from_columns(
        3,
        {
            "confidence_logits": np.full((100, 3), 1.0, dtype=np.float32),
            "verified": np.array([3] * 60 + [2] * 40),
            "accepted": np.array([3] * 54 + [2] * 46),
        },
    )
    shown = {p: text for p, _, text in read_page(html_report(judged(records))).numbers}
    place = "/evaluation/overall/raw/survival/positions/2/"
    assert (shown[place + "coverage"], shown[place + "mean_label"]) == ("60.0 %", "90.0")


def test_r43_what_nobody_observed_is_a_dash_and_never_zero() -> None:
    document = judged(blocks(3, [[0.5] * 3] * 10, [0] * 10))
    page = read_page(html_report(document))
    shown = {pointer: text for pointer, _, text in page.numbers}
    place = "/evaluation/overall/raw/{}/positions/1/mean_label"
    assert shown[place.format("survival")] == "0.0"
    assert place.format("conditional") in page.blanks
    assert shown["/evaluation/overall/lengths/realised"] in ("1.00", "1.000")


def test_r53_the_share_of_a_tenant_that_sends_most_rows_is_named() -> None:
    tenant = np.array(["a"] * 95 + ["b"] * 5, dtype=object)
    document = judged(blocks(1, [0.5] * 100, [1, 0] * 50, tenant=tenant))
    assert document["evaluation"]["tenant_shares"] == [0.95, 0.05]
    page = read_page(html_report(document))
    assert "One tenant sent 95 % of these blocks" in page.text


def test_nothing_is_compared_where_nothing_was_recalibrated() -> None:
    page = read_page(html_report(judged(synthetic_records(600, gamma=3))))
    assert page.count("circle", "served") == 0
    assert "raw → recalibrated" not in page.text


def test_temperatures_over_revisions_are_a_chart_and_a_table() -> None:
    truth = Calibration.from_temperatures(TEMPERATURES[:3], gamma=3)
    document = judged(synthetic_records(600, gamma=3), truth)
    document["revisions"] = [
        {"revision": n, "alias": alias, "temperatures": [1.0 + 0.1 * n, 1.2, 1.3 - 0.1 * n]}
        for n, alias in enumerate((None, "previous", "champion"))
    ]
    page = read_page(html_report(json.loads(json.dumps(document))))
    shown = {pointer: text for pointer, _, text in page.numbers}
    assert shown["/revisions/2/temperatures/0"] == "1.200"
    labels = [given.get("aria-label") or "" for name, given in page.tags if name == "svg"]
    assert any(label.startswith("Temperature of each position") for label in labels)
