"""Broken telemetry, one file each, made the way a person makes it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from calib.formats.arrow import table_from_records, write_parquet
from calib.records import AcceptanceRecords
from tests.support.telemetry import synthetic_columns, synthetic_records

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write synthetic rows with some columns replaced, checked or unchecked."""

    def written(rows: int = 400, *, gamma: int = 3, **columns: Any) -> Path:
        path = tmp_path / "telemetry.parquet"
        whole = synthetic_columns(rows, gamma=gamma) | columns
        write_parquet(AcceptanceRecords.from_columns(gamma, whole), path)
        return path

    return written


@pytest.fixture
def write_raw(tmp_path: Path) -> Write:
    """Write a table whose column ``name`` was replaced behind the validation's back."""

    def written(name: str, change: Callable[[list[Any]], list[Any]]) -> Path:
        path = tmp_path / "telemetry.parquet"
        table = table_from_records(synthetic_records(300, gamma=3))
        place = table.schema.get_field_index(name)
        values = pa.array(
            change(table.column(name).to_pylist()), type=table.schema.field(name).type
        )
        pq.write_table(table.set_column(place, table.schema.field(name), values), path)
        return path

    return written
