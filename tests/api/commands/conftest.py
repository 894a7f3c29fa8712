"""What the commands' tests share: broken telemetry, made the way a person makes it; a service."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from calib.formats.arrow import table_from_records, write_parquet
from calib.records import AcceptanceRecords
from tests.service_process import ServiceProcess
from tests.support.service import KEY, empty_database
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


@pytest.fixture(scope="session")
def champion_of_d(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a service whose drafter ``d`` has revision 1 as champion."""
    database = empty_database(tmp_path_factory.mktemp("service"))
    with ServiceProcess(database) as running, httpx.Client(timeout=60.0) as http:
        place = f"{running.url}/v1/drafters/d"
        etag = http.put(place, json={"key": KEY}).raise_for_status().headers["ETag"]
        for path in ("revisions", "revisions/1/promote"):
            numbers = [1.5, 1.25, 1.0, 0.875, 0.75, 1.125, 2.0]
            body = {"temperatures": numbers} if path == "revisions" else None
            answer = http.post(f"{place}/{path}", json=body, headers={"If-Match": etag})
            answer.raise_for_status()
            etag = http.get(place).headers["ETag"]
        yield running.url
