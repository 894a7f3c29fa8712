"""The description of a row follows the row contract."""

from __future__ import annotations

from typing import Any

from api.telemetry_documentation import REQUEST_BODY, TelemetryAnswer
from api.telemetry_requests import ARROW, JSON, answer_of
from calib.record_schema import COLUMNS, Presence
from monitoring.ingest import parse_json_batch
from tests.calib.record_batches import plain_columns
from tests.monitoring.batch_bodies import json_columns, json_rows, row

FORMS: list[dict[str, Any]] = REQUEST_BODY["content"][JSON]["schema"]["oneOf"]


def test_every_column_is_described_in_both_forms() -> None:
    rows = FORMS[0]["properties"]["rows"]["items"]
    columns = FORMS[1]["properties"]["columns"]
    names = [column.name for column in COLUMNS]
    assert list(rows["properties"]) == list(columns["properties"]) == names
    required = [column.name for column in COLUMNS if column.presence is Presence.REQUIRED]
    assert rows["required"] == columns["required"] == required
    assert all(rows["properties"][column.name]["description"] == column.doc for column in COLUMNS)


def test_examples_are_taken() -> None:
    content = REQUEST_BODY["content"][JSON]["examples"]
    rows = content["rows"]["value"]
    assert len(parse_json_batch(json_rows(rows["rows"], rows["gamma"]), 3).records) == 1
    columns = content["columns"]["value"]
    parsed = parse_json_batch(json_columns(columns["columns"], columns["gamma"]), 3)
    assert len(parsed.records) == 1


def test_answers_have_the_described_form() -> None:
    parsed = parse_json_batch(json_rows([row(), row(verified=9)]), 3)
    assert TelemetryAnswer.model_validate(answer_of(parsed), strict=True).accepted == 1
    assert parse_json_batch(json_columns(plain_columns()), 3).rejected == ()


def test_both_media_types_are_described() -> None:
    assert set(REQUEST_BODY["content"]) == {JSON, ARROW}
