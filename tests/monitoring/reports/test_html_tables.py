from __future__ import annotations

from monitoring.reports.document_node import Node
from monitoring.reports.html_tables import Column, excluded_table, segments_table, table
from tests.monitoring.reports.page_reading import read_page


def test_the_first_column_names_the_rows() -> None:
    made = table("<t>", [Column("k", ["<1>"], is_text=True), Column("n", [2])], note="<note>")
    page = read_page(made.encode())
    assert [given.get("scope") for tag, given in page.tags if tag == "th"] == ["col", "col", "row"]
    assert page.text.replace(" ", "") == "<t>kn<1>2<note>"


def test_what_was_left_out_is_counted_with_its_reason() -> None:
    document = Node(
        {
            "window": {
                "excluded": {"warmup": 3, "replay": 0, "brand_new": 1},
                "duplicates_dropped": 2,
                "older_dropped": 0,
            },
            "telemetry": {"rejected": 4},
            "evaluation": {"excluded": {"warmup": 99}},
        }
    )
    made = excluded_table(document)
    assert made is not None
    page = read_page(made.encode())
    assert {pointer: shown for pointer, _, shown in page.numbers} == {
        "/window/excluded/warmup": "3",
        "/window/excluded/brand_new": "1",
        "/window/duplicates_dropped": "2",
        "/telemetry/rejected": "4",
    }
    assert "made while the engine warmed up" in page.text
    assert "brand new" in page.text
    assert excluded_table(Node({"evaluation": {"excluded": {"warmup": 0}}})) is None


def test_thin_slices_are_named_below_the_table() -> None:
    evaluation = Node(
        {
            "rows": 50,
            "minimum_segment_rows": 40,
            "overall": {},
            "segments": [
                {"tags": {"domain": "chat"}, "rows": 10, "comparison": None},
                {"tags": {"domain": "code"}, "rows": 40, "comparison": {"raw": {}}},
            ],
        }
    )
    page = read_page(segments_table(evaluation, recalibrated=False).encode())
    assert page.count("tr") == 3
    assert "domain=chat (10)." in page.text
    assert "Fewer than 40 rows" in page.text
