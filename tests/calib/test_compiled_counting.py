"""The compiled loops count what NumPy's passes count, to the last bit, and is loaded when due."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import numpy as np
import pytest

from calib import compiled_counting
from calib.compiled_counting import WORTH_LOADING, hard_label_counter
from calib.errors import RecordError
from calib.logit_sketch import _COUNTED_ROWS, CELLS, LogitSketch
from calib.mergeable_sketch import MergeableSketch
from calib.records import AcceptanceRecords
from calib.squashed_logit import CHUNK_ROWS


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every test begins and leaves as a process that has counted nothing."""
    monkeypatch.setattr(compiled_counting._Demand, "rows", 0)
    compiled_counting._numba.cache_clear()
    yield
    compiled_counting._numba.cache_clear()


@pytest.fixture
def compiled() -> None:
    assert compiled_counting.load(7), "the test environment holds Numba"


def lengths(rows: int, seed: int, gamma: int = 7) -> tuple[np.ndarray, np.ndarray]:
    """Verified and accepted lengths, all of them possible."""
    generator = np.random.default_rng(seed)
    verified = generator.integers(0, gamma + 1, rows)
    return verified, np.minimum(generator.integers(0, gamma + 1, rows), verified)


def extremes(rows: int, gamma: int = 7, largest: float = 65536.0) -> np.ndarray:
    """Ordinary logits, edges of cells, both zeros, tiny ones and the largest that are not cut."""
    generator = np.random.default_rng(3)
    logits = generator.normal(0.0, 6.0, (rows, gamma)).astype(np.float32)
    edges = [0.0, -0.0, 4.0, -4.0, 12.0, 1e-42, -1e-42, 0.5, 0.9 * largest, -0.9 * largest]
    special = np.repeat([*edges, largest, -largest], 5)[: logits.size]
    logits.flat[: len(special)] = special
    return logits


def by_numpy(logits: np.ndarray, accepted: np.ndarray, verified: np.ndarray) -> LogitSketch:
    """The same labels as a matrix: they are counted the other way."""
    position = np.arange(logits.shape[1])
    observed = position < np.minimum(accepted + 1, verified)[:, None]
    labels = np.where(observed, (position < accepted[:, None]).astype(float), np.nan)
    sketch = LogitSketch.from_labels(logits, labels)
    assert sketch.rows.tolist() == observed.sum(axis=0).tolist()
    return sketch


@contextmanager
def only_loop(name: str) -> Iterator[None]:
    """Fails where anything but this loop counts."""
    other = {"_all_loop": "_observed_loop", "_observed_loop": "_all_loop"}[name]
    wrong = AssertionError(f"not by {name}")
    with (
        patch.object(MergeableSketch, "_filled", side_effect=wrong),
        patch.object(compiled_counting, other, side_effect=wrong),
    ):
        yield


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("exponent", [0, 3])
@pytest.mark.parametrize("rows", [0, 1, 1000, CHUNK_ROWS + 11])
def test_the_sums_are_those_of_numpy(rows: int, exponent: int) -> None:
    logits = extremes(max(rows, 100))[:rows]
    verified, accepted = lengths(rows, seed=rows)
    with patch.object(MergeableSketch, "_filled", side_effect=AssertionError("not by a loop")):
        found = LogitSketch.from_lengths(logits, accepted, verified, scale_exponent=exponent)
    scaled = logits / np.float32(2.0**exponent)
    expected = by_numpy(scaled, accepted, verified)
    for name in ("count", "sum_z", "sum_y"):
        assert np.array_equal(getattr(found, name), getattr(expected, name))


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("gamma", [1, 3, 7, 16])
def test_where_much_is_observed_all_positions_are_counted(gamma: int) -> None:
    rows = 2 * _COUNTED_ROWS // 50  # no multiple of any block
    logits = extremes(rows, gamma, largest=3000.0)
    accepted = np.random.default_rng(gamma).integers(gamma // 2, gamma + 1, rows)
    verified = np.full(rows, gamma)
    verified[::3] = accepted[::3]  # trimmed: no rejection is seen
    with only_loop("_all_loop"):
        found = LogitSketch.from_lengths(logits, accepted, verified)
    assert found == by_numpy(logits, accepted, verified)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize(("largest", "kept"), [(3000.0, 0.15), (65_536.0, 1.0)])
def test_where_little_is_observed_or_a_logit_is_large_only_that_is_visited(
    largest: float, kept: float
) -> None:
    logits = extremes(3001, 16, largest)
    accepted = (np.random.default_rng(1).integers(0, 17, 3001) * kept).astype(np.int64)
    verified = np.minimum(accepted + np.arange(3001) % 2, 16)
    with only_loop("_observed_loop"):
        found = LogitSketch.from_lengths(logits, accepted, verified)
    assert found == by_numpy(logits, accepted, verified)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("value", [32_767.998, -32_767.998])
def test_the_largest_logit_that_fits_32_bits(value: float) -> None:
    logits = np.zeros((10, 2), dtype=np.float32)
    logits[3, 1] = value
    with only_loop("_all_loop"):
        found = LogitSketch.from_lengths(logits, np.full(10, 2))
    assert found.sum_z.sum() == round(float(np.float32(value)) * 2**16)


@pytest.mark.usefixtures("compiled")
def test_both_loops_add_to_one_sketch() -> None:
    rows = _COUNTED_ROWS + 500
    logits = extremes(rows, largest=3000.0)
    accepted = np.where(np.arange(rows) < _COUNTED_ROWS, 6, 0)
    with patch.object(MergeableSketch, "_filled", side_effect=AssertionError("not by a loop")):
        found = LogitSketch.from_lengths(logits, accepted)
    assert found == by_numpy(logits, accepted, np.full(rows, 7))


@pytest.mark.usefixtures("compiled")
def test_rows_that_must_stay_out_count_nothing() -> None:
    logits = extremes(600, largest=3000.0)
    accepted = np.full(600, 7)
    records = AcceptanceRecords.from_columns(
        7,
        {
            "confidence_logits": logits,
            "accepted": accepted,
            "verified": accepted,
            "anticipating": np.arange(600) % 2 == 0,
        },
    )
    assert 0 < records.usable().sum() < 600
    with only_loop("_all_loop"):
        found = LogitSketch.from_records(records)
    kept = records.usable()
    assert found == by_numpy(logits[kept], accepted[kept], accepted[kept])


@pytest.mark.usefixtures("compiled")
def test_float64_and_strided_logits_are_counted_alike() -> None:
    logits = extremes(500)
    _, accepted = lengths(500, seed=9)
    plain = LogitSketch.from_lengths(logits, accepted)
    assert LogitSketch.from_lengths(logits.astype(np.float64), accepted) == plain
    assert LogitSketch.from_lengths(np.asfortranarray(logits), accepted) == plain


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("kind", [np.uint8, np.int16, np.int64])
def test_columns_of_records_are_read_only_and_counted_alike(kind: type) -> None:
    logits = extremes(500)
    verified, accepted = lengths(500, seed=4)
    plain = LogitSketch.from_lengths(logits, accepted, verified)
    columns = [logits, accepted.astype(kind), verified.astype(kind)]
    for column in columns:
        column.setflags(write=False)
    assert LogitSketch.from_lengths(*columns) == plain
    records = AcceptanceRecords.from_columns(
        7, {"confidence_logits": logits, "accepted": accepted, "verified": verified}
    )
    assert not records.confidence_logits.flags.writeable
    assert LogitSketch.from_records(records) == plain


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("large", [1e30, -1e30, 65_600.0])
def test_a_logit_that_is_cut_counts_as_the_largest(large: float) -> None:
    logits = extremes(CHUNK_ROWS + 100)
    _, accepted = lengths(len(logits), seed=8)
    logits[-1, 0] = large
    found = LogitSketch.from_lengths(logits, accepted)
    logits[-1, 0] = np.copysign(65536.0, large)
    assert found == LogitSketch.from_lengths(logits, accepted)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("position", [0, 2])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_logit_that_is_not_finite_is_refused_where_nobody_observed_it_too(
    value: float, position: int
) -> None:
    logits = np.zeros((4, 3), dtype=np.float32)
    logits[2, position] = value
    with pytest.raises(RecordError, match="finite fp32 logits"):
        LogitSketch.from_lengths(logits, np.zeros(4, dtype=np.int64))


def test_it_is_loaded_for_a_log_that_pays_for_it() -> None:
    assert hard_label_counter(WORTH_LOADING, 7, CELLS) is not None
    assert hard_label_counter(1, 7, CELLS) is not None


def test_it_is_loaded_once_many_small_batches_would_have_paid_for_it() -> None:
    assert hard_label_counter(WORTH_LOADING - 1, 7, CELLS) is None
    assert hard_label_counter(1, 7, CELLS) is not None


def test_it_is_loaded_when_asked() -> None:
    assert hard_label_counter(1, 7, CELLS) is None
    assert compiled_counting.load(7)
    assert hard_label_counter(1, 7, CELLS) is not None


def test_without_numba_numpy_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "numba" else real(name)
    )
    assert not compiled_counting.load(7)
    assert hard_label_counter(WORTH_LOADING, 7, CELLS) is None
    assert LogitSketch.from_lengths([[1.0, 2.0]], [1]).rows.tolist() == [1, 1]


def test_sketching_a_few_rows_does_not_load_numba() -> None:
    code = (
        "import sys; from calib.logit_sketch import LogitSketch; "
        "LogitSketch.from_lengths([[1.0, 2.0]], [1]); print('numba' in sys.modules)"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert answer.stdout.strip() == "False"
