"""The shape of the tables."""

from __future__ import annotations

from sqlalchemy import BigInteger, Double, Integer, LargeBinary
from sqlalchemy.dialects import sqlite

from monitoring.store import tables


def test_every_table_is_named_in_the_module() -> None:
    assert sorted(tables.metadata.tables) == sorted(set(tables.__all__) - {"metadata"})


def test_times_are_doubles_and_large_columns_stand_last() -> None:
    for table in tables.metadata.tables.values():
        columns = list(table.columns)
        for column in columns:
            if column.name.endswith("_at") or column.name in ("at", "valid_until", "lease_until"):
                assert isinstance(column.type, Double), column
        large = [isinstance(column.type, LargeBinary) for column in columns]
        assert large == sorted(large), table.name


def test_row_ids_are_64_bits_and_never_reused() -> None:
    growing = [
        table
        for table in tables.metadata.tables.values()
        if any(column.identity is not None for column in table.columns)
    ]
    assert {table.name for table in growing} == {
        "alert_deliveries",
        "alert_notices",
        "audit",
        "events",
        "jobs",
        "reports",
        "silences",
        "telemetry_batches",
        "tracking_outbox",
    }
    for table in growing:
        (key,) = table.primary_key.columns
        assert isinstance(key.type, BigInteger)
        assert type(key.type.dialect_impl(sqlite.dialect())) is Integer
        assert table.dialect_options["sqlite"]["autoincrement"] is True
