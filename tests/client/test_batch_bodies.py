"""Bodies that the service reads back to the very rows, in both forms."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calib.formats.arrow import records_from_ipc
from calib.records import AcceptanceRecords, validate_rows
from dspark_calib_client.batch_bodies import BodyWriter
from dspark_calib_client.coded_text import CodedText
from dspark_calib_client.rows import Batch, Rows, assemble, held_columns

GAMMA = 3
CLIENT = Path(__file__).resolve().parents[2] / "client"


def full_columns(arrays: bool) -> dict[str, Any]:
    """Every column of the contract; lists, or arrays where the kind allows."""
    columns: dict[str, Any] = {
        "confidence_logits": [[0.5, -1.25, 3.0], [1.0, 2.0, -40.0]],
        "verified": [3, 2],
        "accepted": [1, 2],
        "revision": [4, -1],
        "explored": [True, False],
        "propensity": [0.25, 1.0],
        "anticipating": [False, True],
        "flags": [0, 17],
        "soft_labels": [[0.5, 0.25, float("nan")], [1.0, 0.0, 0.75]],
        "token_acceptance": [[1.0, 0.5, 0.25], [float("nan"), 1.0, 1.0]],
        "sampling_temperature": [0.5, 1.0],
        "context_length": [17, 4096],
        "scheduled": [3, 3],
        "rank": [0, 1],
        "step": [2**40, 2**40 + 1],
        "step_requests": [2, 2],
        "timestamp": [1.7e9, 1.7e9 + 0.5],
    }
    if arrays:
        columns = {name: np.array(values) for name, values in columns.items()}
        columns["confidence_logits"] = columns["confidence_logits"].astype(np.float32)
    texts = {
        "domain": ["code", None],
        "adapter": [None, "lora-7"],
        "acceptance_rule": ["rejection", "greedy"],
        "draft_mode": ["sampled", "greedy"],
        "engine": ["engine-0", "engine-1"],
        "request": ["r1", "日本"],
        "tenant": ["t", None],
        "prompt": ["p", "p"],
        "applied_form": ["temperatures", None],
    }
    return {**columns, **texts}


def batch_of(columns: dict[str, Any]) -> Batch:
    count, held = held_columns(columns, GAMMA)
    return assemble([Rows(count, held, {})], GAMMA, "engine-0")


def read_back(form: str, batch: Batch) -> AcceptanceRecords:
    writer = BodyWriter(GAMMA, GAMMA, form)
    assert writer.prepare() == form
    body = writer.write(batch)
    if form == "arrow":
        assert body.headers == {"Content-Type": "application/vnd.apache.arrow.stream"}
        return records_from_ipc(body.content, GAMMA)
    assert body.headers == {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    document = json.loads(gzip.decompress(body.content))
    assert document["gamma"] == GAMMA
    records, rejected = validate_rows(GAMMA, document["columns"])
    assert rejected == []
    return records


@pytest.mark.parametrize("arrays", [False, True])
@pytest.mark.parametrize("form", ["arrow", "json"])
def test_the_service_reads_the_very_rows(form: str, arrays: bool) -> None:
    columns = full_columns(arrays)
    expected = AcceptanceRecords.from_columns(GAMMA, columns)
    assert read_back(form, batch_of(columns)).equals(expected)


@pytest.mark.parametrize("form", ["arrow", "json"])
def test_coded_texts_are_the_same_rows(form: str) -> None:
    """Of two entries that share some words; null is no word."""
    columns = full_columns(True)
    expected = AcceptanceRecords.from_columns(GAMMA, columns)
    coded = {}
    for name, cells in columns.items():
        if isinstance(cells, list):
            words = list(dict.fromkeys(cells))
            coded[name] = CodedText(np.array([words.index(cell) for cell in cells]), words)
    entries = [
        Rows(1, {name: cells[part] for name, cells in {**columns, **coded}.items()}, {})
        for part in (slice(0, 1), slice(1, 2))
    ]
    batch = assemble(entries, GAMMA, "engine-0")
    assert isinstance(batch.columns["domain"], CodedText)
    assert read_back(form, batch).equals(expected)


@pytest.mark.parametrize("form", ["arrow", "json"])
def test_an_unknown_number_of_an_array_is_null(form: str) -> None:
    columns = {**full_columns(True), "propensity": np.array([np.nan, 0.25])}
    found = read_back(form, batch_of(columns)).columns()["propensity"]
    assert np.array_equal(found, [np.nan, 0.25], equal_nan=True)


@pytest.mark.parametrize("form", ["arrow", "json"])
def test_a_logit_that_is_not_finite_costs_its_row_alone(form: str) -> None:
    for logits in (
        [[float("nan"), 0.0, 0.0], [1.0, 2.0, 3.0]],
        np.array([[np.inf, 0.0, 0.0], [1.0, 2.0, 3.0]]),
    ):
        batch = batch_of({"confidence_logits": logits, "verified": [3, 2], "accepted": [0, 2]})
        writer = BodyWriter(GAMMA, GAMMA, form)
        writer.prepare()
        content = writer.write(batch).content
        if form == "json":
            columns = json.loads(gzip.decompress(content))["columns"]
        else:
            from calib.formats.arrow import columns_from_table, table_from_ipc

            columns = columns_from_table(table_from_ipc(content), GAMMA)
        records, rejected = validate_rows(GAMMA, columns)
        assert len(records) == 1
        assert [(fault.row, fault.field) for fault in rejected] == [(0, "confidence_logits")]


def test_equal_batches_are_equal_bytes() -> None:
    """A retry must send what it sent before."""
    batch = batch_of(full_columns(False))
    for form in ("json", "arrow"):
        writer = BodyWriter(GAMMA, GAMMA, form)
        writer.prepare()
        assert writer.write(batch).content == writer.write(batch).content


def test_a_batch_that_arrow_refuses_goes_as_json() -> None:
    writer = BodyWriter(GAMMA, GAMMA, "arrow")
    writer.prepare()
    odd = np.array([1.0, 2.0], dtype=np.dtype(np.float64).newbyteorder(">"))
    columns = {**batch_of(full_columns(True)).columns, "timestamp": odd}
    body = writer.write(Batch(2, columns, 0))
    assert body.headers["Content-Type"] == "application/json"


def test_without_pyarrow_json_is_written() -> None:
    """In a fresh interpreter in which pyarrow and NumPy do not import."""
    script = (
        "import sys\n"
        "sys.modules['pyarrow'] = None\n"
        "sys.modules['numpy'] = None\n"
        "from dspark_calib_client.batch_bodies import BodyWriter\n"
        "from dspark_calib_client.rows import Rows, assemble, held_columns\n"
        "count, held = held_columns({'confidence_logits': [[0.5]], 'verified': [1],"
        " 'accepted': [0]}, 1)\n"
        "writer = BodyWriter(1, 1, 'auto')\n"
        "print(writer.prepare())\n"
        "print(writer.write(assemble([Rows(count, held, {})], 1, 'e')).headers['Content-Type'])\n"
    )
    folder = Path(__file__).resolve().parent.parent.parent / "client"
    found = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert found.stdout.split() == ["json", "application/json"]


def test_json_may_be_chosen() -> None:
    assert BodyWriter(GAMMA, GAMMA, "json").prepare() == "json"


@pytest.mark.parametrize("form", ["arrow", "json"])
@pytest.mark.parametrize("arrays", [False, True])
def test_rows_with_an_anchor_are_read_without_it(form: str, arrays: bool) -> None:
    from monitoring.ingest import parse_arrow_batch, parse_json_batch

    logits: Any = [[9.0, 0.5, -1.25, 3.0], [9.0, 1.0, 2.0, -40.0]]
    columns = {"confidence_logits": logits, "verified": [4, 3], "accepted": [2, 3]}
    if arrays:
        columns = {name: np.array(cells) for name, cells in columns.items()}
    count, held = held_columns(columns, GAMMA + 1)
    writer = BodyWriter(GAMMA, GAMMA + 1, form)
    writer.prepare()
    content = writer.write(assemble([Rows(count, held, {})], GAMMA + 1, "engine-0")).content
    if form == "arrow":
        parsed = parse_arrow_batch(content, GAMMA, anchor_included=True, max_bytes=10**6)
    else:
        parsed = parse_json_batch(gzip.decompress(content), GAMMA, anchor_included=True)
    assert parsed.rejected == ()
    assert parsed.records.confidence_logits.tolist() == [row[1:] for row in logits]
    assert parsed.records.verified.tolist() == [3, 2]
    assert parsed.records.accepted.tolist() == [1, 2]


def test_writers_of_several_threads_import_pandas_once() -> None:
    """pyarrow's first array imports pandas; two halves of it made a batch go as JSON."""
    program = """
import threading
from dspark_calib_client.batch_bodies import BodyWriter
start, faults = threading.Barrier(4), []
def first():
    start.wait()
    try:
        assert BodyWriter(7, 7, "arrow").prepare() == "arrow"
        import pyarrow, numpy
        pyarrow.array(numpy.zeros(3, dtype="float32"))
    except BaseException as error:
        faults.append(error)
threads = [threading.Thread(target=first) for _ in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert not faults, faults
"""
    answer = subprocess.run(
        [sys.executable, "-c", program],
        cwd=CLIENT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
