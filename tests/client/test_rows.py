"""Rows: copied at once, looked at later, and only dropped when they cannot be written."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from calib.record_schema import COLUMNS, Presence
from dspark_calib_client.coded_text import CodedText
from dspark_calib_client.rows import (
    REQUIRED_COLUMNS,
    ROW_COLUMNS,
    CellKind,
    Rows,
    assemble,
    held_cell,
    held_columns,
    size_of,
)

GAMMA = 3


def columns(**changes: Any) -> dict[str, Any]:
    return {
        "confidence_logits": [[0.1, 0.2, 0.3], [1.0, 2.0, 3.0]],
        "verified": [3, 2],
        "accepted": [1, 2],
        **changes,
    }


def batch_of(**changes: Any) -> Any:
    count, held = held_columns(columns(**changes), GAMMA)
    return assemble([Rows(count, held, {})], GAMMA, "engine-0")


def test_the_columns_are_those_of_the_row_contract() -> None:
    kinds = {kind.value: kind for kind in CellKind}
    words = {"a finite number": "a number"}
    for column in COLUMNS:
        mine = ROW_COLUMNS[column.name]
        said = column.kind.value
        expected = CellKind.TEXT if "text" in said else kinds[words.get(said, said)]
        assert (mine.kind, mine.per_position) == (expected, column.per_position), column.name
    assert list(ROW_COLUMNS) == [column.name for column in COLUMNS]
    required = tuple(c.name for c in COLUMNS if c.presence is Presence.REQUIRED)
    assert required == REQUIRED_COLUMNS


def test_lists_and_arrays_are_copied() -> None:
    check_copies([[[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]], np.zeros((2, 3), np.float32)])


@pytest.mark.torch
def test_tensors_are_copied() -> None:
    torch = pytest.importorskip("torch")
    check_copies([torch.zeros(2, 3), [np.zeros(3), torch.zeros(3)], torch.zeros(2, 3).bfloat16()])


def check_copies(sources: list[Any]) -> None:
    for logits in sources:
        _, held = held_columns(columns(confidence_logits=logits), GAMMA)
        logits[0][0] = 9.0  # the engine's next step writes into its buffer
        if not isinstance(logits, list):
            logits[1] = 9.0
        batch = assemble([Rows(2, held, {})], GAMMA, "engine-0")
        sent = np.array(batch.columns["confidence_logits"], dtype=float)
        assert sent.tolist() == [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]


@pytest.mark.torch
def test_a_tensor_on_a_device_is_refused() -> None:
    """Copying it would wait for everything that is queued there."""
    torch = pytest.importorskip("torch")
    for logits in (torch.zeros(2, 3, device="meta"), [torch.zeros(3, device="meta")] * 2):
        with pytest.raises(TypeError, match="copy it to the host"):
            held_columns(columns(confidence_logits=logits), GAMMA)
    with pytest.raises(TypeError, match="host"):
        held_cell(torch.zeros(3, device="meta"))


@pytest.mark.parametrize(
    "changes",
    [
        {"verified": None},
        {"accepted": [1]},
        {"confidence_logits": np.zeros((2, 4))},
        {"confidence_logits": np.zeros(2)},
        {"domain": ["code"]},
        {"colour": ["red", "blue"]},
        {"step": np.zeros((2, 2), int)},
        {"soft_labels": np.zeros((3, 3))},
    ],
)
def test_columns_that_do_not_fit_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="column"):
        held_columns(columns(**changes), GAMMA)


def test_absent_columns_may_be_none() -> None:
    assert "domain" not in held_columns(columns(domain=None), GAMMA)[1]


def test_good_rows_are_kept_and_bad_ones_counted() -> None:
    batch = batch_of(domain=["code", 7])
    assert (batch.count, batch.malformed) == (1, 1)
    assert batch.columns["verified"] == [3]
    assert batch.columns["domain"] == ["code"]
    assert batch.columns["engine"] == ["engine-0"]


@pytest.mark.parametrize(
    ("name", "cell"),
    [
        ("verified", "3"),
        ("verified", 3.0),
        ("verified", True),
        ("verified", 2**70),
        ("accepted", None.__class__),
        ("confidence_logits", [0.1, 0.2]),
        ("confidence_logits", "0.1"),
        ("confidence_logits", [0.1, "0.2", 0.3]),
        ("confidence_logits", [0.1, True, 0.3]),
        ("confidence_logits", 5),
        ("explored", 1),
        ("timestamp", "now"),
        ("request", 12),
        ("request", "\ud800"),
        ("domain", b"code"),
    ],
)
def test_what_cannot_be_written_is_left_out(name: str, cell: Any) -> None:
    cells = list(columns().get(name, [None, None]))
    cells[1] = cell
    batch = batch_of(**{name: cells})
    assert (batch.count, batch.malformed) == (1, 1)


def test_what_is_merely_wrong_is_sent_for_the_service_to_name() -> None:
    batch = batch_of(
        confidence_logits=[[math.nan, math.inf, 0.5], [1.0, 2.0, 3.0]], accepted=[300, -1]
    )
    assert batch.malformed == 0
    assert batch.columns["confidence_logits"][0] == [None, None, 0.5]
    assert batch.columns["accepted"] == [300, -1]


def test_numpy_scalars_are_numbers() -> None:
    batch = batch_of(
        verified=[np.int64(3), np.uint8(2)],
        timestamp=[np.float32(1.5), 2],
        explored=[np.bool_(True), False],
    )
    assert batch.malformed == 0
    assert batch.columns["verified"] == [3, 2]
    assert batch.columns["explored"] == [True, False]


def test_arrays_stay_arrays_where_all_are() -> None:
    count, held = held_columns(
        columns(confidence_logits=np.ones((2, 3), np.float32), verified=np.array([3, 2])), GAMMA
    )
    batch = assemble([Rows(count, held, {}), Rows(count, held, {})], GAMMA, "engine-0")
    assert isinstance(batch.columns["confidence_logits"], np.ndarray)
    assert batch.columns["confidence_logits"].shape == (4, 3)
    assert batch.columns["verified"].tolist() == [3, 2, 3, 2]


@pytest.mark.parametrize("dtype", [np.float32, np.uint64, np.bool_])
def test_arrays_of_another_kind_are_looked_at_cell_by_cell(dtype: type[Any]) -> None:
    batch = batch_of(verified=np.array([1, 1], dtype))
    assert batch.malformed == (0 if dtype is np.uint64 else 2)


def test_entries_with_other_columns_are_joined() -> None:
    first = Rows(1, held_columns(_one(domain=["code"]), GAMMA)[1], {"revision": 4})
    second = Rows(1, held_columns(_one(step=np.array([9])), GAMMA)[1], {"revision": 5})
    batch = assemble([first, second], GAMMA, "engine-0")
    assert batch.columns["domain"] == ["code", None]
    assert batch.columns["step"] == [None, 9]
    assert batch.columns["revision"] == [4, 5]


def test_a_column_wins_over_a_constant() -> None:
    held = held_columns(_one(revision=[7], engine=["mine"]), GAMMA)[1]
    batch = assemble([Rows(1, held, {"revision": 4})], GAMMA, "engine-0")
    assert (batch.columns["revision"], batch.columns["engine"]) == ([7], ["mine"])


def test_sizes_grow_with_what_is_held() -> None:
    count, held = held_columns(columns(), GAMMA)
    assert size_of(count, held, GAMMA) > 2 * (3 + 1 + 1) * 24  # 24 bytes are one Python float
    big = {"confidence_logits": np.zeros((1000, 3), np.float32)}
    assert size_of(1000, big, GAMMA) >= 12_000


def _one(**changes: Any) -> dict[str, Any]:
    return {"confidence_logits": [[0.0, 0.0, 0.0]], "verified": [3], "accepted": [0], **changes}


def test_a_word_that_cannot_be_written_costs_its_rows_alone() -> None:
    """And a list of other rows may follow coded ones."""
    words = CodedText(np.array([0, 1]), ("fine", "\ud800"))
    count, held = held_columns(columns(domain=words), GAMMA)
    words.codes[0] = 1  # held in memory of its own
    plain = held_columns(columns(domain=["a", None]), GAMMA)[1]
    batch = assemble([Rows(count, held, {}), Rows(2, plain, {})], GAMMA, "e")
    assert batch.malformed == 1
    assert batch.columns["domain"] == ["fine", "a", None]


def test_coded_text_is_no_number() -> None:
    with pytest.raises(ValueError, match="holds no text"):
        held_columns(columns(flags=CodedText(np.array([0, 0]), ("1",))), GAMMA)
