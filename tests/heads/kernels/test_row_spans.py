"""How rows are cut: whole tiles, every token once, nothing that depends on the batch."""

from __future__ import annotations

import pytest
import torch

from heads.kernels.row_spans import dense, spans_of, step_of

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    "vocabulary", [1, 7, 128, 129, 8192, 8193, 49_152, 151_936, 262_144, 10**6]
)
@pytest.mark.parametrize(("block", "span"), [(None, None), (128, None), (256, 300)])
def test_every_token_is_in_one_span(vocabulary: int, block: int | None, span: int | None) -> None:
    cut = spans_of(vocabulary, block, span)
    assert cut.block & (cut.block - 1) == 0
    assert cut.span % cut.block == 0
    assert (cut.splits - 1) * cut.span < vocabulary <= cut.splits * cut.span
    assert 1 <= cut.splits <= 32
    assert cut.splits <= cut.padded < 2 * cut.splits
    assert cut.padded & (cut.padded - 1) == 0


def test_large_vocabularies_fill_a_gpu_with_one_block() -> None:
    """γ = 7 rows of Qwen3's vocabulary: a program for each of an H200's 132 multiprocessors."""
    assert 7 * spans_of(151_936).splits == 133
    assert spans_of(151_936).block == 2048


def test_one_temperature_serves_all_rows() -> None:
    assert step_of(torch.ones(1)) == 0
    assert step_of(torch.ones(4)) == 1
    assert step_of(torch.ones(4, 2)[:, 0]) == 2


def test_columns_with_gaps_are_copied() -> None:
    assert dense(None) is None
    column = torch.arange(4.0)
    assert dense(column) is column
    spread = torch.ones(1).expand(3)
    closed = dense(spread)
    assert closed is not None
    assert closed.stride() == (1,)
