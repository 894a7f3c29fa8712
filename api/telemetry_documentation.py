"""How telemetry is described in OpenAPI: the columns of a row come from the row contract itself."""

from __future__ import annotations

from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field

from api.documentation import describe
from calib.formats.arrow import GAMMA_KEY, VERSION_KEY
from calib.record_schema import (
    COLUMNS,
    MAX_GAMMA,
    MAX_TEXT_LENGTH,
    Column,
    ColumnKind,
    Presence,
)

__all__ = ["ACCEPTED", "REQUEST_BODY", "RejectedRowView", "TelemetryAnswer"]

_TYPES: Final = {
    ColumnKind.FLOAT: "number",
    ColumnKind.INTEGER: "integer",
    ColumnKind.BOOLEAN: "boolean",
    ColumnKind.TEXT: "string",
}
_ROW: Final = {"confidence_logits": [1.5, 0.25, -0.5], "verified": 3, "accepted": 1, "revision": 4}


class RejectedRowView(BaseModel):
    """A row that was left out of a batch."""

    model_config = ConfigDict(extra="forbid")

    row: int | None = Field(
        description="its place in the batch, from 0; null where a whole column is wrong"
    )
    field: str = Field(description="the first column that is wrong")
    reason: str = Field(description="the offending value and what to send instead")


class TelemetryAnswer(BaseModel):
    """What became of every row: accepted, duplicates and rejected_total add up to what was sent."""

    model_config = ConfigDict(extra="forbid")

    accepted: int = Field(description="rows stored durably, excluded ones included")
    duplicates: int = Field(description="rows of the batch that repeat a block of it; left out")
    excluded: int = Field(description="stored rows that no fit and no monitor uses")
    rejected: list[RejectedRowView] = Field(description="rows left out, the first 1,000 of them")
    rejected_total: int = Field(description="rows left out")
    warnings: list[str] = Field(
        description="suspicions about the batch, such as `looks_like_probabilities`; they hold "
        "recalibration, not ingest"
    )


ACCEPTED: Final = describe(
    TelemetryAnswer,
    "The rows are durable.",
    **{
        "Idempotency-Replayed": {
            "description": "`true` when this is the stored answer to an earlier request",
            "schema": {"type": "string"},
        }
    },
)


def _cell(column: Column) -> dict[str, Any]:
    """JSON schema of one cell; γ is not known here, so lists and lengths have its largest value."""
    kind = _TYPES[column.kind]
    schema: dict[str, Any] = {"type": [kind, "null"] if column.nullable else kind}
    if column.choices:
        schema["enum"] = [*column.choices, *([None] if column.nullable else [])]
    elif column.kind is ColumnKind.TEXT:
        schema |= {"minLength": 1, "maxLength": MAX_TEXT_LENGTH}
    if column.low is not None:
        schema["minimum"] = column.low
    high = column.upper(MAX_GAMMA)
    if high is not None and column.kind is not ColumnKind.TEXT:
        schema["maximum"] = high
    return schema


def _in_row(column: Column) -> dict[str, Any]:
    cell = _cell(column)
    if column.per_position:
        kind = ["array", "null"] if column.nullable else "array"
        cell = {"type": kind, "items": cell, "minItems": 1, "maxItems": MAX_GAMMA + 1}
    return {"description": column.doc, **cell}


def _batch_schema() -> dict[str, Any]:
    required = [column.name for column in COLUMNS if column.presence is Presence.REQUIRED]
    row = {
        "type": "object",
        "properties": {column.name: _in_row(column) for column in COLUMNS},
        "required": required,
        "additionalProperties": False,
    }
    columns = {
        "type": "object",
        "properties": {
            column.name: {"type": "array", "items": _in_row(column), "minItems": 1}
            for column in COLUMNS
        },
        "required": required,
        "additionalProperties": False,
    }
    gamma = {
        "type": "integer",
        "minimum": 1,
        "maximum": MAX_GAMMA,
        "description": "the drafter's block size",
    }
    return {
        "type": "object",
        "oneOf": [
            {
                "properties": {"gamma": gamma, name: content},
                "required": ["gamma", name],
                "additionalProperties": False,
            }
            for name, content in (
                ("rows", {"type": "array", "items": row, "minItems": 1}),
                ("columns", columns),
            )
        ],
    }


REQUEST_BODY: Final[dict[str, Any]] = {
    "required": True,
    "description": "Rows as JSON or as one Arrow IPC stream; `Content-Encoding` gzip or zstd. The "
    "limits on size hold before and after decompression.",
    "content": {
        "application/json": {
            "schema": _batch_schema(),
            "examples": {
                "rows": {"value": {"gamma": 3, "rows": [_ROW]}},
                "columns": {
                    "value": {"gamma": 3, "columns": {name: [_ROW[name]] for name in _ROW}}
                },
            },
        },
        "application/vnd.apache.arrow.stream": {
            "schema": {
                "type": "string",
                "format": "binary",
                "description": "schema metadata "
                f"`{VERSION_KEY.decode()}` = 1 and `{GAMMA_KEY.decode()}` = the block size; lists "
                "of fixed size",
            }
        },
    },
}
"""``requestBody`` of the call."""
