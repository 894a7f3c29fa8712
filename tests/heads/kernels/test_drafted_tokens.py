"""What is read from words and partial sums: tokens through the mapping, sums merged in order."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from heads.kernels.drafted_tokens import finish_position, previous_tokens
from heads.reference.deterministic_argmax import packed_words

pytestmark = pytest.mark.torch


@triton.jit
def _finish(
    words,
    stride,
    mapping,
    sums,
    turn,
    kind,
    tokens,
    ids,
    log_sum_exps,
    previous,
    anchors,
    index,
    gamma,
    programs,
    rows,
    vocabulary,
    BLOCK_B: tl.constexpr,
    ROWS: tl.constexpr,
):
    row = tl.arange(0, BLOCK_B) if ROWS else 0
    live = row < rows
    chain = (anchors, words, stride, mapping, vocabulary)
    results = (tokens, ids, log_sum_exps)
    partials = (sums, turn, kind)
    finish_position(chain, partials, results, index, gamma, programs, row, live, BLOCK_B, ROWS)
    tl.store(previous + row, previous_tokens(chain, index + 1, row, live), mask=live)
    tl.store(previous + 16 + row, previous_tokens(chain, 0, row, live), mask=live)


@pytest.mark.parametrize("rows", [1, 3])
def test_tokens_and_sums_of_many_programs(rows: int, device: torch.device) -> None:
    g = torch.Generator().manual_seed(rows)
    programs, capacity, gamma = 3000, 5, 4  # more than are merged at a time
    wanted = torch.tensor([[7, 0, 99], [1, 98, 50], [3, 3, 3], [2, 4, 6]])[:, :rows]
    words = torch.zeros(gamma, capacity, dtype=torch.long)
    words[:, :rows] = packed_words(torch.randn(gamma, rows, generator=g), wanted)
    parts = torch.randn(2, 2, programs, capacity, generator=g)
    parts[:, 1] = parts[:, 1].abs()
    parts[1, 0, 5:40] = -torch.inf  # programs without a possible token
    parts[1, 1, 5:40] = 0.0
    mapping = torch.arange(100) * 3
    tokens, ids = torch.zeros(2, rows, gamma, dtype=torch.long).to(device)
    sums = torch.zeros(rows, gamma, device=device)
    previous = torch.zeros(32, dtype=torch.long, device=device)
    anchors = torch.tensor([-4, 10**12, 5])[:rows].to(device)
    _finish[(1,)](
        words.to(device),
        capacity,
        mapping.to(device),
        parts.to(device),
        parts.stride(0),
        parts.stride(1),
        tokens,
        ids,
        sums,
        previous,
        anchors,
        1,
        gamma,
        programs,
        rows,
        300,
        BLOCK_B=16 if rows > 1 else 1,
        ROWS=rows > 1,
    )
    assert ids[:, 1].tolist() == wanted[1].tolist()
    assert tokens[:, 1].tolist() == (wanted[1] * 3).tolist()
    assert previous[:rows].tolist() == (wanted[1] * 3).tolist()
    assert previous[16 : 16 + rows].tolist() == [0, 299, 5][:rows]
    largest, total = parts[1].double()
    expected = torch.logsumexp(largest + total.log(), dim=0)[:rows]
    assert torch.allclose(sums[:, 1].cpu().double(), expected, rtol=1e-6)
    assert (sums[:, [0, 2, 3]] == 0).all()
