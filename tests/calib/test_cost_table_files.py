"""Reading and writing step-curve files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray

from calib.cost_table import AdditiveCostTable, CostTable, FlatCostTable, MeasuredCostTable
from calib.cost_table_files import dump_cost_table, load_cost_table, parse_cost_table
from calib.cost_table_staircase import StaircaseCostTable
from calib.errors import FormatError, ScheduleError

STAIRCASE = StaircaseCostTable(((1, 0.5), (8, 0.75)), ((8, 10.0), (64, 12.5)), graph_limit=64)
FLAT = FlatCostTable((4, 8, 32), (100.0, 90.5, 40.0), 64)
ADDITIVE = AdditiveCostTable(0.01, (1, 9), (0.001, 0.005), (10, 20, 40), (0.0, 0.01, 0.05))
MEASURED = MeasuredCostTable((10, 20, 40), (0.02, 0.03, 0.07))


@pytest.mark.parametrize(
    "table", [FLAT, ADDITIVE, MEASURED, STAIRCASE], ids=lambda t: type(t).__name__
)
def test_round_trip(table: CostTable, tmp_path: Path) -> None:
    path = tmp_path / "sps.json"
    path.write_text(dump_cost_table(table), encoding="utf-8")
    assert load_cost_table(path) == table


def test_files_as_the_engine_writes_them() -> None:
    flat = '{"sample_batch_tokens":[1,16],"sample_steps_per_sec":[50,41.5],"max_batch_tokens":128}'
    assert parse_cost_table(flat) == FlatCostTable((1, 16), (50.0, 41.5), 128)
    additive = (
        '{"bias_seconds":0.008,"bs_probes":[1],"alpha_seconds":[0.0],'
        '"m_probes":[8,64],"theta_seconds":[0.001,0.004]}'
    )
    expected = AdditiveCostTable(0.008, (1,), (0.0,), (8, 64), (0.001, 0.004))
    assert parse_cost_table(additive) == expected


@pytest.mark.parity
@pytest.mark.parametrize("table", [FLAT, ADDITIVE], ids=lambda t: type(t).__name__)
def test_written_files_pass_the_engines_schema(table: CostTable) -> None:
    """The engine decodes with msgspec into these very types."""
    msgspec = pytest.importorskip("msgspec")
    types = {
        FlatCostTable: {
            "sample_batch_tokens": list[int],
            "sample_steps_per_sec": list[float],
            "max_batch_tokens": int,
        },
        AdditiveCostTable: {
            "bias_seconds": float,
            "bs_probes": list[int],
            "alpha_seconds": list[float],
            "m_probes": list[int],
            "theta_seconds": list[float],
        },
    }[type(table)]
    schema = msgspec.defstruct("Table", list(types.items()), forbid_unknown_fields=True)
    msgspec.json.decode(dump_cost_table(table).encode(), type=schema)
    assert ('"bias_seconds"' in dump_cost_table(table)) is isinstance(table, AdditiveCostTable)


def test_unknown_keys_are_ignored_as_in_the_engine() -> None:
    fields = json.loads(dump_cost_table(FLAT)) | {"host": "x"}
    assert parse_cost_table(json.dumps(fields)) == FLAT


def test_a_flat_table_that_an_engine_would_misread_is_refused() -> None:
    fields = json.loads(dump_cost_table(FLAT)) | {"bias_seconds": 0.01}
    with pytest.raises(FormatError, match="an engine reads any file that contains"):
        parse_cost_table(json.dumps(fields))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not JSON"),
        ("[1]", "a JSON list"),
        ("{}", "no known step curve"),
        ("[" * 200_000, "not JSON"),
        ('{"batch_tokens":[1],"step_seconds":[NaN]}', "NaN is no JSON number"),
        ('{"batch_tokens":[1],"step_seconds":[1e400]}', "step_seconds is inf"),
        ('{"batch_tokens":[1],"step_seconds":["1"]}', "`step_seconds` holds '1'"),
        ('{"batch_tokens":[true],"step_seconds":[1.0]}', "`batch_tokens` holds True"),
        ('{"batch_tokens":[1.5],"step_seconds":[1.0]}', "`batch_tokens` holds 1.5"),
        ('{"batch_tokens":3,"step_seconds":[1.0]}', "`batch_tokens` is 3"),
        ('{"batch_tokens":[1]}', "`step_seconds` is missing"),
        ('{"batch_tokens":[2,1],"step_seconds":[1.0,1.0]}', r"batch_tokens is \(2, 1\)"),
        ('{"batch_tokens":[1],"step_seconds":[1' + "0" * 400 + "]}", "too large"),
        ('{"batch_tokens":[1' + "0" * 400 + '],"step_seconds":[1]}', "batch_tokens is"),
        ('{"batch_tokens":[1' + "0" * 5000 + '],"step_seconds":[1]}', "not JSON"),
        ('{"sample_batch_tokens":[1],"sample_steps_per_sec":[1]}', "`max_batch_tokens` is missing"),
    ],
)
def test_broken_text_is_refused(text: str, reason: str) -> None:
    with pytest.raises(FormatError, match=reason):
        parse_cost_table(text)


def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"missing\.json"):
        load_cost_table(tmp_path / "missing.json")
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(FormatError, match=r"bytes\.json"):
        load_cost_table(tmp_path / "bytes.json")


class OtherTable(CostTable):
    def step_seconds(self, batch_tokens: ArrayLike, requests: int) -> NDArray[np.float64]:
        return np.ones_like(batch_tokens, dtype=np.float64)


def test_other_tables_cannot_be_written() -> None:
    with pytest.raises(ScheduleError, match="OtherTable"):
        dump_cost_table(OtherTable())
